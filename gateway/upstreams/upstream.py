"""The configured upstreams: what each of them speaks, and the conversations held with it."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import msgspec
from msgspec import structs

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.server_messages import IsolatedRouter, SharedRouter
from gateway.config.limits import LimitSettings
from gateway.config.upstreams import UpstreamSettings
from gateway.context.assertion import HEADER, Assertions
from gateway.context.facts import child_environment, facts_of, new_correlation_id
from gateway.context.link_resources import LinkResourceProvider, LinkResources
from gateway.context.secrets import PrincipalSecrets, is_template
from gateway.policy.quotas import PrincipalQuotas
from gateway.protocol.capabilities import Caller
from gateway.protocol.handshake import HandshakeRefused, discovery_of
from gateway.protocol.listing import Tools
from gateway.upstreams.inventory import Inventory
from session_store import Context, Session
from transports.era import Era
from transports.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    encode,
    encode_notification,
    encode_request,
    error_code,
    splice,
)
from transports.upstream_port import (
    ConnectOptions,
    LinkClosed,
    PrestartedLink,
    PrestartingUpstream,
    Upstream,
    UpstreamUnavailable,
)

__all__ = ["ConfiguredUpstream", "Prepared"]

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
_SHARED_HANDSHAKE: Final = encode(
    {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}, "sampling": {}, "roots": {}},
        "clientInfo": {"name": "mcp-session-gateway", "version": "0"},
    }
)


async def _ignored(_: str) -> None:
    """Nothing of a link that many sessions use is kept for one of them."""


async def _never_linked(_: LiveSession) -> bool:
    """What a server behind a URL holds in memory outlives our processes."""
    return False


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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A process that was started ahead: with what it was given, and by what environment it is known."""

    grant: LinkResources
    link: PrestartedLink
    env: Mapping[str, str]

    @property
    def is_good(self) -> bool:
        return self.link.is_unheard

    async def close(self) -> None:
        await self.link.close()
        self.grant.close()


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
        sandbox: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.settings = settings
        self._upstream = upstream
        self._limits = limits
        self._grants = grants
        self._record_use = record_use
        self._remote_session_changed = remote_session_changed
        self._assertions = assertions
        self._sandbox = settings.sandbox or sandbox
        self._credentials = credentials
        self._quotas = quotas
        self.restarts: Counter[str] = Counter()  # of its processes, by reason
        self._started_ahead = started_ahead
        self._secret_env = {name: value for name, value in settings.env.items() if is_template(value)}
        self._secret_headers = {name: value for name, value in settings.headers.items() if is_template(value)}
        self.inventory = Inventory(name, limits.start_timeout_s, _META)
        self.inventory.first = lambda: None if self._facts is None or self._facts.failure else self._facts.tools
        self.is_reviewed = not settings.tools  # whether its patterns are known to name what it lists
        self.permits: Callable[[Context, frozenset[str]], frozenset[str]] = lambda _, uris: (
            uris
        )  # `Admission.permitted`
        self._facts: _Facts | None = None
        self._probing: asyncio.Task[_Facts] | None = None
        self._probe_again_at = 0.0
        self._shared: dict[Era, Conversation] = {}
        self._shakes_hands: bool | None = None
        self._shaking: asyncio.Task[None] | None = None

    # -- what it speaks

    @property
    def schemas(self) -> Mapping[str, Any]:
        """Input schemas of the tools that mirror arguments in headers, as far as they are known."""
        return {} if self._facts is None else self._facts.tools.mirrored

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

    async def era_for(self, client: Era) -> Era:
        """In which era the server is talked to for such a client: in the client's own, if it speaks that."""
        facts = await self.facts()
        if facts.discover is None:
            return Era.LEGACY
        if client is Era.MODERN or not await self._speaks_legacy():
            return Era.MODERN
        return Era.LEGACY

    def era_now(self, client: Era) -> Era | None:
        """As `era_for`, None while it is not known."""
        if self._facts is None:
            return None
        if self._facts.discover is None:
            return Era.LEGACY
        return None if client is Era.LEGACY and not self._shakes_hands else client

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
        trial = self._new(Era.LEGACY, SharedRouter(), grant=_nothing, handshake=lambda: _SHARED_HANDSHAKE, restore=list)
        try:
            await trial.ready()
            self._shakes_hands = True
        except UpstreamUnavailable as error:
            logger.warning("server %s could not be asked for a handshake: %s", self.name, error)
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

    async def conversation_for(self, exchange: Exchange, client: Era, correlation: str) -> Conversation:
        """The conversation a call of such a client belongs to, in the era that is right for the two."""
        era = await self.era_for(client)
        if exchange.live is None:
            return self.sessionless(era)
        return self.conversation(exchange.live, era, correlation, exchange.caller)

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
            conversation = live.conversations[key] = self._new(
                era,
                IsolatedRouter(live),
                grant=lambda: self._grant(live, correlation, key),
                handshake=lambda: told.initialize_params() if told else live.session.client.initialize_params,
                restore=lambda: _restore(live, self.permits),
                remote_session_changed=lambda resume: self._remember(live, key, resume),
            )
        return conversation

    async def _grant(self, live: LiveSession, correlation: str, key: tuple[str, Era, bytes]) -> LinkResources:
        if self.settings.url:
            own = await self._credentials.fill(self._secret_headers, live.session.principal)
            return LinkResources(
                given=ConnectOptions(
                    headers=lambda: {**own, HEADER: self._assertions.of(live.session, self.settings.url)},
                    resume=_remembered(live, key)[1],
                    keep=lambda: live.goes_on,
                )
            )
        if self.settings.in_process:
            return self._grants.for_object(live.session)
        session = live.session
        env = await self._environment(session, correlation)
        ended = await self._quotas.process(session)
        try:
            granted = await self._ahead(session, env) or await self._for_child(session, env, correlation)
        except BaseException:
            ended()
            raise

        def close() -> None:
            granted.close()
            ended()

        return replace(granted, close=close)

    async def _environment(self, session: Session, correlation: str) -> dict[str, str]:
        """What a child is told of its session, and its principal's secrets."""
        env = child_environment(session, self.settings.context_env, correlation)
        return env | await self._credentials.fill(self._secret_env, session.principal)

    async def _for_child(self, session: Session, env: Mapping[str, str], correlation: str) -> LinkResources:
        sandbox = self._sandbox if session.context.trust != "direct" else ()
        return await self._grants.for_child(session, facts_of(session, correlation), env, sandbox, self.settings.env)

    async def prepare(self, session: Session) -> Prepared:
        """Start a process for a session that is not open yet. Raises `UpstreamUnavailable`."""
        upstream = cast("PrestartingUpstream", self._upstream)  # the settings let nothing else be warm
        correlation = new_correlation_id()
        env = await self._environment(session, correlation)
        grant = await self._for_child(session, env, correlation)
        try:
            link = await upstream.start(grant.given)
        except BaseException:
            grant.close()
            raise
        return Prepared(grant, link, self._known_by(env))

    async def _ahead(self, session: Session, env: Mapping[str, str]) -> LinkResources | None:
        """The process that was started ahead for that session, if it is what one started now would be."""
        part = self._started_ahead(session, self.name)
        if part is None:
            return None
        if not part.is_good or part.env != self._known_by(env):
            await part.close()
            return None
        return replace(part.grant, given=structs.replace(part.grant.given, started=part.link))

    def _known_by(self, env: Mapping[str, str]) -> dict[str, str]:
        """An environment, but for the correlation id of the request that it was made for."""
        requests = {name for name, fact in self.settings.context_env.items() if fact == "correlation_id"}
        return {name: value for name, value in env.items() if name not in requests}

    async def _remember(self, live: LiveSession, key: tuple[str, Era, bytes], resume: str) -> None:
        """A session of its own at the server is for every later link, on whatever replica."""
        old, known = _remembered(live, key)
        if resume != known:
            await self._remote_session_changed(live, old, _remote(key, resume) if resume else "")

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

    def _new(
        self, era: Era, router: Any, *, grant: Any, handshake: Any, restore: Any, remote_session_changed: Any = _ignored
    ) -> Conversation:
        return Conversation(
            self._upstream,
            era,
            name=self.name,
            router=router,
            grant=grant,
            handshake=handshake if era is Era.LEGACY else None,
            restore=restore if era is Era.LEGACY else list,
            record_use=_never_linked
            if self.settings.url
            else lambda live: self._record_use(live, f"{self.name}/{era}"),
            remote_session_changed=remote_session_changed,
            known=lambda: None if self._facts is None else self._facts.initialize,
            start_timeout_s=self._limits.start_timeout_s,
            call_timeout_s=self._limits.call_timeout_s,
            idle_stop_s=self.settings.idle_stop_s,
            suspend_s=self._limits.parked_s,
            restarts=self.restarts,
        )

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


def _remote(key: tuple[str, Era, bytes], resume: str) -> str:
    return encode([key[0], key[2].decode(), resume]).decode()


def _remembered(live: LiveSession, key: tuple[str, Era, bytes]) -> tuple[str, str]:
    """What the record says of the session at that server: as it stands there, and what it can be gone on with."""
    for entry in live.session.remote:
        name, capabilities, resume = msgspec.json.decode(entry, type=tuple[str, str, str])
        if (name, capabilities) == (key[0], key[2].decode()):
            return entry, resume
    return "", ""


async def _nothing() -> LinkResources:
    """A link of many sessions, or of none, is given nothing of any."""
    return LinkResources()


def _restore(live: LiveSession, permits: Callable[[Context, frozenset[str]], frozenset[str]]) -> list[bytes]:
    """What a legacy server has to hear again after the handshake was replayed."""
    session = live.session
    frames = [encode_notification("notifications/initialized", None)]
    if session.era == Era.MODERN:
        heard = frozenset().union(*(listening.wanted.uris for listening in live.listening))
        uris = sorted(permits(session.context, heard))
        return frames + [encode_request(f"restore-{uri}", "resources/subscribe", encode({"uri": uri})) for uri in uris]
    if not session.initialized:
        return []
    if session.log_level:
        frames.append(encode_request("restore-log-level", "logging/setLevel", encode({"level": session.log_level})))
    frames += [
        encode_request(f"restore-{uri}", "resources/subscribe", encode({"uri": uri}))
        for uri in sorted(permits(session.context, frozenset(session.subscriptions)))
    ]
    return frames
