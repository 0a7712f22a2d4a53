"""One round trip to each configured server, as a session would make it."""

from collections.abc import AsyncIterator
from time import perf_counter
from typing import Final

from gateway.config.settings import ConfigurationError, Settings
from gateway.doctor.findings import Finding, bad, doubtful, good
from gateway.serving.gateway import Gateway
from gateway.upstreams.review import asking, review
from session_store import KeyRing, MemoryBackend

__all__ = ["check_servers"]

_SLOW_START_S: Final = 1.0


async def check_servers(settings: Settings) -> AsyncIterator[Finding]:
    """Start each command, reach each URL, and ask for its tools."""
    quiet = asking(settings)
    try:
        gateway = Gateway(quiet, store=MemoryBackend(), ring=KeyRing.ephemeral())
    except ConfigurationError as error:
        yield bad("configuration", str(error), "see docs/configuration.md")
        return
    began = perf_counter()
    async with gateway.running():
        for upstream in gateway.upstreams:
            check, entry = f"server {upstream.name}", upstream.settings
            facts = await upstream.facts()
            took_s = perf_counter() - began
            if facts.failure or facts.discovery is None:
                what = facts.failure or "it speaks neither era of MCP"
                if entry.url:
                    do = "see that the URL is its MCP endpoint, that it can be reached from here, and its headers"
                else:
                    do = f"run it by hand, as the gateway's user: {' '.join(entry.argv)[:200]}"
                yield bad(check, what, do)
                continue
            era = "2026-07-28" if facts.discover is not None else "the handshake era"
            words = f"answers, speaks {era}, has {len(facts.tools.listed)} tools"
            if entry.command and took_s > _SLOW_START_S and not entry.shared and not entry.warm:
                what = f"{words}, and takes {took_s:.1f} s to start: so long does a session's first call"
                yield doubtful(check, what, f"set mcpServers.{upstream.name}.warm to start some ahead")
            else:
                yield good(check, words)
        async for finding in _policy(gateway, quiet):
            yield finding


async def _policy(gateway: Gateway, settings: Settings) -> AsyncIterator[Finding]:
    policy = settings.gateway.policy
    found = await review(gateway.upstreams, policy.workspaces, gateway.calls)
    for fault in found.unmatched:
        yield bad("policy", fault, "correct the pattern: what it was to protect is not protected")
    for fault in found.unusable:
        if policy.check_arguments and policy.unusable_schemas == "refuse":
            yield bad("policy", fault, "mend the server; until then the tool is left out (policy.unusable_schemas)")
        else:
            yield doubtful("policy", fault, "mend the server; until then nothing checks the tool's arguments")
    for fault in found.unchecked if policy.check_arguments else ():
        yield doubtful("policy", fault, "let the server check what matches it, or write it without look-around")
    if not found.unmatched and not found.unusable:
        yield good("policy", "its patterns name what servers list, and their schemas can be used")
