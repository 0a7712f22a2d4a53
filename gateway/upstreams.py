"""The configured upstreams: what each of them speaks, and the conversations held with it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from gateway.access import Grant, Grants
from gateway.context import child_environment, facts_of
from gateway.conversation import Conversation, HandshakeRefused
from gateway.live import LiveSession
from gateway.routing import IsolatedRouter, SharedRouter
from gateway.settings import LimitSettings, UpstreamSettings
from transports.base import Era, LinkClosed, Upstream, UpstreamUnavailable
from transports.jsonrpc import encode, encode_notification, encode_request, splice

__all__ = ["ConfiguredUpstream"]

logger = logging.getLogger(__name__)

_MODERN: Final = "2026-07-28"
_PAGES: Final = 100
PROBE_TIMEOUT_S: Final = 9.0
"""How long a client's discover may wait for the probe; SDK clients wait 10 s."""
PROBE_AGAIN_S: Final = 5.0
"""How long a server that could not be started is left alone."""

_META: Final = {
    "io.modelcontextprotocol/protocolVersion": _MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "mcp-session-gateway", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_SHARED_HANDSHAKE: Final = encode(
    {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}, "sampling": {}, "roots": {}},
        "clientInfo": {"name": "mcp-session-gateway", "version": "0"},
    }
)


@dataclass(slots=True)
class _Facts:
    """What the probe found: the answer to `server/discover`, or that the server knows no such thing."""

    discover: bytes | None = None
    failure: str = ""
    schemas: dict[str, Any] = field(default_factory=dict)


class ConfiguredUpstream:
    """One entry of the configuration at work."""

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        upstream: Upstream,
        limits: LimitSettings,
        *,
        grants: Grants,
        linked: Callable[[LiveSession, str], Awaitable[bool]],
    ) -> None:
        self.name = name
        self.settings = settings
        self._upstream = upstream
        self._limits = limits
        self._grants = grants
        self._linked = linked
        self._facts: _Facts | None = None
        self._probing: asyncio.Task[_Facts] | None = None
        self._probe_again_at = 0.0
        self._shared: dict[Era, Conversation] = {}

    # -- what it speaks

    def probe(self) -> asyncio.Task[_Facts]:
        """Find out, in the background, what the server speaks. One probe at a time."""
        if self._probing is None:
            self._probing = asyncio.create_task(self._probe())
        return self._probing

    async def facts(self) -> _Facts:
        """What the last probe found. After a failure it is made again, in the background: a mended server is found.

        A server that has said nothing yet counts as legacy, so that clients fall back instead of waiting for it.
        """
        if self._facts is not None:
            if self._facts.failure and time.monotonic() >= self._probe_again_at:
                self.probe()
            return self._facts
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await asyncio.shield(self.probe())
        except TimeoutError:
            return _Facts()

    async def speaks_modern(self) -> bool:
        return (await self.facts()).discover is not None

    async def _probe(self) -> _Facts:
        try:
            self._facts = await self._ask_what_it_speaks()
        finally:
            self._probing = None
            self._probe_again_at = time.monotonic() + PROBE_AGAIN_S
        return self._facts

    async def _ask_what_it_speaks(self) -> _Facts:
        conversation = self.sessionless()
        try:
            await conversation.ready()
            async with asyncio.timeout(self._limits.start_timeout_s):
                answer = await conversation.ask("server/discover", encode({"_meta": _META}))
            if isinstance(answer.result, msgspec.Raw):
                facts = _Facts(discover=splice(answer.result))
                facts.schemas = await self._header_schemas(conversation)
                return facts
        except (UpstreamUnavailable, HandshakeRefused) as error:
            logger.warning("probe: %s", error)
            return _Facts(failure=str(error))
        except (TimeoutError, LinkClosed, msgspec.MsgspecError):
            pass  # old servers are silent, or end, when the first message is no handshake
        logger.info("server %s speaks the legacy era only", self.name)
        self._shared.pop(Era.MODERN, None)
        await conversation.close()
        return _Facts()

    async def _header_schemas(self, conversation: Conversation) -> dict[str, Any]:
        """Input schemas of the tools that mirror arguments in headers (MCP 2026-07-28, `x-mcp-header`)."""
        return {
            tool["name"]: tool["inputSchema"]
            async for tool in self._tools(conversation)
            if b'"x-mcp-header"' in encode(tool.get("inputSchema"))
        }

    async def _tools(self, conversation: Conversation) -> AsyncIterator[Any]:
        """All tools of the server, page by page."""
        params: dict[str, Any] = {"_meta": _META} if conversation.era is Era.MODERN else {}
        for _ in range(_PAGES):
            answer = await conversation.ask("tools/list", encode(params))
            if not isinstance(answer.result, msgspec.Raw):
                return
            page = msgspec.json.decode(answer.result)
            for tool in page.get("tools", ()):
                yield tool
            if not page.get("nextCursor"):
                return
            params["cursor"] = page["nextCursor"]

    async def is_repeatable(self, tool: str, conversation: Conversation) -> bool:
        """Whether a tool says of itself that calling it twice does no more than calling it once (ToolAnnotations)."""
        await conversation.ready()
        async for listed in self._tools(conversation):
            if listed["name"] == tool:
                hints = listed.get("annotations") or {}
                return bool(hints.get("readOnlyHint") or hints.get("idempotentHint"))
        return False

    # -- conversations

    def sessionless(self) -> Conversation:
        """The modern conversation that serves lists to clients which have no session yet."""
        return self._common(Era.MODERN)

    def conversation(self, live: LiveSession, era: Era, correlation: str) -> Conversation:
        """The conversation of a session; a shared server has one for all.

        Raises:
            UpstreamUnavailable: the session ended meanwhile, and nothing may be started for it any more.
        """
        if live.ended:
            raise UpstreamUnavailable("the session has ended")
        if self.settings.shared:
            return self._common(era)
        key = (self.name, era)
        conversation = live.conversations.get(key)
        if conversation is None:
            conversation = live.conversations[key] = self._new(
                era,
                IsolatedRouter(live),
                grant=lambda: self._grant(live, correlation),
                handshake=lambda: live.session.client.initialize_params or _SHARED_HANDSHAKE,
                restore=lambda: _restore(live),
            )
        return conversation

    async def _grant(self, live: LiveSession, correlation: str) -> Grant:
        if self.settings.in_process:
            return self._grants.for_object(live.session)
        env = child_environment(live.session, self.settings.context_env, correlation)
        return await self._grants.for_child(live.session, facts_of(live.session, correlation), env)

    def _common(self, era: Era) -> Conversation:
        conversation = self._shared.get(era)
        if conversation is None:
            conversation = self._shared[era] = self._new(
                era,
                SharedRouter(),
                grant=_nothing,
                handshake=lambda: _SHARED_HANDSHAKE,
                restore=lambda: [encode_notification("notifications/initialized", None)],
            )
        return conversation

    def _new(self, era: Era, router: Any, *, grant: Any, handshake: Any, restore: Any) -> Conversation:
        return Conversation(
            self._upstream,
            era,
            name=self.name,
            router=router,
            grant=grant,
            handshake=handshake if era is Era.LEGACY else None,
            restore=restore if era is Era.LEGACY else list,
            linked=lambda live: self._linked(live, f"{self.name}/{era}"),
            start_timeout_s=self._limits.start_timeout_s,
            call_timeout_s=self._limits.call_timeout_s,
            idle_stop_s=self.settings.idle_stop_s,
        )

    def forget(self, live: LiveSession) -> None:
        """That session is over."""
        for conversation in self._shared.values():
            conversation.forget(live)

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await asyncio.gather(*(c.close() for c in self._shared.values()))


async def _nothing() -> Grant:
    """A link of many sessions, or of none, is given nothing of any."""
    return Grant()


def _restore(live: LiveSession) -> list[bytes]:
    """What a legacy server has to hear again after the handshake was replayed."""
    session = live.session
    if not session.initialized:
        return []
    frames = [encode_notification("notifications/initialized", None)]
    if session.log_level:
        frames.append(encode_request("restore-log-level", "logging/setLevel", encode({"level": session.log_level})))
    frames += [
        encode_request(f"restore-{uri}", "resources/subscribe", encode({"uri": uri})) for uri in session.subscriptions
    ]
    return frames
