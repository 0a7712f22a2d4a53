"""Check each configured server by one request, as a session would make it. Then check the memory for sessions, and the
policy against the servers' lists."""

import asyncio
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Mapping
from typing import Final

from gateway.admin.formatting import amount
from gateway.calls.server_start_failures import with_output_tail
from gateway.config.secrets import SecretSettings, secrets_in
from gateway.config.settings import ConfigurationError, Settings
from gateway.config.upstreams import UpstreamSettings
from gateway.doctor.findings import Finding, failure, ok, warning
from gateway.observability.process_memory import machine_memory, tree_bytes
from gateway.policy.memory_admission import ASSUMED_BYTES, MemoryState
from gateway.serving.gateway import Gateway
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.unmatched_patterns import review

_SLOW_START_S: Final = 1.0
_FEW: Final = 10
"""The number of sessions below which a gateway's memory is too small for any use."""

AT_ONCE: Final = 3
"""The most servers that are started concurrently. The time of each start is measured, and more starts would slow each
other down."""


async def check_servers(settings: Settings) -> AsyncIterator[Finding]:
    """Check each configured server: start it or connect to its URL, and list what it has. Then check the memory for
    sessions, and the policy against the lists."""
    try:
        gateway = Gateway.to_ask(settings)
    except ConfigurationError as error:
        yield failure("configuration", str(error), "see docs/configuration.md")
        return
    async with gateway.running(asks_servers=False):
        at_once = asyncio.Semaphore(AT_ONCE)
        asked = [asyncio.create_task(_ask(upstream, at_once)) for upstream in gateway.upstreams]
        for upstream, task in zip(gateway.upstreams, asked, strict=True):
            await task
            yield _finding(upstream, gateway.parts.servers.packages.fetching(upstream.name), settings.gateway.secrets)
        # Forecast the memory of sessions from the processes that the doctor has started, one for each server.
        servers = {process.top: process.server for process in gateway.memory if process.top}
        found = await asyncio.to_thread(tree_bytes, list(servers))
        measured = {servers[top]: size for top, size in found.items()}
        yield forecast(settings, measured, gateway.memory.state(), 0 if (of := machine_memory()) is None else of.total)
        async for finding in _policy(gateway):
            yield finding


async def _ask(upstream: ConfiguredUpstream, at_once: asyncio.Semaphore) -> None:
    """Start a server, or connect to it, and request its lists. Return when it has answered or failed; `upstream` has
    the outcome. `at_once`: limits how many servers are asked concurrently."""
    async with at_once:
        if not upstream.is_left_out:
            await upstream.start_probe()


def _finding(upstream: ConfiguredUpstream, package: str, secrets: Mapping[str, SecretSettings]) -> Finding:
    """Return what was found about a server. `package`: the package that is being fetched for it; empty if there is
    none. `secrets`: the configured secrets."""
    check, entry, state = f"server {upstream.name}", upstream.settings, upstream.state
    if package and state.state != "ok":
        do = "wait for the gateway that fetches it, or for `mcp-session-gateway check`, which ends when it is fetched"
        return warning(check, f"its package {package} is being fetched", f"{do}; then run doctor again")
    if state.state != "ok":
        if upstream.is_left_out:
            do = "correct this entry: the server is left out until then"
        elif entry.is_remote:
            do = "check the headers, that the URL is its MCP endpoint, and that it can be reached from here"
        elif _is_missing(entry):
            do = "install it for the gateway's user, or correct `command`"
        else:
            do = f"run it by hand, as the gateway's user: {shlex.join(entry.argv)[:200]}"
        return failure(check, with_output_tail(state.why_silent, state.output_tail), do)
    era = "2026-07-28" if upstream.speaks_modern else "2025-11-25 or older"
    tools = upstream.probed_tools
    summary = f"answers, speaks {era}, has {0 if tools is None else len(tools.listed)} tools"
    if state.start_s > _SLOW_START_S and not entry.warm and _may_be_warm(entry, secrets):
        what = f"{summary}, and takes {state.start_s:.1f} s to start, which delays each session's first call"
        return warning(check, what, f"set mcpServers.{upstream.name}.warm to prestart processes")
    return ok(check, f"{summary}, starts in {state.start_s:.1f} s" if entry.kind == "command" else summary)


def _may_be_warm(entry: UpstreamSettings, secrets: Mapping[str, SecretSettings]) -> bool:
    """Return True if processes of the server can be started before a session needs them (the setting `warm`): each
    session has its own, and they need no file or token of a principal."""
    values = entry.env.values()
    waits = secrets_in(*values, kind="secret_file") or any(secrets[name].tokens for name in secrets_in(*values))
    return entry.has_own_process and not waits


def _is_missing(entry: UpstreamSettings) -> bool:
    """Return True if the program of the server's command is not found. If the command is a relative path, it is looked
    for in the working directory of the server."""
    program = entry.argv[0]
    if "/" in program:
        program = os.path.join(os.path.expanduser(entry.cwd or ""), program)
    return shutil.which(program, path=entry.env.get("PATH")) is None


async def _policy(gateway: Gateway) -> AsyncIterator[Finding]:
    options, policy = gateway.settings.gateway, gateway.settings.gateway.policy
    found = await review(gateway.upstreams, options, gateway.calls)
    for fault in found.unmatched:
        yield failure("policy", fault, "correct the pattern: it matches nothing, so it protects nothing")
    mend = "correct the schema in the server; until then"
    for fault in found.unusable:
        if policy.check_arguments:
            yield failure("policy", fault, f"{mend} the tool is hidden (policy.check_arguments)")
        else:
            yield warning("policy", fault, f"{mend} nothing checks the tool's arguments")
    for fault in found.unbound:
        yield warning("policy", fault, "name the argument as the tools' input schemas do, or remove it from bind")
    for fault in found.no_tasks:
        yield warning("tasks", fault, "correct the pattern: no call becomes a task at once by it")
    check = "have the server check these values, or write a smaller pattern without look-around and backreferences"
    for fault in found.unchecked if policy.check_arguments else ():
        yield warning("policy", fault, check)
    if found.unasked:
        yield warning(
            "policy",
            f"the patterns and schemas of servers that did not answer were not checked: {', '.join(found.unasked)}",
            "fix these servers as the lines above say, then run doctor again",
        )
    elif not found.unmatched and not found.unusable:
        yield ok("policy", "all patterns match something the servers list, and the tools' input schemas are valid")


def forecast(settings: Settings, measured: Mapping[str, int], state: MemoryState, machine: int) -> Finding:
    """Report how many sessions fit into the memory. Each session has a process of every server that is not shared.
    `measured`: the bytes of one process, by server. `state`: the gateway's own memory, and the limit for gateway and
    servers together. `machine`: the memory of the machine or of its cgroup, in bytes; 0: unknown."""
    own = [name for name, entry in settings.mcpServers.items() if entry.has_own_process]
    costs = {name: measured.get(name, ASSUMED_BYTES) for name in own}
    most = state.most or machine
    if not own:
        return ok("memory", "no server has a process for each session")
    if not most:
        return ok("memory", "not known on this system; limits.total_memory_mb limits it")
    each = sum(costs.values())
    fits = max(0, most - state.own) // each
    text = ", ".join(f"{name} {amount(size)}{'' if name in measured else ' (assumed)'}" for name, size in costs.items())
    what = f"a session costs about {amount(each)} ({text}), so about {fits} fit into {amount(most)}"
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
