"""Checks each configured server by one round trip, as a session would make it, and the policy against its lists."""

from collections.abc import AsyncIterator
from time import perf_counter
from typing import Final

from gateway.config.settings import ConfigurationError, Settings
from gateway.doctor.findings import Finding, failure, ok, warning
from gateway.serving.gateway import Gateway
from gateway.upstreams.review import asking, review
from session_store import KeyRing, MemoryBackend

__all__ = ["check_servers"]

_SLOW_START_S: Final = 1.0


async def check_servers(settings: Settings) -> AsyncIterator[Finding]:
    """Start each command, connect to each URL, and list its tools."""
    quiet = asking(settings)
    try:
        gateway = Gateway(quiet, store=MemoryBackend(), ring=KeyRing.ephemeral())
    except ConfigurationError as error:
        yield failure("configuration", str(error), "see docs/configuration.md")
        return
    began = perf_counter()
    async with gateway.running():
        for upstream in gateway.upstreams:
            check, entry = f"server {upstream.name}", upstream.settings
            facts = await upstream.facts()
            took_s = perf_counter() - began
            if not facts.has_answered:
                what = facts.failure or "it supports no MCP version of this gateway"
                if entry.url:
                    do = "check the headers, that the URL is its MCP endpoint, and that it can be reached from here"
                else:
                    do = f"run it by hand, as the gateway's user: {' '.join(entry.argv)[:200]}"
                yield failure(check, what, do)
                continue
            era = "2026-07-28" if facts.discover is not None else "2025-11-25 or older"
            summary = f"answers, speaks {era}, has {len(facts.tools.listed)} tools"
            if entry.command and took_s > _SLOW_START_S and not entry.shared and not entry.warm:
                what = f"{summary}, and takes {took_s:.1f} s to start, which delays each session's first call"
                yield warning(check, what, f"set mcpServers.{upstream.name}.warm to prestart processes")
            else:
                yield ok(check, summary)
        async for finding in _policy(gateway, quiet):
            yield finding


async def _policy(gateway: Gateway, settings: Settings) -> AsyncIterator[Finding]:
    policy = settings.gateway.policy
    found = await review(gateway.upstreams, policy.workspaces, gateway.calls)
    for fault in found.unmatched:
        yield failure("policy", fault, "correct the pattern: it matches nothing, so it protects nothing")
    for fault in found.unusable:
        if policy.check_arguments and policy.unusable_schemas == "refuse":
            yield failure(
                "policy",
                fault,
                "correct the schema in the server; until then the tool is hidden (policy.unusable_schemas)",
            )
        else:
            yield warning(
                "policy", fault, "correct the schema in the server; until then nothing checks the tool's arguments"
            )
    for fault in found.unbound:
        yield warning("policy", fault, "name the argument as the tools' input schemas do, or remove it from bind")
    for fault in found.unchecked if policy.check_arguments else ():
        yield warning(
            "policy",
            fault,
            "have the server check these values, or write the pattern without look-around and backreferences",
        )
    if not found.unmatched and not found.unusable:
        yield ok("policy", "all patterns match something the servers list, and the tools' input schemas are valid")
