"""Open new sessions. `resolve.py` decides which requests need one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.config.sessions import SessionSettings
from gateway.context.announced_context import Announcements
from gateway.errors import bad_context, not_found_by_others
from gateway.identity.context_rules import ContextRules
from gateway.identity.request_context import RequestContext
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.sessions.session_aliases import Alias
from gateway.sessions.session_attaching import Resolved, SessionAttacher
from gateway.upstreams.prestart import PrestartPool
from session_store import ClientFacts, Context, Session
from session_store.session import (
    InvalidMetadata,
    checked_metadata,
    merged_metadata,
    new_session_id,
    origin_of,
    token_hash_of,
)
from transports.inbound_port import Request


@dataclass(eq=False, repr=False, kw_only=True)
class SessionOpener:
    """Builds the record of a new session from a request and the operator's settings, and stores it."""

    lifecycle: SessionLifecycle
    attacher: SessionAttacher
    settings: SessionSettings
    rules: ContextRules
    announcements: Announcements
    prestart: PrestartPool
    clock: Callable[[], float]

    def context_of(self, request: Request, who: RequestContext) -> Context:
        """Return the context (the rights) that a session opened by this request would have.

        Raises:
            Refused: 400, the announced workspace cannot be used.
        """
        announced = self.announcements.of(request, is_anonymous=who.principal.is_anonymous)
        return self.rules.context(who.principal, who.claims, announced.workspace, announced.fields)

    async def open(self, request: Request, who: RequestContext, client: ClientFacts, alias: Alias | None) -> Resolved:
        """Open a session, and return it. If `alias` names a session that has not ended, return that one instead. A
        client with a session key can come back, so its session has its full time to live from the start (`confirmed`).

        Raises:
            Refused: 429, the principal has the maximum number of sessions; 503, other replicas do not reach this one.
            OwnedByPeer: another replica owns the session with this alias.
        """
        cluster = self.lifecycle.cluster
        if cluster is not None and not cluster.is_reachable:
            raise not_found_by_others()
        session = self._new(request, who, client)
        if alias is not None and alias.is_key:
            session = replace(session, confirmed=True)
        with self.prestart.beginning(session) as session:
            kept = await self.lifecycle.create(session, None if alias is None else alias.name)
            if kept.id != session.id:
                return await self.attacher.attach(kept, who.claims)
            self.prestart.opened(session)
        self.lifecycle.created(kept)
        return self.attacher.attach_new(kept, who.claims)

    def _new(self, request: Request, who: RequestContext, client: ClientFacts) -> Session:
        now, principal, settings = self.clock(), who.principal, self.settings
        is_anonymous = principal.is_anonymous
        context = self.context_of(request, who)
        lifetimes = self.rules.lifetimes(principal, context)
        session = Session(
            id=new_session_id(),
            principal=principal,
            endpoint=request.endpoint,
            era=request.era,
            created_at=now,
            used_at=now,
            idle_ttl_s=lifetimes.get("idle_ttl_s", (settings.idle_ttl_s, ""))[0],
            max_age_s=lifetimes.get("max_age_s", (settings.max_age_s, ""))[0],
            unconfirmed_ttl_s=settings.unconfirmed_ttl_s,
            confirmed=not is_anonymous,
            origin=origin_of(request.client) if is_anonymous else "",
            client=client,
            context=context,
            token_hash=token_hash_of(request.headers.get("authorization", "")),
        )
        return replace(session, metadata=metadata_of(session, settings.metadata)) if settings.metadata else session


def metadata_of(session: Session, rules: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a new session. `rules` are the operator's: names, and texts whose placeholders are filled
    in from the session. Characters that metadata must not have are removed, because clients choose some of the values.

    Raises:
        Refused: 400, the metadata is too large.
    """
    filled = {
        name: text.format(
            principal=session.principal,
            agent=session.client.name,
            workspace=session.context.workspace,
            trust=session.context.trust,
            endpoint=session.endpoint,
        )
        for name, text in rules.items()
    }
    try:
        return merged_metadata({}, checked_metadata(filled))
    except InvalidMetadata as error:
        raise bad_context(str(error)) from None
