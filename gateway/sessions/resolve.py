"""Resolves a request to its session: from its carriers, and the cached record or the store."""

from gateway.calls.live_session import LiveSessions
from gateway.config.sessions import SessionSettings
from gateway.errors import no_session
from gateway.identity.request_context import RequestContext
from gateway.sessions.aliases import default_alias
from gateway.sessions.attach import Resolved, SessionAttacher
from gateway.sessions.cached_record import CachedRecords
from gateway.sessions.carriers import explicit_token, modern_client
from gateway.sessions.lookup import SessionLookup
from gateway.sessions.opening import SessionOpener
from session_store import SessionStore, StoreUnavailable
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
        settings: SessionSettings,
    ) -> None:
        self._store = store
        self._lookup = lookup
        self._live = live
        self._cached = cached
        self._attacher = attacher
        self._opener = opener
        self._settings = settings
        self.context_of = opener.context_of

    async def resume(self, request: Request, who: RequestContext) -> Resolved | None:
        """The session the request carries, in the order of carriers: header, `_meta`, cookie, default session.

        Raises:
            Refused: 404, an explicit carrier does not name a live session of this principal.
            OwnedByPeer: another replica owns the session.
            StoreUnavailable: the store does not answer.
        """
        if (forwarded := request.forwarded) is not None:
            live = self._live.get(forwarded.session_id)
            if live is not None and self._cached.is_confirmed_by(forwarded, live, who):
                return Resolved(live=live, context=live.session.context)
            return await self.resume_by_id(forwarded.session_id, who, request.era)
        if (token := explicit_token(request)) is not None:
            session_id = self._lookup.id_of_token(token, request.era, who.principal)
            return await self.resume_by_id(session_id, who, request.era)
        if (resolved := await self.resume_by_cookie(request, who)) is not None:
            return resolved
        alias = self._default_alias(request, who)
        return None if alias is None else await self._resume_by_alias(alias, who)

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
        session = await self._lookup.by_cookie(request, who) if self._settings.cookie else None
        if session is None:
            return None
        resolved = await self._attacher.attach(session, who.claims)
        return Resolved(live=resolved.live, context=resolved.context, cookie_held=True)

    async def _resume_by_alias(self, alias: str, who: RequestContext) -> Resolved | None:
        try:
            found = await self._store.resume_alias(alias)
        except StoreUnavailable:
            for live in self._live.named(alias):
                if self._cached.serves_outage(live, who):
                    return Resolved(live=live, context=live.session.context)
            raise
        if found is None:
            return None
        resolved = await self._attacher.attach(found, who.claims)
        self._live.note_alias(resolved.live, alias)
        return resolved

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
        return await self._opener.open(request, who, modern_client(request), self._default_alias(request, who))

    def _default_alias(self, request: Request, who: RequestContext) -> str | None:
        return default_alias(request, who.principal) if self._settings.default_session else None
