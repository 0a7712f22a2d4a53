"""Standing decisions: what was decided on a call, for those that differ from it in id, arguments and progress token.

Such calls have one `transports.inbound_port.Request.standing`. The usual way makes every decision. A decision stands
until that way would come to another one: this is asked on each call, of the session (`SessionResolver.known`) and of
the server (`Route.conversation_for`).
"""

from collections.abc import Callable
from typing import Final, Protocol

from gateway.calls.exchange import Exchange
from gateway.context.facts import CONTEXT_KEY, ContextMeta, with_context
from gateway.identity.request_context import RequestContext
from gateway.protocol.capabilities import Caller
from gateway.protocol.params import meta_of
from gateway.protocol.reserved_meta import without_reserved
from gateway.relay.route import Route
from gateway.sessions.attach import Resolved
from gateway.sessions.resolve import SessionResolver
from session_store import Session
from transports.inbound_port import Request
from transports.jsonrpc import Object

__all__ = ["StandingDecision", "decision_on", "standing_decision"]

Headers = list[tuple[bytes, bytes]]
_TOKEN: Final = "progressToken"


class ClientsOfEra(Protocol):
    """Those who decide on the calls of clients of one era."""

    def exchange_for(self, decision: "StandingDecision", request: Request, who: RequestContext) -> Exchange:
        """The exchange of a call on which that was decided."""
        ...

    @property
    def resolver(self) -> SessionResolver:
        """What has found the session."""
        ...


class StandingDecision:
    """The session of a call, and what its client says of itself in the head and in `_meta`.

    `resolved` is None for a request without a session. `caller` is None for a legacy client, `headers` give the client
    its session. `takes_tasks`: the client declares that it does; `names_session`: results have the session.
    `route` is None until a call was sent at once. `clients` have decided.
    """

    __slots__ = (
        "_clients",
        "_facts",
        "_meta",
        "caller",
        "headers",
        "names_session",
        "resolved",
        "route",
        "takes_tasks",
    )

    def __init__(
        self,
        request: Request,
        resolved: Resolved | None,
        *,
        clients: ClientsOfEra,
        headers: Headers,
        caller: Caller | None = None,
        takes_tasks: bool = False,
        names_session: bool = False,
    ) -> None:
        self.resolved = resolved
        self._clients = clients
        self._meta = without_reserved(meta_of(request.params))
        self._facts: ContextMeta | None = None
        self.headers = headers
        self.caller = caller
        self.takes_tasks = takes_tasks
        self.names_session = names_session
        self.route: Route | None = None

    def keep_for(self, request: Request) -> None:
        """Keep it for the calls that are like this one. Only for a call that is about to be given to `Intake.accept` as
        any other of its kind is: those that become tasks, or are answered here, are decided on one by one."""
        if request.standing is not None and self.resolved is not None:
            request.standing.keep(self)

    def meta_with(self, params: Object, correlation: str, facts_of: Callable[[Session], ContextMeta]) -> Object:
        """The `_meta` for the server of a call with these params: the client's, and the facts of the session, which has
        the context of the request. `facts_of` is `SessionFacts.meta`."""
        assert self.resolved is not None
        if self._facts is None:
            self._facts = facts_of(with_context(self.resolved.live.session, self.resolved.context))
        meta = self._meta | {CONTEXT_KEY: self._facts.of(correlation)}
        if _TOKEN in meta:
            meta[_TOKEN] = meta_of(params)[_TOKEN]
        return meta

    def sent_by(self, route: Route) -> None:
        """A call was sent by that route."""
        self.route = route

    def exchange_for(self, request: Request, who: RequestContext) -> Exchange:
        """The exchange of another call on which this holds."""
        return self._clients.exchange_for(self, request, who)

    @property
    def resolver(self) -> SessionResolver:
        """What has found the session."""
        return self._clients.resolver


def standing_decision(request: Request, who: RequestContext, resolver: SessionResolver) -> StandingDecision | None:
    """The decision on an earlier call that was like this one, if this one belongs to the same session, and nothing of
    the session's record has changed."""
    found: StandingDecision | None = None if request.standing is None else request.standing.kept
    if found is None or found.route is None:
        return None
    known = resolver.known(request, who)
    return found if known is not None and known is found.resolved else None


def decision_on(request: Request, exchange: Exchange) -> StandingDecision | None:
    """The decision on a call that is about to be sent; None if none is kept for those that are like it."""
    found: StandingDecision | None = None if request.standing is None else request.standing.kept
    resolved = None if found is None else found.resolved
    if resolved is None or exchange.live is not resolved.live or exchange.context is not resolved.context:
        return None
    return found if type(exchange) is Exchange else None
