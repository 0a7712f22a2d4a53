"""The configured upstreams: what each of them speaks, and the conversations held with it."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from gateway.calls.call import Call
from gateway.calls.conversation import Conversation
from gateway.calls.deadlines import Deadlines
from gateway.calls.live_session import LiveSession
from gateway.calls.server_messages import IsolatedRouter, SharedRouter
from gateway.config.limits import LimitSettings
from gateway.config.upstreams import UpstreamSettings
from gateway.context.assertion import Assertions
from gateway.context.link_resources import LinkResourceProvider
from gateway.context.secrets import PrincipalSecrets
from gateway.policy.quotas import PrincipalQuotas
from gateway.protocol.capabilities import Caller
from gateway.protocol.handshake import HandshakeRefused, discovery_of
from gateway.protocol.listing import Tools
from gateway.upstreams.inventory import Inventory
from gateway.upstreams.link_source import SessionLinks, SharedLinks, TrialLinks, UpstreamLinks
from gateway.upstreams.session_resources import Prepared, SessionResources
from session_store import Context, Session
from transports.era import Era
from transports.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    encode,
    error_code,
    splice,
)
from transports.upstream_port import (
    LinkClosed,
    PrestartingUpstream,
    Upstream,
    UpstreamUnavailable,
)

__all__ = ["ConfiguredUpstream"]

logger = logging.getLogger(__name__)

_MODERN: Final = "2026-07-28"
_NO_HANDSHAKE: Final = frozenset({METHOD_NOT_FOUND, INVALID_REQUEST, -32022})
"""How a server says that it knows no `initialize`: no such method, no such request, no such version."""
PROBE_TIMEOUT_S: Final = 9.0
"""How long a client's discover may wait for the probe; SDK clients wait 10 s."""
PROBE_AGAIN_S: Final = 5.0
"""How long a server that could not be started is left alone."""

_META: Final = {
    "io.modelcontextprotocol/protocolVersion": _MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "mcp-session-gateway", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(slots=True)
class _Facts:
    """What the probe found: the answer to `server/discover`, or else that to `initialize`."""

    discover: bytes | None = None
    initialize: bytes | None = None
    failure: str = ""
    tools: Tools = field(default_factory=Tools)

    @property
    def discovery(self) -> bytes | None:
        """What modern clients are told."""
        return discovery_of(self.initialize) if self.initialize is not None else self.discover


class ConfiguredUpstream:
    """One entry of the configuration at work."""

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        upstream: Upstream,
        limits: LimitSettings,
        *,
        grants: LinkResourceProvider,
        record_use: Callable[[LiveSession, str], Awaitable[bool]],
        remote_session_changed: Callable[[LiveSession, str, str], Awaitable[None]],
        assertions: Assertions,
        credentials: PrincipalSecrets,
        quotas: PrincipalQuotas,
        started_ahead: Callable[[Session, str], "Prepared | None"],
        permits: Callable[[Context, frozenset[str]], frozenset[str]],
        sandbox: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.settings = settings
        self._upstream = upstream
        self._limits = limits
        self._deadlines = Deadlines(
            start_s=limits.start_timeout_s,
            call_s=limits.call_timeout_s,
            suspended_s=limits.parked_s,
            idle_stop_s=settings.idle_stop_s,
        )
        self._resources = SessionResources(
            settings,
            grants=grants,
            assertions=assertions,
            credentials=credentials,
            quotas=quotas,
            started_ahead=lambda session: started_ahead(session, name),
            sandbox=settings.sandbox or sandbox,
        )
        self._links = UpstreamLinks(
            name,
            upstream,
            self._resources,
            is_url=bool(settings.url),
            record_use=record_use,
            remote_session_changed=remote_session_changed,
            permits=permits,
            probed=lambda: self._facts,
        )
        self.inventory = Inventory(name, limits.start_timeout_s, _META)
        self.inventory.first = lambda: None if self._facts is None or self._facts.failure else self._facts.tools
        self.is_reviewed = not settings.tools  # whether its patterns are known to name what it lists
        self.permits = permits
        self._facts: _Facts | None = None
        self._probing: asyncio.Task[_Facts] | None = None
        self._probe_again_at = 0.0
        self._shared: dict[Era, Conversation] = {}
        self._shakes_hands: bool | None = None
        self._shaking: asyncio.Task[None] | None = None

    def mark_reviewed(self) -> None:
        """Its patterns are known to name what it lists."""
        self.is_reviewed = True

    @property
    def restarts(self) -> Counter[str]:
        """Links that replaced an earlier one, by reason."""
        return self._links.restarts

    # -- what it speaks

    @property
    def has_answered(self) -> bool:
        """Whether it is known what the server lists."""
        return self._facts is not None and not self._facts.failure and self._facts.discovery is not None

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

    def era_now(self, client: Era) -> Era | None:
        """In which era the server is spoken to for such a client: in the client's own, if the server speaks that. None
        while it is not known."""
        return None if self._facts is None else _era(self._facts, client, shakes_hands=self._shakes_hands)

    async def era_for(self, client: Era) -> Era:
        """As `era_now`, once it is known."""
        facts = await self.facts()
        era = _era(facts, client, shakes_hands=self._shakes_hands)
        return era or _era(facts, client, shakes_hands=await self._speaks_legacy()) or Era.LEGACY

    async def capabilities(self) -> Any:
        """What the server says it can do, as the probe has heard."""
        return msgspec.json.decode((await self.facts()).discovery or b"{}").get("capabilities", {})

    async def _speaks_legacy(self) -> bool:
        """Whether a server that can be discovered shakes hands as well. Tried once, in a process of its own: a server
        that speaks both eras decides for one with its first message."""
        if self._shakes_hands is None:
            if self._shaking is None:
                self._shaking = asyncio.create_task(self._shake_hands())
            await asyncio.shield(self._shaking)
        return self._shakes_hands is not False

    async def _shake_hands(self) -> None:
        trial = Conversation(TrialLinks(self._links), SharedRouter(), self._deadlines)
        try:
            await trial.ready()
            self._shakes_hands = True
        except UpstreamUnavailable as error:
            logger.warning("the handshake with server %s could not be tried: %s", self.name, error)
        except HandshakeRefused as error:
            # Any other error is about this handshake, and for the client that comes with its own.
            self._shakes_hands = error_code(error.error) not in _NO_HANDSHAKE
        finally:
            self._shaking = None
            await trial.close()

    async def _probe(self) -> _Facts:
        try:
            self._facts = await self._ask_what_it_speaks()
        finally:
            self._probing = None
            self._probe_again_at = time.monotonic() + PROBE_AGAIN_S
        return self._facts

    async def _ask_what_it_speaks(self) -> _Facts:
        conversation = self.sessionless(Era.MODERN)
        try:
            await conversation.ready()
            async with asyncio.timeout(self._limits.start_timeout_s):
                answer = await conversation.ask("server/discover", encode({"_meta": _META}))
            if isinstance(answer.result, msgspec.Raw):
                facts = _Facts(discover=splice(answer.result))
                facts.tools = Tools(await self.inventory.items("tools/list", conversation))
                return facts
        except (UpstreamUnavailable, HandshakeRefused) as error:
            logger.warning("probe: %s", error)
            return _Facts(failure=str(error))
        except (TimeoutError, LinkClosed, msgspec.MsgspecError):
            pass  # old servers are silent, or end, when the first message is no handshake
        logger.info("server %s speaks the legacy era only", self.name)
        self._shared.pop(Era.MODERN, None)
        await conversation.close()
        conversation = self.sessionless(Era.LEGACY)
        try:
            await conversation.ready()
        except UpstreamUnavailable as error:
            logger.warning("probe: %s", error)
            return _Facts(failure=str(error))
        except HandshakeRefused:
            return _Facts()
        facts = _Facts(initialize=conversation.initialize_result)
        with contextlib.suppress(LinkClosed, TimeoutError, msgspec.MsgspecError):
            async with asyncio.timeout(self._limits.start_timeout_s):
                facts.tools = Tools(await self.inventory.items("tools/list", conversation))
        return facts

    @property
    def shared(self) -> Iterable[Conversation]:
        """Those that belong to no session."""
        return self._shared.values()

    async def is_repeatable(self, tool: str, conversation: Conversation) -> bool:
        """Whether a tool says of itself that calling it twice does no more than calling it once (ToolAnnotations)."""
        await conversation.ready()
        for listed in await self.inventory.items("tools/list", conversation):
            if listed["name"] == tool:
                hints = listed.get("annotations") or {}
                return bool(hints.get("readOnlyHint") or hints.get("idempotentHint"))
        return False

    # -- conversations

    async def conversation_for(self, call: Call) -> Conversation:
        """The conversation that a call belongs to, in the era that is right for its client and this server."""
        era, exchange = await self.era_for(call.era), call.exchange
        if exchange.live is None:
            return self.sessionless(era)
        return self.conversation(exchange.live, era, call.correlation, exchange.caller)

    def open_with(self, live: LiveSession) -> Conversation | None:
        """The conversation that a session has already, in whatever era; None while it has none."""
        if self.settings.shared:
            return next(iter(self._shared.values()), None)
        return next((held for (name, *_), held in live.conversations.items() if name == self.name), None)

    def sessionless(self, era: Era) -> Conversation:
        """The conversation that serves lists to clients which have no session yet."""
        return self._common(era)

    def conversation(self, live: LiveSession, era: Era, correlation: str, caller: Caller | None = None) -> Conversation:
        """The conversation of a session; a shared server has one for all. `caller` is a client of the modern era, of
        which a legacy server is told in its handshake: what it declares is fixed there, so others need others.

        Raises:
            UpstreamUnavailable: the session ended meanwhile, and nothing may be started for it any more.
        """
        if live.ended:
            raise UpstreamUnavailable("the session has ended")
        if self.settings.shared:
            return self._common(era)
        told = caller if era is Era.LEGACY else None
        key = (self.name, era, told.capabilities if told is not None else b"")
        conversation = live.conversations.get(key)
        if conversation is None:
            source = SessionLinks(self._links, live, key, told, correlation)
            conversation = live.conversations[key] = Conversation(source, IsolatedRouter(live), self._deadlines)
        return conversation

    async def prepare(self, session: Session) -> Prepared:
        """Start a process for a session that is not open yet. Raises `UpstreamUnavailable`."""
        # The settings allow prestarted processes for no other upstream.
        return await self._resources.prepare(session, cast("PrestartingUpstream", self._upstream))

    def _common(self, era: Era) -> Conversation:
        conversation = self._shared.get(era)
        if conversation is None:
            source = SharedLinks(self._links, era)
            conversation = self._shared[era] = Conversation(source, SharedRouter(), self._deadlines)
        return conversation

    def forget(self, live: LiveSession) -> None:
        """That session is over."""
        for conversation in self._shared.values():
            conversation.forget(live)

    async def close(self) -> None:
        tasks = [task for task in (self._probing, self._shaking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(c.close() for c in self._shared.values()))
        await self._upstream.close()


def _era(facts: _Facts, client: Era, *, shakes_hands: bool | None) -> Era | None:
    """The era for such a client. A server that answers no discovery speaks the legacy era; any other the modern one,
    and the legacy one as well if it `shakes_hands` (None: not known)."""
    if facts.discover is None:
        return Era.LEGACY
    if client is Era.MODERN or shakes_hands is False:
        return Era.MODERN
    return Era.LEGACY if shakes_hands else None
