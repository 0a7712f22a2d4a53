"""Resolves a request to its session: from its carriers, and the cached record or the store."""

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.errors import no_session
from gateway.identity.request_context import RequestContext
from gateway.sessions.aliases import Alias, Aliases
from gateway.sessions.attach import Resolved, SessionAttacher
from gateway.sessions.cached_record import CachedRecords
from gateway.sessions.carriers import asks_for_new, explicit_token, modern_client
from gateway.sessions.lookup import SessionLookup
from gateway.sessions.opening import SessionOpener
from gateway.sessions.returns import Returns
from session_store import ClientFacts, SessionStore, StoreUnavailable
from transports.era import Era
from transports.inbound_port import Request

__all__ = ["SessionResolver"]


class SessionResolver:
    """Resolves requests to sessions. `initialize` has rules of its own: `reattach.py`."""

    def __init__(
        self,
        *,
        store: SessionStore,
        lookup: SessionLookup,
        live: LiveSessions,
        cached: CachedRecords,
        attacher: SessionAttacher,
        opener: SessionOpener,
        aliases: Aliases,
        returns: Returns,
    ) -> None:
        self._store = store
        self._lookup = lookup
        self._live = live
        self._cached = cached
        self._attacher = attacher
        self._opener = opener
        self._aliases = aliases
        self._returns = returns
        self.context_of = opener.context_of
        self.announces_other = attacher.announces_other
        self.apply_announced = attacher.apply_announced

    async def resume(self, request: Request, who: RequestContext) -> Resolved | None:
        """The session the request carries, in the order of carriers: header, `_meta`, session key, cookie, default
        session.

        Raises:
            Refused: 404, an explicit carrier does not name a live session of this principal; 400, a session key cannot
                be used.
            OwnedByPeer: another replica owns the session.
            StoreUnavailable: the store does not answer.
        """
        token = explicit_token(request) if request.forwarded is None else None
        if token is None:
            resolved = await self._resume_without_token(request, who)
        else:
            session_id = self._lookup.id_of_token(token, request.era, who.principal)
            resolved = await self.resume_by_id(session_id, who, request.era)
        if resolved is not None and resolved.live.return_watch is not None:
            await self._returns.came_back(resolved.live, request)
        return resolved

    async def _resume_without_token(self, request: Request, who: RequestContext) -> Resolved | None:
        if (forwarded := request.forwarded) is not None:
            live = self._live.get(forwarded.session_id)
            if live is not None and self._cached.is_confirmed_by(forwarded, live, who):
                return Resolved(live=live, context=live.session.context)
            return await self.resume_by_id(forwarded.session_id, who, request.era)
        if (alias := self._aliases.of_key(request, who.principal)) is not None:
            return await self.resume_by_alias(alias, who)
        if asks_for_new(request):
            return None
        if (resolved := await self.resume_by_cookie(request, who)) is not None:
            return resolved
        alias = await self._aliases.of_default(request, who.principal)
        return None if alias is None else await self.resume_by_alias(alias, who)

    async def resume_by_id(self, session_id: str, who: RequestContext, era: Era) -> Resolved:
        """The session of an id that a token or a sealed `requestState` names.

        Raises:
            Refused, OwnedByPeer, StoreUnavailable: as `resume`.
        """
        live = self._live.get(session_id)
        if live is not None and self._cached.is_recent(live, who):
            return Resolved(live=live, context=live.session.context)
        try:
            session = await self._lookup.by_id(session_id, era, who.principal, None if live is None else live.session)
        except StoreUnavailable:
            if live is None or not self._cached.serves_outage(live, who):
                raise
            return Resolved(live=live, context=live.session.context)
        return await self._attacher.attach(session, who.claims)

    async def resume_by_cookie(self, request: Request, who: RequestContext) -> Resolved | None:
        """The session that a cookie of the request names, if cookies are switched on."""
        session = await self._lookup.by_cookie(request, who)
        if session is None:
            return None
        resolved = await self._attacher.attach(session, who.claims)
        return Resolved(live=resolved.live, context=resolved.context, cookie_held=True)

    async def resume_by_alias(self, alias: Alias, who: RequestContext) -> Resolved | None:
        """The live session of that alias, if there is one.

        Raises:
            OwnedByPeer, StoreUnavailable: as `resume`.
        """
        live = self._live.named(alias.name)
        if live is not None and self._cached.is_recent(live, who):
            return Resolved(live=live, context=live.session.context)
        try:
            found = await self._store.resume_alias(alias.name)
        except StoreUnavailable:
            if live is None or not self._cached.serves_outage(live, who):
                raise
            return Resolved(live=live, context=live.session.context)
        if found is None:
            return None
        resolved = await self._attacher.attach(found, who.claims)
        self._live.note_alias(resolved.live, alias.name)
        return resolved

    async def is_named_by_key(self, live: LiveSession, request: Request, who: RequestContext) -> bool:
        """Whether the request has a session key, and that is the key of this session."""
        alias = self._aliases.of_key(request, who.principal)
        named = None if alias is None else await self._store.named(alias.name)
        return named is not None and named.id == live.session.id

    async def require(self, request: Request, who: RequestContext) -> Resolved:
        """As `resume`, for a legacy message, which has to name its session.

        Raises:
            Refused: 400, the request names no session.
        """
        resolved = await self.resume(request, who)
        if resolved is None:
            raise no_session()
        return resolved

    async def resume_or_open(self, request: Request, who: RequestContext) -> Resolved:
        """As `resume`; a modern client without a session gets one."""
        resolved = await self.resume(request, who)
        if resolved is not None:
            return resolved
        principal = who.principal
        alias = self._aliases.of_key(request, principal) or await self._aliases.of_default(request, principal)
        resolved = await self.open(request, who, modern_client(request), alias)
        if resolved.opened:
            self._watch(resolved.live, request, who, alias)
        elif resolved.live.return_watch is not None:
            await self._returns.came_back(resolved.live, request)
        return resolved

    async def open(self, request: Request, who: RequestContext, client: ClientFacts, alias: Alias | None) -> Resolved:
        """As `SessionOpener.open`. A session that is opened by an alias is found by it from now on."""
        resolved = await self._opener.open(request, who, client, alias)
        if alias is not None:
            self._live.note_alias(resolved.live, alias.name)
        return resolved

    def _watch(self, live: LiveSession, request: Request, who: RequestContext, alias: Alias | None) -> None:
        is_key = alias is not None and alias.is_key
        self._returns.opened(live, request, who, has_key=is_key, alias="" if alias is None else alias.name)
