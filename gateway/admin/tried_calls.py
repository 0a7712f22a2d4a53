"""Calls of tools that operators try: in a session of their own, or in one that is live (docs/adr/0033-tried-calls.md).

A tried call takes the way of every call, from the wire on. So policy, limits, checks of arguments, audit, sandbox and
the replica that owns the session are the same.
"""

import asyncio
import contextlib
import contextvars
import secrets
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Literal, Protocol

import msgspec

from gateway.admin.operators import OperatorError
from gateway.admin.reports import Attempt, TriedCall
from gateway.admin.session_finder import SessionFinder
from gateway.admin.tool_catalog import ToolCatalog
from gateway.admin.tried_call import Sending, Way
from gateway.config.auth import OPERATOR_ISSUER
from gateway.identity.credential_claims import CredentialClaims
from gateway.observability.logs import CORRELATION
from gateway.relay.internal_requests import InternalRequests
from gateway.sessions.session_keys import key_alias
from session_store import Principal, Session, SessionStore, StoreUnavailable
from session_store.session import redact
from transports.era import LEGACY, MODERN

__all__ = ["EndsSession", "Left", "Records", "TriedCalls", "Where"]

_MOST_NAME: Final = 256
_MOST_AT_ONCE: Final = 4
"""Calls that one operator tries at once, on one replica."""
Where = Literal["any", "own", "off"]
Left = Callable[[], Awaitable[object]]
"""Returns when whoever has asked is gone."""


class Records(Protocol):
    """Keeps what an operator does in the audit trail."""

    def __call__(self, *, session: Session | str, principal: str, reason: str, tool: str) -> None: ...


class EndsSession(Protocol):
    """Ends a session on every replica."""

    async def end(self, session_id: str, reason: str, calls: int | None = None) -> bool: ...


class TriedCalls:
    """Tries calls in the name of operators.

    `claims` are those with which a request leaves a session its context, None if there are none. `token` makes the
    token of a session. `where` is the setting `admin.try_tools`.
    """

    def __init__(
        self,
        *,
        catalog: ToolCatalog,
        ask: InternalRequests,
        finder: SessionFinder,
        sessions: SessionStore,
        claims: Callable[[Session], CredentialClaims | None],
        token: Callable[[Session], str],
        records: tuple[Records, EndsSession],
        where: Where,
    ) -> None:
        self.catalog = catalog
        self.where: Where = where
        self._ask = ask
        self._finder = finder
        self._sessions = sessions
        self._claims = claims
        self._token = token
        self._record, self._ending = records
        self._running: dict[str, int] = {}

    async def call(self, attempt: Attempt, by: str, *, peer: str = "", left: Left | None = None) -> TriedCall:
        """Call a tool in the name of the operator `by`, whose address is `peer`. `left` returns when the operator does
        not want the answer any more.

        Raises:
            OperatorError: the call cannot be tried.
            StoreUnavailable: the store does not answer.
        """
        if self.where == "off":
            raise OperatorError("tools cannot be tried here: gateway.admin.try_tools is off")
        session = await self._finder.find(attempt.session) if attempt.session else None
        if session is not None and self.where != "any" and session.principal != _principal(by):
            raise OperatorError(
                "tools are tried in sessions of your own here: leave the session out for a fresh one, or set "
                'gateway.admin.try_tools to "any"'
            )
        if self._running.get(by, 0) >= _MOST_AT_ONCE:
            raise OperatorError(f"{_MOST_AT_ONCE} calls that you have tried are not answered yet: wait for one of them")
        self._running[by] = self._running.get(by, 0) + 1
        try:
            return await self._try(attempt, by, session, peer, left)
        finally:
            self._running[by] -= 1
            if not self._running[by]:
                del self._running[by]

    async def _try(
        self,
        attempt: Attempt,
        by: str,
        session: Session | None,
        peer: str,
        left: Left | None,
    ) -> TriedCall:
        way = self._fresh(attempt, by) if session is None else self._into(session, attempt)
        name = self.catalog.name_at(way.path, attempt.server, attempt.tool)
        correlation = secrets.token_hex(16)
        self._note(attempt, by, session, way, correlation)
        call = Sending(self._ask, way, name, attempt, correlation, peer)
        mirrored = self.catalog.headers_for(attempt.server, attempt.tool, attempt.arguments)
        began = monotonic()
        try:
            found = await call.answered(mirrored, left)
            if session is not None:
                return msgspec.structs.replace(
                    found, session=redact(session.id), kept=True, duration_s=round(monotonic() - began, 4)
                )
            return await self._settled(attempt, way, by, found, monotonic() - began)
        except BaseException:
            if session is None:
                await asyncio.shield(self._end_fresh(way, by))
            raise

    def _fresh(self, attempt: Attempt, by: str) -> Way:
        """A new session of the operator."""
        path = self.catalog.path_of(attempt.server)
        return Way(era=MODERN, path=path, principal=_principal(by), claims=None, key=secrets.token_urlsafe(24))

    def _into(self, session: Session, attempt: Attempt) -> Way:
        """A session of somebody else, with the rights that it has."""
        self.catalog.path_of(attempt.server)
        if session.parent:
            raise OperatorError(f"session {redact(session.id)} is part of another: name session {session.parent[:8]}")
        claims = self._claims(session)
        if claims is None:
            raise OperatorError(
                f"the rules have changed since the last request of session {redact(session.id)}, so its rights are not "
                "known: wait for the next request of its client, or try the tool in a fresh session"
            )
        return Way(
            era=LEGACY if session.era == LEGACY else MODERN,
            path=session.endpoint,
            principal=session.principal,
            claims=claims,
            token=self._token(session),
            version=session.client.protocol_version,
        )

    def _note(self, attempt: Attempt, by: str, session: Session | None, way: Way, correlation: str) -> None:
        """Record the attempt before anything happens, with the correlation id that the call has everywhere."""
        where = "in a fresh session" if session is None else f"in a session of {session.principal}"
        tool = f"{attempt.server}/{attempt.tool}"[:_MOST_NAME]

        def record() -> None:
            CORRELATION.set(correlation)
            self._record(
                session="" if session is None else session,
                principal=str(way.principal),
                reason=f"the operator {by} has tried a tool {where}",
                tool=tool,
            )

        contextvars.copy_context().run(record)

    async def _settled(self, attempt: Attempt, way: Way, by: str, found: TriedCall, duration_s: float) -> TriedCall:
        """The outcome of a call in a fresh session, which ends unless it is kept."""
        session = await self._opened(way)
        kept = session is not None and attempt.keep
        if session is not None and not kept:
            kept = not await self._ended(session, by)
        begins = "" if session is None else redact(session.id)
        return msgspec.structs.replace(found, session=begins, kept=kept, duration_s=round(duration_s, 4))

    async def _end_fresh(self, way: Way, by: str) -> None:
        """End the session of a call that nobody waits for any more."""
        with contextlib.suppress(StoreUnavailable):
            session = await self._opened(way)
            if session is not None:
                await self._ended(session, by)

    async def _ended(self, session: Session, by: str) -> bool:
        """End a fresh session. False if the store does not answer: then it ends when it has been idle for long."""
        try:
            await self._ending.end(session.id, f"the operator {by} has tried a tool in it")
        except StoreUnavailable:
            return False
        return True

    async def _opened(self, way: Way) -> Session | None:
        """The session that a call has opened; None if it was refused before."""
        return await self._sessions.named(key_alias(way.key, way.principal, way.path))


def _principal(by: str) -> Principal:
    """Who an operator is in sessions."""
    return Principal(issuer=OPERATOR_ISSUER, subject=by)
