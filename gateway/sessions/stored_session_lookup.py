"""Find the stored session that a token or a cookie names. Only the store is read, not the sessions in memory."""

from collections.abc import Iterable, Iterator

from gateway.errors import session_unknown
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.sessions.token_carriers import Carriers, cookies_of
from session_store import Principal, Session, SessionStore
from transports.era import Era
from transports.inbound_port import Refused, Request


class SessionLookup:
    """Verifies tokens and cookies, and reads the records of the sessions that they name.

    The reason of a refusal is recorded in the audit trail, and hidden from the client.
    """

    def __init__(self, store: SessionStore, carriers: Carriers, audit: Audit) -> None:
        self._store = store
        self._carriers = carriers
        self._audit = audit

    def id_of_token(self, token: str, era: Era, principal: Principal) -> str:
        """Verify a token, and return the session id in it.

        Raises:
            Refused: 404, this gateway has not signed the token.
        """
        session_id = self._carriers.tokens.verify(token)
        if session_id is None:
            raise self._unknown(era, principal, "invalid session token")
        return session_id

    async def by_id(self, session_id: str, era: Era, principal: Principal, cached: Session | None = None) -> Session:
        """Read the record of a session that has not ended. `cached` is the caller's copy: if it is current, the store
        need not send the record again.

        Raises:
            Refused: 404, this principal has no such session.
            StoreUnavailable: the store does not answer.
        """
        session = await self._store.resume(session_id, principal, cached)
        if session is None:
            status = await self._store.status(session_id)
            reason = "session of another principal" if status == "live" else status
            raise self._unknown(era, principal, reason, session_id)
        return session

    def ids_of_cookies(self, request: Request, who: RequestContext) -> Iterator[str]:
        """Yield the session ids in the cookies of a request, if cookies are switched on. Record every cookie with an
        invalid signature in the audit trail."""
        if self._carriers.uses_cookies and request.same_site:
            for value in cookies_of(request):
                session_id = self._carriers.cookies.verify(value)
                if session_id is None:
                    reason, principal = "invalid session cookie", str(who.principal)
                    self._audit.record("refused", era=request.era, principal=principal, reason=reason)
                else:
                    yield session_id

    async def first_of(self, session_ids: Iterable[str], who: RequestContext) -> Session | None:
        """Return the first of these sessions that has not ended; None if all have. Write nothing to the audit trail
        about the ended ones, because clients send the cookies of ended sessions automatically.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        for session_id in session_ids:
            if (session := await self._store.resume(session_id, who.principal)) is not None:
                return session
        return None

    def _unknown(self, era: Era, principal: Principal, why: str, session_id: str = "") -> Refused:
        about = {"session": session_id, "era": era, "principal": str(principal)}
        return self._audit.refused(session_unknown(), about, why=why)
