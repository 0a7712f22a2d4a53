"""Carriers → session: open, resume, re-attach, end. Says which session a request belongs to, and to nobody else's."""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.ownership import Cluster, Forwarded
from gateway.config.sessions import SessionSettings
from gateway.context.facts import announced_workspace
from gateway.errors import no_session, session_unknown
from gateway.identity.context_rules import ContextRules, CredentialClaims
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.policy.quotas import PrincipalQuotas
from gateway.sessions.aliases import default_alias, reattach_alias
from gateway.sessions.carriers import Carriers, cookies_of, explicit_token, modern_client, same_client
from gateway.sessions.metadata import metadata_of
from gateway.sessions.record_limits import RecordLimits
from gateway.upstreams.prestart import PrestartPool
from session_store import (
    Bus,
    ClientFacts,
    Context,
    KeyRing,
    Principal,
    Session,
    SessionStore,
    StoreUnavailable,
)
from session_store.ports.sessions import SetField
from session_store.session import new_session_id, origin_of
from transports.era import Era
from transports.inbound_port import Refused, Request

__all__ = ["ENDED", "Resolved", "Sessions"]

logger = logging.getLogger(__name__)


ENDED: Final = "mcp:ended"
"""The topic on which every replica hears the ids of sessions that ended, whoever ended them."""

JUST_NOW_S: Final = 0.01
"""How long what a session's owner has read of it is good for more requests (docs/adr/0009-cached-records.md)."""

CHECKED_AT_ONCE: Final = 256
"""How many of the sessions this replica holds are looked up at each round, in case their end was not heard."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The session a request belongs to, and the context that its own credential gives it there. `cookie_held` says that
    the client holds its cookie already."""

    live: LiveSession
    context: Context
    opened: bool = False
    cookie_held: bool = False


class Sessions:
    """The sessions of the gateway's clients."""

    def __init__(
        self,
        *,
        store: SessionStore,
        bus: Bus,
        audit: Audit,
        live: LiveSessions,
        ring: KeyRing,
        settings: SessionSettings,
        room: RecordLimits | None = None,
        clock: Callable[[], float],
        closed: Callable[[LiveSession], None],
        rules: ContextRules,
        quotas: PrincipalQuotas,
        warm: PrestartPool,
        cluster: Cluster | None = None,
    ) -> None:
        self._store = store
        self._bus = bus
        self._audit = audit
        self._live = live
        self._carriers = carriers = Carriers(ring, cookie=settings.cookie)
        self.token = carriers.token
        self._settings = settings
        self._room = RecordLimits() if room is None else room
        self._clock = clock
        self._closed = closed
        self._rules = rules
        self._quotas = quotas
        self._warm = warm
        self._cluster = cluster
        self.replica = "" if cluster is None else cluster.replica
        self._closing: set[asyncio.Task[None]] = set()
        self._unchecked: list[str] = []

    def _refused(self, era: Era, principal: Principal, reason: str, session_id: str = "") -> None:
        """What a client brought is not good: the audit trail says why, the answer does not."""
        self._audit.tell("refused", session_id=session_id, era=era, principal=str(principal), reason=reason)

    async def _refused_id(self, session_id: str, era: Era, principal: Principal) -> None:
        fate = await self._store.fate(session_id)
        self._refused(era, principal, "somebody else's" if fate == "live" else fate, session_id)

    # -- which session

    async def resume(self, request: Request, who: RequestContext) -> Resolved | None:
        """The session the request carries, in the order of carriers: header, `_meta`, cookie, default session.

        Raises:
            Refused: 404 when an explicit carrier does not name a live session of this principal; 503.
        """
        if request.forwarded is not None:
            return await self._resume_forwarded(request.forwarded, who, request.era)
        if (token := explicit_token(request)) is not None:
            session_id = self._carriers.tokens.verify(token)
            if session_id is None:
                self._refused(request.era, who.principal, "no token of ours")
                raise session_unknown()
            return await self.resume_by_id(session_id, who, request.era)
        if (resolved := await self._by_cookie(request, who)) is not None:
            return resolved
        alias = self._default_alias(request, who.principal)
        return None if alias is None else await self._by_alias(alias, who)

    async def _resume_forwarded(self, forwarded: Forwarded, who: RequestContext, era: Era) -> Resolved:
        """As `resume_by_id`. What the other replica has just read in the store need not be read again."""
        live = self._live.get(forwarded.session_id)
        if live is not None and not live.ended and live.recovered and self._cluster is not None:
            session = live.session
            here = (session.owner, session.epoch, session.version, session.principal)
            there = (self.replica, forwarded.epoch, forwarded.version, who.principal)
            if here == there and self._cluster.is_fresh and self._is_current(session, who.granted):
                return Resolved(live=live, context=session.context)
        return await self.resume_by_id(forwarded.session_id, who, era)

    async def resume_by_id(self, session_id: str, who: RequestContext, era: Era) -> Resolved:
        """The session of an id that a token or a sealed `requestState` names.

        Raises:
            Refused: 404; the log says why, the answer does not.
        """
        live, principal = self._live.get(session_id), who.principal
        if live is not None and self._was_just_read(live, who):
            return Resolved(live=live, context=live.session.context)
        try:
            session = await self._store.resume(session_id, principal, None if live is None else live.session)
        except StoreUnavailable:
            if live is None or not self._goes_on(live, who):
                raise
            return Resolved(live=live, context=live.session.context)
        if session is None:
            await self._refused_id(session_id, era, principal)
            raise session_unknown()
        if live is not None and not live.ended and live.recovered and session.owner == self.replica:
            live.session, live.read_at = session, monotonic()
            return await self._resolved(live, who.granted)
        return await self.found(session, who.granted)

    def _was_just_read(self, live: LiveSession, who: RequestContext) -> bool:
        """Whether the record was read less than `JUST_NOW_S` ago and fits this request: then the store is not asked. If
        the message is lost that tells of its end elsewhere, the session is served for that much longer."""
        session = live.session
        return (
            monotonic() - live.read_at < JUST_NOW_S
            and not live.ended
            and session.principal == who.principal
            and (self._cluster is None or (self._cluster.is_fresh and session.id not in self._cluster.released))
            and self._is_current(session, who.granted)
        )

    def _is_current(self, session: Session, granted: CredentialClaims | None) -> bool:
        """Whether the session's context is what its principal's credential and the rules say now."""
        return self._rules.renewed(session, granted) == session.context

    async def _resolved(self, live: LiveSession, granted: CredentialClaims | None) -> Resolved:
        """The session for a request with that credential. Where its principal has gained or lost something, its servers
        are started anew: what they were told of it holds no more."""
        context = self._rules.renewed(live.session, granted)
        if context != live.session.context:
            renewed = await self._store.update(live.session.id, context=context)
            # Set before anything is waited for: nobody may start a server with what holds no more.
            live.session = msgspec.structs.replace(live.session, context=context) if renewed is None else renewed
            await live.renew()
        return Resolved(live=live, context=context)

    def context_of(self, request: Request, who: RequestContext) -> Context:
        """What a session of such a request would have, for those that need none."""
        announced = announced_workspace(request.meta, self._settings.workspace_path)
        return self._rules.context(who.principal, who.granted, announced)

    def _goes_on(self, live: LiveSession, who: RequestContext) -> bool:
        """Whether a session is served while the store is silent: ours for as long as the lease is good."""
        session = live.session
        is_ours = self._cluster is not None and self._cluster.is_fresh_for_a_while and session.owner == self.replica
        is_theirs = session.principal == who.principal and self._is_current(session, who.granted)
        return is_ours and is_theirs and not live.ended and not session.is_expired(self._clock())

    async def found(self, session: Session, granted: CredentialClaims | None) -> Resolved:
        """A session that a client came back to; worth telling when this replica had nothing of it.

        Raises:
            Elsewhere: another replica owns it.
        """
        unowned = not session.owner
        if self._cluster is not None:
            session = await self._cluster.own(session, session.principal, granted)
        is_new = self._live.get(session.id) is None
        live = self._live.of(session)
        if is_new:
            if unowned and self._cluster is not None:
                live.new_process = "drain"
            self._audit.tell("resumed", session=session)
        await live.recover()
        return await self._resolved(live, granted)

    def took_over(self, session: Session) -> None:
        """Its owner is gone, and this replica has claimed it."""
        self._live.of(session).new_process = "takeover"
        self._audit.tell("resumed", session=session, reason="its gateway is gone")

    def lost(self, session_id: str) -> None:
        """Another replica has taken it over."""
        self._close_soon(session_id, over=False, lost=True)

    async def require(self, request: Request, who: RequestContext) -> Resolved:
        """As `resume`, for a legacy message, which has to name its session."""
        resolved = await self.resume(request, who)
        if resolved is None:
            raise no_session()
        return resolved

    async def resume_or_open(self, request: Request, who: RequestContext) -> Resolved:
        """As `resume`; a modern client without a session gets one."""
        resolved = await self.resume(request, who)
        if resolved is not None:
            return resolved
        facts = modern_client(request)
        return await self._open(request, who, facts, alias=self._default_alias(request, who.principal))

    async def initialize(self, request: Request, who: RequestContext, facts: ClientFacts) -> Resolved:
        """The session for a legacy `initialize`: a live one that it names, or where re-attaching is on, else a new one.

        A stale token is no error here: the client is about to get a fresh session anyway.

        Raises:
            Refused: its parameters are more than a record keeps.
        """
        self._room.check_handshake(facts.initialize_params)
        if request.forwarded is not None:
            return await self.resume_by_id(request.forwarded.session_id, who, request.era)
        token, principal = explicit_token(request), who.principal
        session = None if token is None else await self._by_signed(token, request.era, principal)
        if session is None and "cookie" in self._settings.reattach:
            by_cookie = await self._by_cookie(request, who)
            if by_cookie is not None and same_client(by_cookie.live.session, request, facts):
                session = by_cookie.live.session
        if session is not None:
            resolved = await self.found(session, who.granted)
            self._audit.tell("resumed", session=session, reason="initialized again")
            return resolved
        alias = None
        if "principal" in self._settings.reattach:
            alias = reattach_alias(principal, facts.name, request.endpoint)
        return await self._open(request, who, facts, alias=alias)

    async def _open(self, request: Request, who: RequestContext, facts: ClientFacts, *, alias: str | None) -> Resolved:
        if self._cluster is not None:
            self._cluster.check_reachable()
        now, principal, settings = self._clock(), who.principal, self._settings
        context = self.context_of(request, who)
        session = Session(
            id=new_session_id(),
            principal=principal,
            endpoint=request.endpoint,
            era=request.era,
            created_at=now,
            used_at=now,
            idle_ttl_s=settings.idle_ttl_s,
            max_age_s=settings.max_age_s,
            unconfirmed_ttl_s=settings.unconfirmed_ttl_s,
            confirmed=not principal.is_anonymous,
            origin=origin_of(request.client) if principal.is_anonymous else "",
            client=facts,
            context=context,
            owner=self.replica,
            epoch=1 if self.replica else 0,
        )
        session = replace(session, metadata=metadata_of(session, settings.metadata))
        with self._warm.beginning(session) as session:
            kept = await self.keep(session, alias)
            if kept.id != session.id:
                return await self.found(kept, who.granted)
            self._warm.opened(session)
        self._audit.tell("created", session=session)
        live = self._live.of(kept)
        live.recovered = True  # there is nothing to recover
        return Resolved(live=live, context=context, opened=True)

    async def keep(self, session: Session, alias: str | None) -> Session:
        """The session once it is in the store; where its alias names another one already, that.

        Raises:
            Refused: 429, its principal has as many as it may.
        """
        try:
            await self._quotas.session(session)
        except Refused:
            named = None if alias is None else await self._store.resume_alias(alias)
            if named is None:
                raise
            return named
        kept = None
        try:
            kept = await self._store.create(session, alias=alias)
        finally:
            if kept is None or kept.id != session.id:
                await self._quotas.session_over(session)
        return kept

    async def _by_alias(self, alias: str, who: RequestContext) -> Resolved | None:
        try:
            found = await self._store.resume_alias(alias)
        except StoreUnavailable:
            named = [live for live in self._live if live.alias == alias and self._goes_on(live, who)]
            if not named:
                raise
            return Resolved(live=named[0], context=named[0].session.context)
        if found is None:
            return None
        resolved = await self.found(found, who.granted)
        resolved.live.alias = alias
        return resolved

    async def _by_signed(self, value: str, era: Era, principal: Principal, *, cookie: bool = False) -> Session | None:
        """The session that a token or a cookie names. The audit trail has what is no good, but for cookies of sessions
        that are gone: clients return them without knowing it."""
        session_id = (self._carriers.cookies if cookie else self._carriers.tokens).verify(value)
        if session_id is None:
            self._refused(era, principal, "no cookie of ours" if cookie else "no token of ours")
            return None
        session = await self._store.resume(session_id, principal)
        if session is None and not cookie:
            await self._refused_id(session_id, era, principal)
        return session

    async def _by_cookie(self, request: Request, who: RequestContext) -> Resolved | None:
        """A cookie that is no good is no error: clients return cookies without knowing it."""
        if not self._settings.cookie or not request.same_site:
            return None
        for value in cookies_of(request):
            session = await self._by_signed(value, request.era, who.principal, cookie=True)
            if session is not None:
                resolved = await self.found(session, who.granted)
                return msgspec.structs.replace(resolved, cookie_held=True)
        return None

    def _default_alias(self, request: Request, principal: Principal) -> str | None:
        return default_alias(request, principal) if self._settings.default_session else None

    # -- its life

    def headers(self, resolved: Resolved, request: Request) -> list[tuple[bytes, bytes]]:
        """How the client learns of its session."""
        return self._carriers.headers(resolved.live.session, request, cookie_held=resolved.cookie_held)

    async def update(self, live: LiveSession, **fields: Any) -> None:
        """Change fields of the record, here and in the store."""
        session = await self._store.update(live.session.id, **fields)
        if session is not None:
            live.session = session

    async def subscribe(self, live: LiveSession, uri: str) -> None:
        """Remember a subscription, for the next process of its server. Raises `Refused`: there is no room for it."""
        await self._room.subscribe(live, uri, self._change_set)

    async def unsubscribe(self, live: LiveSession, uri: str) -> None:
        await self._change_set(live, "subscriptions", remove=uri)

    async def record_use(self, live: LiveSession, upstream: str) -> bool:
        """Remember that the session uses that upstream. True when it did so in a gateway process before this one."""
        if upstream in live.session.links:
            return True
        await self._change_set(live, "links", add=upstream)
        return False

    async def remote_session_changed(self, live: LiveSession, old: str, new: str) -> None:
        """Remember what a later link can go on with, in place of what an earlier one could."""
        await self._change_set(live, "remote", add=new, remove=old)

    async def _change_set(self, live: LiveSession, field: SetField, **change: str) -> None:
        session = await self._store.change_set(live.session.id, field, **change)
        if session is not None:
            live.session = session

    async def end(self, session_id: str, reason: str) -> bool:
        """End a session at once, with its processes. Idempotent; True for the caller who ended it."""
        found = await self._store.peek(session_id)
        ended = await self._store.end(session_id)
        for child in () if found is None else found.children:
            await self.end(child, f"{reason}, and this session was within it")
        if ended:
            self._audit.tell("ended", session=found, session_id=session_id, reason=reason)
            if found is not None:
                await self._quotas.session_over(found)
        closing = self._close_soon(session_id)
        if ended:
            await self._announce(session_id)
        await asyncio.shield(closing)
        return ended

    async def _announce(self, session_id: str) -> None:
        try:
            await self._bus.publish(ENDED, session_id.encode())
        except StoreUnavailable:
            logger.warning("an ended session could not be announced; other replicas find out at their next round")

    async def close(self, session_id: str, *, over: bool = True, lost: bool = False) -> None:
        """End what this replica holds of a session that is gone from the store, or that it leaves to others."""
        live = self._live.remove(session_id)
        if live is not None:
            self._closed(live)
            await live.close(over=over, lost=lost)

    def heard(self, data: bytes | None) -> None:
        """A session ended on some replica; None: some may have, and the next rounds will find out."""
        if data is not None and self._live.get(data.decode()) is not None:
            self._close_soon(data.decode())

    def _close_soon(self, session_id: str, *, over: bool = True, lost: bool = False) -> asyncio.Task[None]:
        # Not waited for: a child that will not go must not keep the next round from keeping sessions alive.
        task = asyncio.create_task(self.close(session_id, over=over, lost=lost))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def sweep(self) -> None:
        """Keep alive what is or was in use, and end what has ended by itself or elsewhere."""
        await self.keep_alive()
        for gone in await self._store.sweep():
            live = self._live.get(gone.session_id)
            session = None if live is None else live.session
            self._audit.tell(gone.reason, session=session, session_id=gone.session_id)
            if session is not None:
                await self._quotas.session_over(session)
            self._close_soon(gone.session_id)
            await self._announce(gone.session_id)
        if not self._unchecked:
            self._unchecked = [live.session.id for live in self._live]
        checked, self._unchecked = self._unchecked[:CHECKED_AT_ONCE], self._unchecked[CHECKED_AT_ONCE:]
        for session_id in await self._store.gone(checked):
            self._close_soon(session_id)
        await self._audit.flush()

    async def release_idle(self) -> bool:
        """Let go of sessions that nobody waits for, so that other replicas can serve them; whether none is left."""
        assert self._cluster is not None
        idle = [live for live in self._live if not live.exchanges and not live.has_suspended]
        for live in idle:
            # All in one turn: a request that comes now finds that it has to go elsewhere.
            live.ended = True
            self._live.remove(live.session.id)
            self._closed(live)
            self._cluster.let_go(live.session)
        # Its new owner may start before the old processes have ended: nobody calls those any more.
        await asyncio.gather(*(self._store.touch(live.session.id) for live in idle))
        await asyncio.gather(*(self._cluster.release(live.session) for live in idle))
        for live in idle:
            task = asyncio.create_task(live.close(over=False))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return not any(True for _ in self._live)

    async def keep_alive(self) -> None:
        """Idle time counts from the end of the last exchange: written for all sessions at once, not for each call."""
        used = [live for live in self._live if live.take_use()]
        try:
            await asyncio.gather(*(self._store.touch(live.session.id) for live in used))
        except StoreUnavailable:
            for live in used:
                live.keep_use()
            raise

    async def closed_all(self) -> None:
        """Until everything that is ending has ended."""
        await asyncio.gather(*self._closing, return_exceptions=True)
