"""Check each configured server by one request, as a session would make it. Then check the memory for sessions, and the
policy against the servers' lists."""

import asyncio
import os
import shlex
import shutil
from collections.abc import AsyncIterator
from typing import Final

from gateway.calls.server_start_failures import with_output_tail
from gateway.config.settings import ConfigurationError, Settings
from gateway.config.upstreams import UpstreamSettings
from gateway.doctor.findings import Finding, failure, ok, warning
from gateway.doctor.memory_forecast import check_memory
from gateway.serving.gateway import Gateway
from gateway.upstreams.configuration_review import review
from gateway.upstreams.configured_upstream import ConfiguredUpstream

_SLOW_START_S: Final = 1.0
AT_ONCE: Final = 3
"""The number of servers that start concurrently. Starts are measured, and more of them would slow each other down."""


async def check_servers(settings: Settings) -> AsyncIterator[Finding]:
    """Start each server with a command, connect to each with a URL, and list their tools. Then check memory and
    policy."""
    try:
        gateway = Gateway.to_ask(settings)
    except ConfigurationError as error:
        yield failure("configuration", str(error), "see docs/configuration.md")
        return
    async with gateway.running(asks_servers=False):
        at_once = asyncio.Semaphore(AT_ONCE)
        limit_s = settings.gateway.limits.start_timeout_s
        asked = [asyncio.create_task(_ask(upstream, at_once, limit_s)) for upstream in gateway.upstreams]
        for upstream, task in zip(gateway.upstreams, asked, strict=True):
            await task
            yield _finding(upstream, gateway.parts.servers.packages.fetching(upstream.name))
        yield await check_memory(gateway, settings)
        async for finding in _policy(gateway):
            yield finding


async def _ask(upstream: ConfiguredUpstream, at_once: asyncio.Semaphore, limit_s: float) -> None:
    """Start a server and request its lists. Wait for an answer for at most `limit_s`, as a session would."""
    async with at_once:
        if upstream.is_left_out:
            return
        await asyncio.wait((upstream.start_probe(),), timeout=limit_s)


def _finding(upstream: ConfiguredUpstream, package: str) -> Finding:
    """Return what is found of a server. `package` is being fetched for it."""
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
    if entry.kind == "command" and state.start_s > _SLOW_START_S and not entry.shared and not entry.warm:
        what = f"{summary}, and takes {state.start_s:.1f} s to start, which delays each session's first call"
        return warning(check, what, f"set mcpServers.{upstream.name}.warm to prestart processes")
    return ok(check, f"{summary}, starts in {state.start_s:.1f} s" if entry.kind == "command" else summary)


def _is_missing(entry: UpstreamSettings) -> bool:
    """Return True if there is no program to start. A relative path is one in the working directory of the server."""
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
        if policy.hides_unusable:
            yield failure("policy", fault, f"{mend} the tool is hidden (policy.unusable_schemas)")
        else:
            yield warning("policy", fault, f"{mend} nothing checks the tool's arguments")
    for fault in found.unbound:
        yield warning("policy", fault, "name the argument as the tools' input schemas do, or remove it from bind")
    for fault in found.no_tasks:
        yield warning("tasks", fault, "correct the pattern: no call becomes a task at once by it")
    check = "have the server check these values, or write the pattern without look-around and backreferences"
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
