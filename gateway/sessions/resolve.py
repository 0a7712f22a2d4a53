"""Find the session that a request names. Its record comes from this replica's cache or from the store."""

import itertools
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.ownership import Route, RouteMemory
from gateway.errors import no_session, session_unknown
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.observability.timelines import INITIALIZED_AGAIN
from gateway.sessions.cached_record_validity import AGING_AFTER_S, CachedRecords
from gateway.sessions.client_return_tracking import ASKED_AGAIN_S, ReturnTracker, UsedIds
from gateway.sessions.opening import SessionOpener
from gateway.sessions.record_changes import SessionRecords
from gateway.sessions.session_aliases import Alias, Aliases, reattach_alias
from gateway.sessions.session_attaching import Resolved, SessionAttacher
from gateway.sessions.token_carriers import (
    Carriers,
    asks_for_new,
    cookies_of,
    explicit_token,
    modern_client,
    names_token,
    same_client,
)
from session_store import ClientFacts, Principal, Session, SessionStore, StoreUnavailable
from transports.era import Era
from transports.inbound_port import OwnedByPeer, Refused, Request


@dataclass(eq=False, repr=False, kw_only=True)
class SessionResolver:
    """Finds or opens the sessions of requests."""

    store: SessionStore
    carriers: Carriers
    live: LiveSessions
    cached: CachedRecords
    attacher: SessionAttacher
    opener: SessionOpener
    aliases: Aliases
    returns: ReturnTracker
    records: SessionRecords
    audit: Audit

    async def resume(self, request: Request, who: RequestContext) -> Resolved | None:
        """Return the session that the request names; None if it names none. What names a session is looked for in this
        order: token in a header, token in `_meta`, session key, cookie, default session.

        Raises:
            Refused: 404, a token does not name a live session of this principal; 400, a session key cannot be used.
            OwnedByPeer: another replica owns the session.
            StoreUnavailable: the store does not answer.
        """
        # Only for a head that repeats (`inbound/asgi_bypass_post.py`): its session is known, and is served elsewhere.
        if (route := _route_before(request, who)) is not None and self.live.get(route.session.id) is None:
            raise OwnedByPeer(route)
        token = explicit_token(request) if request.forwarded is None else None
        if token is None:
            resolved = await self._resume_without_token(request, who)
        else:
            session_id = self._id_of_token(token, request.era, who.principal)
            try:
                resolved = await self.resume_by_id(session_id, who, request.era)
            except OwnedByPeer as elsewhere:
                raise OwnedByPeer(_remembered(elsewhere.route, request, who)) from None
        return None if resolved is None else await self._came_back(resolved, request)

    async def _came_back(self, resolved: Resolved, request: Request) -> Resolved:
        own_session = await self.returns.came_back(resolved.live, request)
        return replace(resolved, own_session=own_session) if own_session else resolved

    def holds(self, live: LiveSession) -> bool:
        """Return True if the session is still live on this replica, and its client has sent a second request. Only then
        may its calls take the fast path."""
        return self.live.get(live.session.id) is live and not live.ended and not live.is_unreturned

    def same_session_for_s(self, request: Request, who: RequestContext, resolved: Resolved) -> float:
        """Return for how many seconds an identical request of the same caller resolves to this session, while it lives.

        A token, a cookie, a session key or the replica that has forwarded the request names the session for good. A
        client loses its default session when a replica learns that it brings tokens back.
        """
        if self.used_ids(resolved.live, request) is not None:
            return ASKED_AGAIN_S
        if (forwarded := request.forwarded) is not None:
            return math.inf if forwarded.session_id == resolved.live.session.id else 0.0
        if names_token(request) or resolved.cookie_held:
            return math.inf
        key = self.aliases.of_key(request, who.principal)
        return math.inf if key is not None and self.live.named(key.name) is resolved.live else 0.0

    def used_ids(self, live: LiveSession, request: Request) -> UsedIds | None:
        """Return the request ids that were used in this session, if it is the default session of the request's client.
        Otherwise return None. A call with a used id may be another client's."""
        return self.returns.used_ids(live, request)

    def still_serves(self, live: LiveSession) -> bool:
        """Return True if this replica may go on serving a live session without asking the store. If its cached record
        will soon be too old, also read the record again in the background."""
        age_s = self.cached.usable_age_s(live)
        if age_s is None:
            return False
        if age_s >= AGING_AFTER_S:
            self.attacher.refresh(live)
        return True

    async def _resume_without_token(self, request: Request, who: RequestContext) -> Resolved | None:
        if (forwarded := request.forwarded) is not None:
            live = self.live.get(forwarded.session_id)
            if live is not None and self.cached.is_confirmed_by(forwarded, live, who):
                return _at_hand(live, who)
            return await self.resume_by_id(forwarded.session_id, who, request.era)
        if (alias := self.aliases.of_key(request, who.principal)) is not None:
            return await self.resume_by_alias(alias, who)
        if asks_for_new(request):
            return None
        if (resolved := await self.resume_by_cookie(request, who)) is not None:
            return resolved
        default = await self.aliases.of_default(request, who.principal)
        resolved = None if default is None else await self.resume_by_alias(default, who)
        if resolved is not None:
            self.returns.found_default(resolved.live, request, who)
        return resolved

    async def _found(
        self, live: LiveSession | None, who: RequestContext, read: Callable[[], Awaitable[Session | None]]
    ) -> Resolved | None:
        """Return the live session `live` if its cached record is recent. Otherwise return the session whose record
        `read` finds in the store; None if it finds none. If the store does not answer, return `live` if it may be
        served without the store.

        Raises:
            OwnedByPeer, StoreUnavailable: as `resume`; and what `read` raises.
        """
        if live is not None and self.cached.is_recent(live, who):
            self.still_serves(live)
            return _at_hand(live, who)
        try:
            session = await read()
        except StoreUnavailable:
            if live is None or not self.cached.serves_outage(live, who):
                raise
            return _at_hand(live, who)
        return None if session is None else await self.attacher.attach(session, who.claims)

    async def resume_by_id(self, session_id: str, who: RequestContext, era: Era) -> Resolved:
        """Return the session with this id, which comes from a verified token, a sealed `requestState` or another
        replica.

        Raises:
            Refused, OwnedByPeer, StoreUnavailable: as `resume`.
        """
        live = self.live.get(session_id)
        known = None if live is None else live.session
        found = await self._found(live, who, lambda: self._by_id(session_id, era, who.principal, known))
        assert found is not None  # else `_by_id` has raised
        return found

    async def resume_by_cookie(self, request: Request, who: RequestContext) -> Resolved | None:
        """Return the session that a cookie of the request names. Return None if no cookie names one, or cookies are
        off."""
        session_ids = self._ids_of_cookies(request, who)
        first = next(session_ids, None)
        if first is None:
            return None
        ids = itertools.chain((first,), session_ids)
        resolved = await self._found(self.live.get(first), who, lambda: self._first_of(ids, who))
        return None if resolved is None else replace(resolved, cookie_held=True)

    async def resume_by_alias(self, alias: Alias, who: RequestContext) -> Resolved | None:
        """Return the session with this alias; None if no session that has not ended has it.

        Raises:
            OwnedByPeer, StoreUnavailable: as `resume`.
        """
        live = self.live.named(alias.name)
        resolved = await self._found(live, who, lambda: self.store.resume_alias(alias.name))
        if resolved is not None and resolved.live is not live:
            self.live.note_alias(resolved.live, alias.name)
        return resolved

    async def is_named_by_key(self, live: LiveSession, request: Request, who: RequestContext) -> bool:
        """Return True if the request has a session key, and this key names the session `live`."""
        alias = self.aliases.of_key(request, who.principal)
        named = None if alias is None else await self.store.named(alias.name)
        return named is not None and named.id == live.session.id

    async def require(self, request: Request, who: RequestContext) -> Resolved:
        """Return the session of a legacy message, which has to name one.

        Raises:
            Refused: 400, the request names no session; and all that `resume` raises.
        """
        resolved = await self.resume(request, who)
        if resolved is None:
            raise no_session()
        return resolved

    async def resume_or_open(self, request: Request, who: RequestContext) -> Resolved:
        """Return the session that a modern request names; if it names none, open one. Raises what `resume` and `open`
        raise."""
        if (resolved := await self.resume(request, who)) is not None:
            return resolved
        principal = who.principal
        alias = self.aliases.of_key(request, principal) or await self.aliases.of_default(request, principal)
        resolved = await self.open(request, who, modern_client(request), alias)
        if not resolved.opened:
            return await self._came_back(resolved, request)
        is_key = alias is not None and alias.is_key
        name = "" if alias is None else alias.name
        self.returns.opened(resolved.live, request, who, has_key=is_key, alias=name)
        return resolved

    async def initialize(self, request: Request, who: RequestContext, client: ClientFacts) -> Resolved:
        """Return the session of an `initialize`, which only legacy clients (MCP before 2026-07-28) send: the session
        that the client names, or an earlier one of its principal (`session.reattach`), else a new one. A token of an
        ended session is no error: the client gets a new session.

        Raises:
            Refused: -32602, the parameters of `initialize` are larger than a record may keep; 400, a session key cannot
                be used; as `SessionOpener.open`.
            OwnedByPeer: another replica owns the session.
        """
        self.records.check_handshake(client.initialize_params)
        resolved = await self._resume_or_open_at_initialize(request, who, client)
        session = resolved.live.session
        if not resolved.opened and session.client.initialize_params:  # else an event stream has opened it a moment ago
            self.audit.record("resumed", session=session, reason=INITIALIZED_AGAIN)
        return resolved

    async def _resume_or_open_at_initialize(
        self, request: Request, who: RequestContext, client: ClientFacts
    ) -> Resolved:
        if request.forwarded is not None:
            return await self.resume_by_id(request.forwarded.session_id, who, request.era)
        alias = self.aliases.of_key(request, who.principal)
        resolved = await self._resume_at_initialize(request, who, client, alias)
        if resolved is not None:
            return resolved
        if alias is None and "principal" in self.opener.settings.reattach and not asks_for_new(request):
            name = reattach_alias(who.principal, client.name, request.endpoint)
            alias = None if name is None else Alias(name)
        return await self.open(request, who, client, alias)

    async def _resume_at_initialize(
        self, request: Request, who: RequestContext, client: ClientFacts, key: Alias | None
    ) -> Resolved | None:
        if (token := explicit_token(request)) is not None:
            try:
                session = await self.by_token(token, request.era, who.principal)
            except Refused:
                pass  # the session has ended: the client gets a new one
            else:
                return await self.attacher.attach(session, who.claims)
        if key is not None:
            return await self.resume_by_alias(key, who)
        if "cookie" in self.opener.settings.reattach and not asks_for_new(request):
            resolved = await self.resume_by_cookie(request, who)
            if resolved is not None and same_client(resolved.live.session, request, client):
                return Resolved(live=resolved.live, context=resolved.context)
        return None

    async def open(self, request: Request, who: RequestContext, client: ClientFacts, alias: Alias | None) -> Resolved:
        """Open a session as `SessionOpener.open` does, and cache its alias for later requests."""
        resolved = await self.opener.open(request, who, client, alias)
        if alias is not None:
            self.live.note_alias(resolved.live, alias.name)
        return resolved

    # -- in the store. The reason of a refusal is recorded in the audit trail, and hidden from the client

    async def by_token(self, token: str, era: Era, principal: Principal) -> Session:
        """Read the record of the session that a token names. Raises `Refused`: 404, the token is invalid, or its
        session has ended or belongs to another principal."""
        return await self._by_id(self._id_of_token(token, era, principal), era, principal)

    async def by_cookie(self, request: Request, who: RequestContext) -> Session | None:
        """Read the record of the first session in the request's cookies that belongs to the caller and has not ended;
        None if there is none."""
        return await self._first_of(self._ids_of_cookies(request, who), who)

    def _id_of_token(self, token: str, era: Era, principal: Principal) -> str:
        """Return the session id in a token, after its signature was verified.

        Raises:
            Refused: 404, this gateway has not signed the token.
        """
        session_id = self.carriers.tokens.verify(token)
        if session_id is None:
            raise self._unknown(era, principal, "invalid session token")
        return session_id

    async def _by_id(self, session_id: str, era: Era, principal: Principal, cached: Session | None = None) -> Session:
        """Read the record of a session that has not ended. `cached` is the record that the caller has: if it is still
        current, the store need not send the record again.

        Raises:
            Refused: 404, this principal has no such session.
            StoreUnavailable: the store does not answer.
        """
        session = await self.store.resume(session_id, principal, cached)
        if session is None:
            status = await self.store.status(session_id)
            reason = "session of another principal" if status == "live" else status
            raise self._unknown(era, principal, reason, session_id)
        return session

    def _ids_of_cookies(self, request: Request, who: RequestContext) -> Iterator[str]:
        """Yield the session ids in the cookies of a request, if cookies are switched on. Record every cookie with an
        invalid signature in the audit trail."""
        if self.carriers.uses_cookies and request.same_site:
            for value in cookies_of(request):
                session_id = self.carriers.cookies.verify(value)
                if session_id is None:
                    reason, principal = "invalid session cookie", str(who.principal)
                    self.audit.record("refused", era=request.era, principal=principal, reason=reason)
                else:
                    yield session_id

    async def _first_of(self, session_ids: Iterable[str], who: RequestContext) -> Session | None:
        """Return the record of the first of these sessions that belongs to the caller and has not ended; None if there
        is none. Write nothing to the audit trail about the others, because clients send the cookies of ended sessions
        automatically."""
        for session_id in session_ids:
            if (session := await self.store.resume(session_id, who.principal)) is not None:
                return session
        return None

    def _unknown(self, era: Era, principal: Principal, why: str, session_id: str = "") -> Refused:
        about = {"session": session_id, "era": era, "principal": str(principal)}
        return self.audit.refused(session_unknown(), about, why=why)


def _at_hand(live: LiveSession, who: RequestContext) -> Resolved:
    """Return a live session, as it is known from its cached record, without asking the store. Keep the caller's access
    token in it."""
    live.act_for(who.claims)
    return Resolved(live=live, context=live.session.context)


def _remembered(route: Route, request: Request, who: RequestContext) -> Route:
    """Cache `route`, the way to a session's owner, for later requests with the same head, which then skip the store.
    The owner checks that it still owns the session, and the caller's rights to it. Return the cached route, with the
    `memory` that these requests share. Return `route` unchanged if the head cannot be cached, or has no token."""
    if request.handler_cache is None or not names_token(request):
        return route
    route = replace(route, memory=RouteMemory(), until=who.until)
    request.handler_cache.keep((request.era, replace(route, is_read=False)))
    return route


def _route_before(request: Request, who: RequestContext) -> Route | None:
    """Return the route to the session's owner that an earlier request of the same caller with the same head has cached.
    Return None if there is none, or if its owner must be looked up again."""
    if request.handler_cache is None or request.handler_cache.kept is None:
        return None
    era, route = request.handler_cache.kept
    if era is not request.era or (route.principal, route.granted) != (who.principal, who.claims):
        return None
    is_stale = route.memory is None or route.memory.is_stale
    if is_stale:
        request.handler_cache.keep(None)
    return None if is_stale else replace(route, until=who.until)
