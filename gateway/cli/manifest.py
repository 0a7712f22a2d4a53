"""Lists all tools of all configured servers with their schemas, without a running gateway: for reviews and diffs."""

from typing import Any, Final

from gateway.cli.explanation import context_of
from gateway.cli.options import Caller
from gateway.config.settings import Settings
from gateway.protocol.catalog import named
from gateway.protocol.listing import operation_of
from gateway.serving.gateway import Gateway
from gateway.upstreams.review import asking
from session_store import Context, KeyRing, MemoryBackend

__all__ = ["manifest"]

_ANYBODY: Final = Context(trust="direct")


async def manifest(settings: Settings, caller: Caller) -> dict[str, Any]:
    """Start each server, ask what it has, and stop it. A server that does not start is listed under `failed`. If the
    caller is not empty, only what the caller sees is listed.

    Raises:
        ConfigurationError: the settings cannot be served.
    """
    gateway = Gateway(asking(settings), store=MemoryBackend(), ring=KeyRing.ephemeral())
    tools, failed = [], {}
    context = None if caller == Caller() else (await context_of(gateway, settings, caller))[1].context
    async with gateway.running():
        for upstream in gateway.upstreams:
            facts = await upstream.facts()
            if facts.failure:
                failed[upstream.name] = facts.failure
            for tool in facts.tools.listed:
                decision = gateway.policy.decide(context or _ANYBODY, upstream.name, tool["name"], operation_of(tool))
                if context is None or decision.allowed:
                    shown = named(upstream.name, tool) if len(gateway.upstreams) > 1 else tool
                    tools.append({**shown, "server": upstream.name, "operation": decision.operation})
    return {"tools": tools} | ({"failed": failed} if failed else {})
