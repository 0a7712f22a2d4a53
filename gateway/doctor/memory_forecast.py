"""Forecast for how many sessions this machine has memory."""

import asyncio
from collections.abc import Mapping
from typing import Final

from gateway.admin.formatting import amount
from gateway.config.settings import Settings
from gateway.doctor.findings import Finding, ok, warning
from gateway.observability.process_memory import machine_memory, tree_bytes
from gateway.policy.server_memory import ASSUMED_BYTES, MemoryState
from gateway.serving.gateway import Gateway

_FEW: Final = 10
"""The number of sessions below which a gateway's memory is too small for any use."""


async def check_memory(gateway: Gateway, settings: Settings) -> Finding:
    """Measure the processes that the doctor has started, one for each server, and forecast the memory of sessions from
    them."""
    servers = {process.top: process.server for process in gateway.memory if process.top}
    found = await asyncio.to_thread(tree_bytes, list(servers))
    measured = {servers[top]: size for top, size in found.items()}
    return forecast(settings, measured, gateway.memory.state(), 0 if (of := machine_memory()) is None else of.total)


def forecast(settings: Settings, measured: Mapping[str, int], state: MemoryState, machine: int) -> Finding:
    """Report how many sessions fit into the memory. Each has a process of every server that is not shared. `measured`:
    bytes by server. `machine`: the memory of the machine or of its cgroup, in bytes; 0: unknown."""
    own = [name for name, entry in settings.mcpServers.items() if entry.has_own_process]
    costs = {name: measured.get(name, ASSUMED_BYTES) for name in own}
    most = state.most or machine
    if not own:
        return ok("memory", "no server has a process for each session")
    if not most:
        return ok("memory", "not known on this system; limits.total_memory_mb limits it")
    each = sum(costs.values())
    fits = max(0, most - state.own) // each
    told = ", ".join(f"{name} {amount(size)}{'' if name in measured else ' (assumed)'}" for name, size in costs.items())
    what = f"a session costs about {amount(each)} ({told}), so about {fits} fit into {amount(most)}"
    wanted = settings.gateway.session
    is_wanted = "max_sessions" in wanted.model_fields_set and fits < wanted.max_sessions
    if is_wanted:
        what += f"; session.max_sessions is {wanted.max_sessions}"
    if state.most > machine > 0:
        return warning(
            "memory",
            f"{what}, but the machine or its cgroup has {amount(machine)}: the kernel ends processes before the limit",
            "lower limits.total_memory_mb, or remove it",
        )
    if not state.most and fits < wanted.max_sessions:
        do = (
            "remove limits.total_memory_mb, which is 0: then the gateway refuses processes before that (docs/memory.md)"
        )
        return warning("memory", f"{what}; then the kernel ends processes, of any session", do)
    if is_wanted or fits < _FEW:
        do = "give it more memory or a replica, use shared servers, or lower idle_stop_s or idle_ttl_s (docs/memory.md)"
        return warning("memory", what, do)
    return ok("memory", f"{what}; processes beyond that are refused")
