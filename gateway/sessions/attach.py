"""Makes a stored session live on this replica: owned, its streams recovered, its context that of the request.

Does not know how the session was found.
"""

import msgspec

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.ownership import Cluster
from gateway.identity.context_rules import ContextRules
from gateway.identity.credential_claims import CredentialClaims
from gateway.observability.audit import Audit
from session_store import Context, Session, SessionStore

__all__ = ["Resolved", "SessionAttacher"]


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The session a request belongs to, and the context that the request's credential gives it there.

    `opened`: the request has opened the session. `cookie_held`: the client holds the session's cookie already.
    """

    live: LiveSession
    context: Context
    opened: bool = False
    cookie_held: bool = False


class SessionAttacher:
    """Makes this replica the owner of stored sessions, and builds what it holds of each (`LiveSession`)."""

    def __init__(
        self,
        *,
        store: SessionStore,
        live: LiveSessions,
        cluster: Cluster | None,
        rules: ContextRules,
        audit: Audit,
    ) -> None:
        self._store = store
        self._live = live
        self._cluster = cluster
        self._replica = "" if cluster is None else cluster.replica
        self._rules = rules
        self._audit = audit

    async def attach(self, session: Session, granted: CredentialClaims | None) -> Resolved:
        """Make a session live on this replica, from the record that the store has just returned.

        Raises:
            OwnedByPeer: another replica owns the session.
        """
        live = self._live.get(session.id)
        if live is None or not live.recovered or session.owner != self._replica:
            live = await self._attach_again(session, granted)
        else:
            live.replace_record(session, is_read=True)
        context = self._rules.renewed(live.session, granted)
        if context == live.session.context:
            # The record's own: what compares the two by identity later need not copy the record.
            return Resolved(live=live, context=live.session.context)
        await self._renew(live, context)
        return Resolved(live=live, context=context)  # another request may have changed the session's meanwhile

    async def _attach_again(self, session: Session, granted: CredentialClaims | None) -> LiveSession:
        unowned = not session.owner
        if self._cluster is not None:
            session = await self._cluster.own(session, session.principal, granted)
        is_new = self._live.get(session.id) is None
        was_released = is_new and unowned and self._cluster is not None
        live = self._live.of(session, new_process="drain" if was_released else "")
        if is_new:
            self._audit.record("resumed", session=session)
        await live.recover()
        return live

    async def _renew(self, live: LiveSession, context: Context) -> None:
        """Give the session the context that the credential and the rules say now. The session's servers are restarted:
        they were started with the old one."""
        renewed = await self._store.update(live.session.id, context=context)
        # Set before the next await: no server may start with the old context.
        live.replace_record(msgspec.structs.replace(live.session, context=context) if renewed is None else renewed)
        await live.renew()

    def attach_new(self, session: Session) -> Resolved:
        """Make a session live that this replica has just opened: there are no streams to recover."""
        return Resolved(live=self._live.of_new(session), context=session.context, opened=True)

    def take_over(self, session: Session) -> None:
        """Make a session live that this replica has claimed from an owner that is gone."""
        self._live.of(session, new_process="takeover")
        self._audit.record("resumed", session=session, reason="taken over from a replica that does not answer")
