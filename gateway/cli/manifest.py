"""Lists all tools of all configured servers with their schemas, without a running gateway: for reviews and diffs."""

from typing import Any

from gateway.config.settings import Settings
from gateway.protocol.catalog import named
from gateway.protocol.listing import operation_of
from gateway.serving.gateway import Gateway
from gateway.upstreams.review import asking
from session_store import Context, KeyRing, MemoryBackend

__all__ = ["manifest"]


async def manifest(settings: Settings) -> dict[str, Any]:
    """Start each server, ask what it has, and stop it. A server that does not start is listed under `failed`.

    Raises:
        ConfigurationError: the settings cannot be served.
    """
    gateway = Gateway(asking(settings), store=MemoryBackend(), ring=KeyRing.ephemeral())
    tools, failed = [], {}
    async with gateway.running():
        for upstream in gateway.upstreams:
            facts = await upstream.facts()
            if facts.failure:
                failed[upstream.name] = facts.failure
            for tool in facts.tools.listed:
                context, annotated = Context(trust="direct"), operation_of(tool)
                operation = gateway.policy.decide(context, upstream.name, tool["name"], annotated).operation
                shown = named(upstream.name, tool) if len(gateway.upstreams) > 1 else tool
                tools.append({**shown, "server": upstream.name, "operation": operation})
    return {"tools": tools} | ({"failed": failed} if failed else {})
