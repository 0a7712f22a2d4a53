"""Learn which clients come back to the sessions that they open, which never do, and which share a default session.

A session of a modern client (MCP 2026-07-28) is watched from its opening until its second request. Until then, its
server processes are not kept while idle. Clients that never come back, or share a default session, are reported. A
client that has brought a token back gets no default session.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Iterable
from time import monotonic, time
from typing import Final

import msgspec
from cachetools import LRUCache, TTLCache
from msgspec.structs import replace

from gateway.calls.live_session import LiveSession
from gateway.config.sessions import SessionSettings
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.protocol.methods import CACHEABLE
from gateway.sessions.returning_clients import agent_of, session_key_line
from gateway.sessions.token_carriers import brings_token, modern_client
from session_store import ExpiringFlags, Principal, StoreUnavailable
from transports.inbound_port import Request
from transports.jsonrpc import encode

logger = logging.getLogger(__name__)

ADVICE: Final = ": have it send "
"""The words in the reason of a `warned` audit event that stand between the client's behaviour and the configuration
line that would change it."""

REPORTED_AFTER: Final = 5
"""A client is reported after it has opened this many sessions without coming back to any of them."""

GRACE_S: Final = 5.0
"""Seconds to wait after a client's session number `REPORTED_AFTER` before it is reported. Several clients with the same
name may have started at once, and may still come back."""

_MOST_CLIENTS: Final = 1_000
_MOST_IDS: Final = 128
"""The most request ids of a client that are kept: those of its first requests. They are enough to recognize another
client, which begins with the same ids."""
_LEARNT_FOR_S: Final = 86_400.0
ASKED_AGAIN_S: Final = 1.0
"""Minimum seconds between two reads of what other replicas have stored about a client."""


class ClientKey(msgspec.Struct, frozen=True):
    """The facts by which clients are told apart that send no token."""

    principal: Principal
    name: str
    """The name that the client reports about itself."""
    agent: str
    """The product in the `User-Agent` header, without its version."""

    def flag(self, what: str) -> str:
        """Return the name under which the store keeps an expiring flag about these clients. `what` says what the flag
        means, such as `carries`."""
        return msgspec.json.encode(
            [what, self.principal.issuer, self.principal.subject, self.name, self.agent]
        ).decode()


def client_key(request: Request, principal: Principal) -> ClientKey:
    """Return the facts of a request by which its client is told apart from other clients that send no token."""
    return ClientKey(principal, modern_client(request).name, agent_of(request))


class ClientWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A client that needs a session key of its own, because it has opened `sessions` sessions and come back to none.
    With `shared`, the reason is another: several programs, or several starts of one, use one default session, and
    `sessions` counts how often one of them used it after another. `line` is a line of code or configuration that gives
    the client a session key.

    The first of the `sessions` was at `since` and the last at `last`, in seconds since 1970."""

    client: str
    agent: str
    principal: str
    sessions: int
    since: float
    last: float
    line: str
    shared: bool = False

    @property
    def what(self) -> str:
        """Return a sentence that tells operators what the client does."""
        who = f"client {self.client or '(no name)'} ({self.agent or 'no User-Agent'}) of {self.principal}"
        if self.shared:
            return f"{who} is more than one program, or was started again, and all of them share one default session"
        return f"{who} has opened {self.sessions} sessions and returned to none"


def merge_warnings(clients: Iterable[ClientWarning]) -> list[ClientWarning]:
    """Merge the reports of several replicas into one list of clients, those with the most sessions first."""
    found: dict[tuple[str, str, str, bool], ClientWarning] = {}
    for one in clients:
        key = (one.client, one.agent, one.principal, one.shared)
        known = found.get(key)
        if known is not None:
            one = replace(
                one,
                sessions=one.sessions + known.sessions,
                since=min(one.since, known.since),
                last=max(one.last, known.last),
            )
        found[key] = one
    return sorted(found.values(), key=lambda one: -one.sessions)


class _Openings:
    """Counts the sessions that one client at one address has opened since it last came back to one of them. For a
    client's default session, counts how often another program went on with that session."""

    __slots__ = ("count", "first", "is_reported", "last", "times")

    def __init__(self) -> None:
        self.is_reported = False
        self.returned()

    def returned(self) -> None:
        self.count = 0
        self.first = self.last = 0.0
        self.times: deque[float] = deque(maxlen=REPORTED_AFTER)

    def opened(self, now: float, at: float) -> None:
        self.count += 1
        self.first, self.last = self.first or at, at
        if len(self.times) < REPORTED_AFTER:
            self.times.append(now)

    def never_returns(self, now: float) -> bool:
        return len(self.times) == REPORTED_AFTER and now - self.times[-1] >= GRACE_S


def _telling_id(request: Request) -> bytes | None:
    """Return the id, as JSON, of a request to a default session. A client never uses an id twice, so a used id shows
    another client, or another start of the same program. Return None if the id cannot show this, because the request
    was sent again, or if the result has no place for a report, because it may be cached."""
    message = request.message
    return None if message is None or request.again or message.method in CACHEABLE else encode(message.id)


class UsedIds:
    """The hashes of the request ids that the client of a default session has used. Ids themselves may be long."""

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def __contains__(self, request_id: bytes) -> bool:
        return hash(request_id) in self._hashes

    def add(self, request_id: bytes) -> None:
        """Add an id, given as JSON. If it was used before, another client has begun: forget the earlier ids."""
        if request_id in self:
            self._hashes.clear()
        if len(self._hashes) < _MOST_IDS:
            self._hashes.add(hash(request_id))


class _Watch:
    """Waits for the client of one session to come back (`gateway.calls.live_session.ReturnWatch`)."""

    __slots__ = ("default_of", "is_waiting", "openings", "used_ids")

    def __init__(self, openings: _Openings | None, default_of: ClientKey | None, *, is_waiting: bool = True) -> None:
        self.is_waiting = is_waiting
        self.openings = openings
        self.default_of = default_of  # the client whose default session it is
        self.used_ids = UsedIds()

    def returned(self) -> None:
        self.is_waiting = False
        if self.openings is not None:
            self.openings.returned()


class ReturnTracker:
    """Watches whether clients come back to new sessions."""

    def __init__(self, settings: SessionSettings, flags: ExpiringFlags, audit: Audit) -> None:
        self._header = settings.key_header
        self._flags = flags
        self._audit = audit
        self._openings: LRUCache[tuple[ClientKey, str], _Openings] = LRUCache(_MOST_CLIENTS)
        self._shared: LRUCache[ClientKey, _Openings] = LRUCache(_MOST_CLIENTS)
        self._carrying: TTLCache[ClientKey, bool] = TTLCache(_MOST_CLIENTS, ASKED_AGAIN_S, timer=monotonic)

    # -- sessions

    def opened(self, live: LiveSession, request: Request, who: RequestContext, *, has_key: bool, alias: str) -> None:
        """Watch a session that a modern client has just opened. `has_key` is True if the client has sent a session key.
        `alias` is the alias of the session, made from the session key or for a default session. It is empty if the
        session has none: then it is for this client alone."""
        client = client_key(request, who.principal)
        openings = None
        if not alias:
            place = (client, request.client)
            openings = self._openings.setdefault(place, _Openings())
            openings.opened(monotonic(), time())
        watch = _Watch(openings, client if alias and not has_key else None)
        if request_id := _telling_id(request):
            watch.used_ids.add(request_id)
        live.watch_return(watch)

    def found_default(self, live: LiveSession, request: Request, who: RequestContext) -> None:
        """Watch a client's default session for other clients in it, if it is not watched yet: another replica, or this
        one before its restart, has opened it."""
        if live.return_watch is None:
            live.watch_return(_Watch(None, client_key(request, who.principal), is_waiting=False))

    @staticmethod
    def used_ids(live: LiveSession, request: Request) -> UsedIds | None:
        """Return the request ids that were used in this session, if it is the default session of the request's client.
        Otherwise return None. A used id that comes again shows another client."""
        watch = live.return_watch
        if not isinstance(watch, _Watch) or watch.default_of is None or brings_token(request):
            return None
        return watch.used_ids

    async def came_back(self, live: LiveSession, request: Request) -> str:
        """Record a further request for a session whose client's return is awaited. Learn from the request if this
        client sends tokens back. If the request shows that two clients share a default session, return a line of code
        or configuration that gives its sender a session of its own. Otherwise return an empty string."""
        watch = live.return_watch
        if not isinstance(watch, _Watch):
            return ""
        if watch.is_waiting:
            watch.returned()
            # Its links get their normal idle time.
            for each in live.conversations.values():
                each.links.stop_idle_after(each.deadlines.idle_stop_s)
        client = watch.default_of
        if client is None:
            live.watch_return(None)
        elif brings_token(request) and client == client_key(request, client.principal):
            live.watch_return(None)
            self._carrying[client] = True
            with contextlib.suppress(StoreUnavailable):  # other replicas will learn it themselves
                await self._flags.set(client.flag("carries"), _LEARNT_FOR_S)
        elif not brings_token(request) and (request_id := _telling_id(request)):
            is_of_another = request_id in watch.used_ids
            watch.used_ids.add(request_id)
            if is_of_another:
                self._shared.setdefault(client, _Openings()).opened(monotonic(), time())
                return session_key_line(client.agent, client.name, self._header)
        return ""

    # -- what is learnt

    async def carries(self, client: ClientKey) -> bool:
        """Return True if any replica has seen a client with this `ClientKey` bring back a token. Return False if this
        is not known here, and the store does not answer."""
        known = self._carrying.get(client)
        if known is None:
            try:
                known = self._carrying[client] = await self._flags.has(client.flag("carries"))
            except StoreUnavailable:
                return False  # its default session may still be served by the replica that owns it
        return known

    # -- what is reported

    def warnings(self) -> list[ClientWarning]:
        """Return the clients that come back to no session or share one, those with the most sessions first."""
        return merge_warnings(self._described(*one) for one in self._reportable())

    async def tell(self) -> None:
        """Report, in the log and (for `doctor`) in the audit trail, each client that never comes back to its sessions
        or shares one. Each client is reported once."""
        for client, openings, shared in self._reportable():
            if openings.is_reported:
                continue
            openings.is_reported = True
            flag = client.flag("shared" if shared else "told")
            try:
                if await self._flags.has(flag):
                    continue
                await self._flags.set(flag, _LEARNT_FOR_S)
            except StoreUnavailable:
                logger.debug("the store does not say whether another replica has reported a client")
            found = self._described(client, openings, shared)
            self._audit.record(
                "warned",
                principal=found.principal,
                reason=f"{found.what}{ADVICE}{found.line}",
            )

    def _reportable(self) -> list[tuple[ClientKey, _Openings, bool]]:
        """Return the clients that are to be reported, each with its counts. The third value of each is True if the
        client has shared a session in the last day, and False if it never comes back to a session."""
        now, since = monotonic(), time() - _LEARNT_FOR_S
        found = [(one, openings, False) for (one, _), openings in self._openings.items() if openings.never_returns(now)]
        return found + [(client, openings, True) for client, openings in self._shared.items() if openings.last > since]

    def _described(self, client: ClientKey, openings: _Openings, shared: bool) -> ClientWarning:
        return ClientWarning(
            client=client.name,
            agent=client.agent,
            principal=str(client.principal),
            sessions=openings.count,
            since=openings.first,
            last=openings.last,
            line=session_key_line(client.agent, client.name, self._header),
            shared=shared,
        )
