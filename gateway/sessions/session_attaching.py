"""Load a stored session into this replica: claim it, recover its event streams, bring its context up to date.

`resolve.py` finds the session of a request.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.ownership import Cluster
from gateway.context.announced_context import Announcements
from gateway.context.session_facts import WORKSPACE_KEY
from gateway.errors import other_workspace
from gateway.identity.context_rules import ContextRules, announced_fields_of
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from session_store import Context, Session, SessionStore, StoreUnavailable
from session_store.session import redact
from transports.background_tasks import Tasks
from transports.inbound_port import Request
from transports.jsonrpc import Object, encode

logger = logging.getLogger(__name__)

_TRIES: Final = 8
"""Attempts to store a context before the request fails. An attempt fails if the stored record has changed meanwhile."""
_BUSY: Final = "the session's record changes too often"


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a request, as it was found or opened."""

    live: LiveSession
    context: Context
    """The context (the rights) that the session has for the request's credential."""
    opened: bool = False
    """True if this request has opened the session."""
    cookie_held: bool = False
    """True if the client has the session's cookie already."""
    own_session: str = ""
    """If another client uses this default session: a line of code or configuration that gives this client a session of
    its own. Else empty."""


class SessionAttacher:
    """Makes this replica the owner of stored sessions, and builds a `LiveSession` for each.

    `end_former` is called to close a live session if another replica has owned the session since: its processes do not
    know the calls that the other replica's processes have served."""

    def __init__(
        self,
        *,
        store: SessionStore,
        live: LiveSessions,
        cluster: Cluster | None,
        rules: ContextRules,
        announcements: Announcements,
        audit: Audit,
        end_former: Callable[[LiveSession], None],
    ) -> None:
        self._store = store
        self._live = live
        self._cluster = cluster
        self._replica = "" if cluster is None else cluster.replica
        self._rules = rules
        self._announcements = announcements
        self._audit = audit
        self._end_former = end_former
        self._refreshing = Tasks("cached records")
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def attach(self, session: Session, granted: CredentialClaims | None) -> Resolved:
        """Load a session from its record, which the store has just returned, and update its context by the claims
        `granted` of the request's credential. Return the session.

        Raises:
            OwnedByPeer: another replica owns the session.
        """
        live = self._live.get(session.id)
        if live is None or not live.recovered or session.owner != self._replica or _is_before(live, session):
            live = await self._attach_again(session, granted)
        else:
            _use_read(live, session)
        if self._rules.renewed(live.session, granted) == live.session.context:
            live.act_for(granted)
            # The same object as the record's: later code compares the two by identity, and then copies no record.
            return Resolved(live=live, context=live.session.context)
        context = await self._renew(live, granted)
        return Resolved(live=live, context=context)  # the session may have another one from another request by now

    async def _attach_again(self, session: Session, granted: CredentialClaims | None) -> LiveSession:
        unowned, was_owned, epoch = not session.owner, session.owner == self._replica != "", session.epoch
        if self._cluster is not None:
            session = await self._cluster.ensure_owner(session, session.principal, granted)
        former = self._live.get(session.id)
        if former is not None and _is_before(former, session, claimed=session.epoch != epoch):
            self._end_former(former)
        is_new = self._live.get(session.id) is None
        was_released = is_new and unowned and self._cluster is not None
        # Owned by this process but not live in it: it had lost the session, and a store failover has undone that loss.
        was_lost = is_new and was_owned
        live = self._live.of(session, new_process="drain" if was_released else "takeover" if was_lost else "")
        if is_new:
            self._audit.record("resumed", session=session)
        await live.recover()
        return live

    def refresh(self, live: LiveSession) -> "asyncio.Future[None]":
        """Read a session's record again in the background, while the cached record serves calls. Return a future that
        is done when the read has ended. Concurrent callers share one read, and the future never raises."""
        return self._refreshing.start(live, lambda: self._refresh(live))

    async def _refresh(self, live: LiveSession) -> None:
        known = live.session
        with contextlib.suppress(StoreUnavailable):  # the next call that waits for the record meets the error itself
            session = await self._store.resume(known.id, known.principal, known)
            # An ended session, or another owner, is left to the next call that reads the record itself.
            if session is not None and session.owner == self._replica and self._live.get(session.id) is live:
                _use_read(live, session)

    def announces_other(self, request: Request, resolved: Resolved) -> bool:
        """Return True if a request announces a workspace that differs from its session's workspace.

        Raises:
            Refused: 400, the announced workspace cannot be used.
        """
        announced = self._announcements.workspace(request.meta)
        return bool(announced) and announced != resolved.context.workspace

    async def apply_announced(
        self, request: Request, who: RequestContext, resolved: Resolved, *, anew: bool = False
    ) -> tuple[Resolved, Object]:
        """Decide whether the session gets the workspace that a request announces. Return the session with its context
        after that, and the `_meta` that reports the decision in the request's result.

        A workspace set by the credential or a rule stays. A session without a workspace gets the announced one. Only an
        `initialize` (`anew`) replaces an announced workspace, because other clients of the session rely on it.

        Raises:
            Refused: 400, the session has another announced workspace.
        """
        live, known = resolved.live, resolved.context
        announced = self._announcements.workspace(request.meta)
        if known.provenance.workspace != "announced":
            if resolved.opened or anew:
                self._log(live, "an announced workspace has no effect, because a credential or a rule sets it")
            return resolved, _workspace_result(known.workspace, applied=False)
        if known.workspace and not anew:
            raise other_workspace(known.workspace, announced)
        async with self._context_lock(live):
            before = live.session.context
            # Of two announcements at once, the second is decided on the record that the first has written. Memory may
            # hold an older record, if another request has read it before that write and stored it here after that.
            await self._read(live)
            for _ in range(_TRIES):
                known = self._rules.renewed(live.session, who.claims)
                if known.workspace == announced:
                    return msgspec.structs.replace(resolved, context=known), _workspace_result(announced, applied=True)
                if known.workspace and not anew:
                    raise other_workspace(known.workspace, announced)
                context = self._rules.context(who.principal, who.claims, announced, announced_fields_of(known))
                if await self._write(live, context):
                    break
            else:
                raise StoreUnavailable(_BUSY)
            live.act_for(who.claims)
        await live.close_outdated_links(finish_calls=_grant_alike(before, known, context))
        self._log(live, "a client has announced the workspace of its session %s", "anew" if known.workspace else "late")
        return msgspec.structs.replace(resolved, context=context), _workspace_result(announced, applied=True)

    @staticmethod
    def _log(live: LiveSession, text: str, *values: str) -> None:
        logger.info(text, *values, extra={"session": redact(live.session.id)})

    async def _renew(self, live: LiveSession, granted: CredentialClaims | None) -> Context:
        """Store and return the context (the rights) that the claims `granted` of the credential and the rules give the
        session now. Close the session's links to servers, which were started with the old context."""
        async with self._context_lock(live):
            before = live.session.context
            for _ in range(_TRIES):
                known, context = live.session.context, self._rules.renewed(live.session, granted)
                if context == known or await self._write(live, context):
                    break
            else:
                raise StoreUnavailable(_BUSY)
            live.act_for(granted)  # in the same step as the context: no server gets one without the other
        await live.close_outdated_links(finish_calls=_grant_alike(before, known, context))
        return context

    def _context_lock(self, live: LiveSession) -> asyncio.Lock:
        """Return the lock that must be held while a change of the session's context is decided and stored."""
        return self._changing.setdefault(live.session.id, asyncio.Lock())

    async def _write(self, live: LiveSession, context: Context) -> bool:
        """Store a context that was decided from the cached record, and return True. If the stored record has changed
        since it was cached, read it again, store nothing and return False. Storing also deletes the ids of the
        session's MCP sessions at HTTP servers, which have the old context and must not be resumed."""
        session = live.session
        renewed = await self._store.update(session.id, if_version=session.version, context=context, remote=())
        if renewed is None and await self._read(live):
            return False
        # Set before the next await: no server of a later call may start with the old context.
        unstored = msgspec.structs.replace(live.session, context=context, remote=())
        live.replace_record(unstored if renewed is None else renewed)
        return True

    async def _read(self, live: LiveSession) -> bool:
        """Read a session's record from the store, and cache it. Return False if the session has ended."""
        session = await self._store.peek(live.session.id)
        if session is not None:
            _use_read(live, session)
        return session is not None

    def attach_new(self, session: Session, granted: CredentialClaims | None) -> Resolved:
        """Load a session that this replica has just created, and return it. It has no event streams to recover.
        `granted` are the claims of its client's credential."""
        live = self._live.of_new(session)
        live.act_for(granted)
        return Resolved(live=live, context=session.context, opened=True)

    def take_over(self, session: Session) -> None:
        """Load a session that this replica has claimed from a dead owner. Do nothing if another request has done so
        already."""
        live = self._live.get(session.id)
        if live is not None and live.session.epoch == session.epoch:
            return
        if live is not None:
            self._end_former(live)
        self._live.of(session, new_process="takeover")
        self._audit.record("resumed", session=session, reason="taken over from a replica that does not answer")


def _is_before(live: LiveSession, session: Session, *, claimed: bool = False) -> bool:
    """Return True if `live` is from before the claim that `session` shows, so that `live` must be closed. `session` is
    the record as read from the store. Return False if that record may be older than the claim of `live`, which cannot
    be if this replica has made the claim in the record just now (`claimed`)."""
    return live.session.epoch != session.epoch and (claimed or session.version >= live.session.version)


def _use_read(live: LiveSession, session: Session) -> None:
    """Cache a record that the store has just returned, unless the cached one is newer, because it was written
    meanwhile."""
    live.replace_record(session if session.version >= live.session.version else live.session, is_read=True)


def _grant_alike(*contexts: Context) -> bool:
    """Return True if `contexts`, which a session has had one after the other, grant the same rights. Then calls in
    flight may finish under the first of them. Different workspaces are different rights, unless the client itself
    announced them."""
    granted = {(each.trust, each.permissions, each.read_only, each.rights) for each in contexts}
    announced = all(each.provenance.workspace == "announced" for each in contexts)
    return len(granted) == 1 and (announced or len({each.workspace for each in contexts}) == 1)


def _workspace_result(workspace: str, *, applied: bool) -> Object:
    return {WORKSPACE_KEY: msgspec.Raw(encode({"workspace": workspace, "applied": applied}))}
