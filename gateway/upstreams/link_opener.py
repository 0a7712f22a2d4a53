"""Open links to one server: for one session, for many sessions, for no session, or to try a handshake. Implements
`LinkSource`."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import KW_ONLY, dataclass
from time import time
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec.structs import replace

from gateway.calls.link_manager import LinkSession
from gateway.calls.live_session import LiveSession
from gateway.calls.messages_for_operators import MessageRecorder
from gateway.config.upstreams import UpstreamSettings
from gateway.context.resources_for_links import LinkResources
from gateway.protocol.client_capabilities import ClientDeclaration
from gateway.protocol.handshake import lowest_level
from gateway.upstreams.link_env_and_headers import SessionResources
from gateway.upstreams.server_facts import KnownFacts
from session_store import Context, Session, TimelineEntry
from session_store.session import redact
from transports.era import Era
from transports.jsonrpc import encode, encode_notification, encode_request
from transports.upstream_port import ConnectOptions, Link, LinkEvents, Upstream

logger = logging.getLogger(__name__)

Key = tuple[str, Era, bytes]
"""The key of a session's conversation with a server: server, era, and the capabilities that the handshake declares."""

Start = Literal["started", "failed"]
"""The outcome of opening a link, used as the key of a counter."""

Permits = Callable[[Context, frozenset[str]], frozenset[str]]

_START_TIMES: Final = 100
_MOST_RESTORED: Final = 10_000
"""Maximum number of resources to which a new process is subscribed at once, for all its sessions."""
_NO_HANDSHAKE: Final = "it has no handshake: its first answer says that it is ready"
_SHARED_HANDSHAKE: Final = encode(
    {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}, "sampling": {}, "roots": {}},
        "clientInfo": {"name": "mcp-session-gateway", "version": "0"},
    }
)
_INITIALIZED: Final = encode_notification("notifications/initialized", None)


class SessionRecorder(Protocol):
    """The part of `gateway.sessions.record_changes.SessionRecords` that links use. The methods are described there."""

    async def record_use(self, live: LinkSession, upstream: str) -> bool: ...
    async def remote_session_changed(self, live: LiveSession, old: str, new: str) -> None: ...
    def add_entry(self, session: Session, entry: TimelineEntry) -> None: ...


@dataclass(eq=False, repr=False)
class UpstreamLinks:
    """Open the links to one server, and count and record them. `SharedLinks` and `SessionLinks` use it.

    `restarts` counts replaced links by reason, `starts` counts opened and failed links. `start_times_s` has the seconds
    that opening each of the last links took.
    """

    name: str
    upstream: Upstream
    """The transport that opens a link to the server."""
    resources: SessionResources
    _: KW_ONLY
    settings: UpstreamSettings
    records: SessionRecorder
    """Writes to the record of a session."""
    permits: Permits
    """Returns those resource URIs to which sessions with a context may subscribe."""
    known: KnownFacts
    """The facts from the gateway's last probe of the server."""

    def __post_init__(self) -> None:
        self.restarts: Counter[str] = Counter()
        self.starts: Counter[Start] = Counter()
        self.start_failure = (0.0, "")  # when the last start failed (Unix time), and why
        self.start_times_s: deque[float] = deque(maxlen=_START_TIMES)
        self._awaited: dict[LiveSession | None, list[Callable[[], None]]] = {}
        self.is_gateway = self.settings.is_gateway

    def connect(self, options: ConnectOptions, events: LinkEvents) -> Coroutine[Any, Any, Link]:
        """Open a link. Raises `UpstreamUnavailable`."""
        return self.upstream.connect(replace(options, schemas=self.known.mirrored_schemas), events)

    def when_started(self, live: LiveSession | None, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once the next link of a session is open; with `live` None, the next link that belongs to no
        session. Return a function that cancels this."""
        self._awaited.setdefault(live, []).append(callback)

        def take_back() -> None:
            waiting = self._awaited.get(live, [])
            if callback in waiting:
                waiting.remove(callback)
            if not waiting:
                self._awaited.pop(live, None)

        return take_back

    def forget(self, live: LiveSession) -> None:
        """Drop the callbacks of a session that has ended."""
        self._awaited.pop(live, None)

    def started(
        self, pid: int | None, took_s: float, correlation: str, live: LiveSession | None, why: str = ""
    ) -> None:
        """Log an opened link with its session, add it to the session's timeline with the reason `why`, and run the
        callbacks of `when_started`."""
        self.start_times_s.append(took_s)
        for callback in self._awaited.pop(live, ()):
            asyncio.get_running_loop().call_soon(callback)
        session = None if live is None else live.session
        fields: dict[str, Any] = {"server": self.name, "took_s": round(took_s, 3), "correlation": correlation}
        if pid is not None:
            fields["pid"] = pid
        if session is not None:
            context = session.context
            self.note(session, "started", correlation, took_s=took_s, why=why)
            fields |= {"session": redact(session.id), "workspace": context.workspace, "trust": context.trust}
        what = "server connected" if pid is None else "process started"
        logger.info(what, extra={name: value for name, value in fields.items() if value != "" or name == "correlation"})

    def answered(self) -> None:
        """Count one more link as started: called when the server has answered over it."""
        self.starts["started"] += 1

    def failed(self, why: str) -> None:
        """Count a link that could not be opened, or that was lost before its server answered."""
        self.starts["failed"] += 1
        self.start_failure = (time(), why)

    def note(self, session: Session, name: str, correlation: str = "", *, took_s: float = 0.0, why: str = "") -> None:
        """Add an event of a session's link to this server to the timeline of the session. `name`: what happened.
        `took_s`: how long it took, in seconds; the event is dated at its beginning. `why`: the reason, if any."""
        at, took_s = round(time() - took_s, 3), round(took_s, 3)
        self.records.add_entry(
            session, TimelineEntry(at, "server", self.name, name, took_s=took_s, correlation=correlation, why=why)
        )

    async def record_use(self, live: LinkSession, era: Era) -> bool:
        """Store in a session's record that the session has a link to the server in `era`. Return True if the session
        has lost an earlier link, as its record shows. For a server behind a URL, which does not end with the gateway,
        store nothing and return False."""
        return False if self.settings.is_remote else await self.records.record_use(live, f"{self.name}/{era}")


class SharedLinks:
    """Open links that belong to no session, or to several. Such a link gets no environment or secrets of a session.

    `users` returns the sessions that share the links. `is_trial`: True if one link is opened only to test if the server
    accepts a handshake.
    """

    def __init__(
        self,
        links: UpstreamLinks,
        era: Era,
        *,
        users: Callable[[], Iterable[LinkSession | None]] = tuple,
        is_trial: bool = False,
    ) -> None:
        self._links = links
        self._users = users
        self._is_trial = is_trial
        self.name = links.name
        self.era = era
        self.session = self.principal = ""
        self.is_gateway = links.is_gateway
        self.recorder: MessageRecorder | None = None
        self.resources = links.resources.shared
        self.connect = links.connect
        self.known_handshake = links.known.handshake
        self.answered, self.failed = links.answered, links.failed

    def secrets(self, given: ConnectOptions) -> set[str]:
        """Return no secrets: no operator can watch the messages of these links."""
        return set()

    def handshake(self) -> bytes | None:
        return _SHARED_HANDSHAKE if self.era is Era.LEGACY else None

    def replay(self) -> list[bytes]:
        if self._is_trial:
            return []
        lives = [live for live in self._users() if isinstance(live, LiveSession)]
        return [_INITIALIZED, *_settings(lives, self._links.permits)]

    async def record_use(self, live: LinkSession) -> bool:
        return await self._links.record_use(live, self.era)

    async def remote_session_changed(self, resume: str) -> None:
        """Do nothing: the link belongs to no single session, so the id is stored in no session's record."""

    def started(self, pid: int | None, took_s: float, correlation: str) -> None:
        self._links.started(pid, took_s, correlation, None)

    def restarted(self, reason: str) -> None:
        self._links.restarts[reason] += 1


class SessionLinks:
    """Open the links of one session in one conversation, with the context (rights) that the session has when this
    object is made.

    `key`: that of the conversation (server, era, and capabilities of the client). `declaration`: that of the modern
    client, which a legacy server gets in the handshake; None if the session's own client has sent `initialize`.
    `correlation`: the correlation id of the request for which the first link is opened.
    """

    __slots__ = """_context _correlation _declaration _key _links _live _renewals era is_gateway name""".split()

    def __init__(
        self, links: UpstreamLinks, live: LiveSession, key: Key, declaration: ClientDeclaration | None, correlation: str
    ) -> None:
        self.name, self.is_gateway, self.era = links.name, links.is_gateway, key[1]
        self._links = links
        self._live = live
        self._context, self._renewals = live.session.context, live.renewals
        self._key = key
        self._declaration = declaration
        self._correlation = correlation

    @property
    def _is_former(self) -> bool:
        """Return True if the session's context (rights) has changed since this object was made. The links then serve
        only calls in flight, and resume no MCP session of a server behind a URL."""
        return self._live.renewals != self._renewals

    @property
    def session(self) -> str:
        return redact(self._live.session.id)

    @property
    def principal(self) -> str:
        return str(self._live.session.principal)

    async def resources(self) -> LinkResources:
        resume = "" if self._is_former else _recorded(self._live, self._key)[1]
        context = self._context if self._is_former else self._live.session.context
        found = await self._links.resources.of(self._live, context, self._correlation, resume)
        if self.recorder is not None:
            self.recorder.hide(self.secrets(found.given) | found.file_values)
        return found

    @property
    def recorder(self) -> MessageRecorder | None:
        return self._live.recorder

    def secrets(self, given: ConnectOptions) -> set[str]:
        return self._links.resources.secrets(given)

    def connect(self, options: ConnectOptions, events: LinkEvents) -> Coroutine[Any, Any, Link]:
        return self._links.connect(options, events)

    def handshake(self) -> bytes | None:
        if self.era is not Era.LEGACY:
            return None
        if self._declaration is not None:
            return self._declaration.initialize_params()
        return self._live.session.client.initialize_params

    def known_handshake(self) -> bytes | None:
        return self._links.known.handshake()

    def replay(self) -> list[bytes]:
        if self._live.session.era != Era.MODERN and not self._live.session.initialized:
            return []
        return [_INITIALIZED, *_settings([self._live], self._links.permits)]

    async def record_use(self, live: LinkSession) -> bool:
        return await self._links.record_use(live, self.era)

    async def remote_session_changed(self, resume: str) -> None:
        """Store the id `resume` of the MCP session that the server has created in the record of the gateway's session,
        so that later links on any replica can resume it. An empty id removes the stored one."""
        if self._is_former:
            return
        entry, known = _recorded(self._live, self._key)
        if resume != known:
            changed = encode([self._key[0], self._key[2].decode(), resume]).decode() if resume else ""
            await self._links.records.remote_session_changed(self._live, entry, changed)

    def started(self, pid: int | None, took_s: float, correlation: str) -> None:
        why = _NO_HANDSHAKE if self.era is Era.MODERN and pid is not None else ""
        self._links.started(pid, took_s, correlation, self._live, why)

    def answered(self) -> None:
        self._links.answered()

    def failed(self, why: str) -> None:
        self._links.failed(why)
        self._links.note(self._live.session, "failed to start", why=why)

    def restarted(self, reason: str) -> None:
        self._links.restarts[reason] += 1
        self._links.note(self._live.session, "replaced", why=reason)


def _recorded(live: LiveSession, key: Key) -> tuple[str, str]:
    """Return the entry (JSON) in the session's record for the conversation with this `key`, and the MCP session id in
    the entry, which a link can resume. Both are empty if there is no entry."""
    for entry in live.session.remote:
        name, capabilities, resume = msgspec.json.decode(entry, type=tuple[str, str, str])
        if (name, capabilities) == (key[0], key[2].decode()):
            return entry, resume
    return "", ""


def _settings(lives: Iterable[LiveSession], permits: Permits) -> list[bytes]:
    """Return the requests that bring a new process up to date: they set the lowest log level of the sessions `lives`,
    and make those subscriptions of these sessions that policy permits, up to `_MOST_RESTORED`."""
    level = lowest_level({live.session.log_level for live in lives})
    uris = set[str]()
    for live in lives:
        wanted = frozenset(live.session.subscriptions).union(*(each.wanted.uris for each in live.subscriptions))
        uris |= permits(live.session.context, wanted)
    frames = [
        encode_request(f"restore-{uri}", "resources/subscribe", encode({"uri": uri}))
        for uri in sorted(uris)[:_MOST_RESTORED]
    ]
    if not level:
        return frames
    return [encode_request("restore-log-level", "logging/setLevel", encode({"level": level})), *frames]
