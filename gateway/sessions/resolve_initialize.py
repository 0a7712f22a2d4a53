"""Find the session of an `initialize` request, which only legacy clients (MCP before 2026-07-28) send: the session that
the client names, or an earlier one of its principal (`session.reattach`), else a new one."""

from dataclasses import dataclass

from gateway.config.sessions import SessionSettings
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.observability.timelines import INITIALIZED_AGAIN
from gateway.sessions.record_changes import RecordLimits
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.session_aliases import Alias, Aliases, reattach_alias
from gateway.sessions.session_loading import Resolved, SessionAttacher
from gateway.sessions.stored_session_lookup import SessionLookup
from gateway.sessions.token_carriers import asks_for_new, explicit_token, same_client
from session_store import ClientFacts
from transports.inbound_port import Refused, Request
from transports.jsonrpc import Object


@dataclass(eq=False, repr=False, kw_only=True)
class InitializeResolver:
    """Finds or opens the sessions of `initialize` requests."""

    resolver: SessionResolver
    lookup: SessionLookup
    attacher: SessionAttacher
    aliases: Aliases
    limits: RecordLimits
    settings: SessionSettings
    audit: Audit

    async def apply_announced(
        self, request: Request, who: RequestContext, resolved: Resolved
    ) -> tuple[Resolved, Object]:
        """Apply the workspace that an `initialize` announces, if it differs from the session's workspace. Return the
        session, and the `_meta` that reports the decision in the result (`SessionAttacher.apply_announced`)."""
        if not self.attacher.announces_other(request, resolved):
            return resolved, {}
        return await self.attacher.apply_announced(request, who, resolved, anew=True)

    async def initialize(self, request: Request, who: RequestContext, client: ClientFacts) -> Resolved:
        """Find or open the session of an `initialize`. A token of an ended session is no error: the client gets a new
        session.

        Raises:
            Refused: -32602, the parameters of `initialize` are larger than a record may keep; 400, a session key cannot
                be used; as `SessionOpener.open`.
            OwnedByPeer: another replica owns the session.
        """
        self.limits.check_handshake(client.initialize_params)
        if request.forwarded is not None:
            return await self.resolver.resume_by_id(request.forwarded.session_id, who, request.era)
        alias = self.aliases.of_key(request, who.principal)
        resolved = await self._resume(request, who, client, alias)
        if resolved is not None:
            if resolved.live.session.client.initialize_params:  # else an event stream has opened it a moment ago
                self.audit.record("resumed", session=resolved.live.session, reason=INITIALIZED_AGAIN)
            return resolved
        if alias is None and "principal" in self.settings.reattach and not asks_for_new(request):
            name = reattach_alias(who.principal, client.name, request.endpoint)
            alias = None if name is None else Alias(name)
        return await self.resolver.open(request, who, client, alias)

    async def _resume(
        self, request: Request, who: RequestContext, client: ClientFacts, key: Alias | None
    ) -> Resolved | None:
        if (token := explicit_token(request)) is not None:
            try:
                session_id = self.lookup.id_of_token(token, request.era, who.principal)
                session = await self.lookup.by_id(session_id, request.era, who.principal)
            except Refused:
                pass  # the session has ended: the client gets a new one
            else:
                return await self.attacher.attach(session, who.claims)
        if key is not None:
            return await self.resolver.resume_by_alias(key, who)
        if "cookie" in self.settings.reattach and not asks_for_new(request):
            resolved = await self.resolver.resume_by_cookie(request, who)
            if resolved is not None and same_client(resolved.live.session, request, client):
                return Resolved(live=resolved.live, context=resolved.context)
        return None
