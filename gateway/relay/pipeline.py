"""Handles the requests of inbound wires: identifies the client, applies rates, and hands over to the client's era.

The whole way of a request: wire, pipeline, session, admission, server, reply (`docs/architecture.md`).
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from gateway.calls.call import message_of
from gateway.calls.immediate_reply import ImmediateReply
from gateway.calls.session_frames import SessionFrames
from gateway.context.facts import correlation_id
from gateway.errors import TOO_OFTEN, is_bad_request_state, outcome_unknown, store_refused, unknown_method
from gateway.identity.authenticate import Authenticated, Identity
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.observability.logs import CLIENT, CORRELATION
from gateway.observability.outcome import OK, Outcome
from gateway.observability.request_log import CORRELATION_HEADER, RequestLog
from gateway.policy.rate_limits import RateLimits
from gateway.protocol.methods import NO_REQUESTS
from gateway.relay.legacy import LegacyClients
from gateway.relay.modern import ModernClients
from gateway.sessions.event_streams import EventStreamSessions
from session_store import Principal, StoreError
from transports.era import MODERN
from transports.inbound_port import Answer, Carried, EventSource, Refused, Request
from transports.jsonrpc import encode

__all__ = ["Pipeline", "store_errors_refused"]

# What MCP defines, and is no request of clients of that era, reaches no server: policy knows only what it decides on.
_NOT_LEGACY: Final = NO_REQUESTS["legacy"]
_NOT_MODERN: Final = NO_REQUESTS["modern"]


class Pipeline:
    """Handles the messages of inbound wires (`transports.inbound_port.Handler`)."""

    def __init__(
        self,
        *,
        identity: Identity,
        audit: Audit,
        legacy: LegacyClients,
        modern: ModernClients,
        watching: RequestLog,
        rates: RateLimits,
        streams: EventStreamSessions,
        watches: Iterable[SessionFrames] = (),
    ) -> None:
        self._streams = streams
        self._identity = identity
        self._audit = audit
        self._legacy = legacy
        self._modern = modern
        self._watching = watching
        self._rates = rates
        self._watches = watches

    async def call(self, request: Request) -> Answer:
        who = None
        try:
            who = await self._who(request)
            if message_of(request).method in (_NOT_MODERN if request.era is MODERN else _NOT_LEGACY):
                raise unknown_method(str(message_of(request).method), request.era)
            clients = self._modern if request.era is MODERN else self._legacy
            answer = await clients.call(request, who)
        except (StoreError, Refused) as error:
            raise self._refusal(request, who, error) from None
        return self._answered(request, who, answer)

    def _answered(self, request: Request, who: RequestContext, answer: Answer) -> Answer:
        """Record an answer that is no call."""
        if isinstance(answer, ImmediateReply):
            outcome = OK if answer.error_code is None else Outcome.error(answer.error_code)
            self._watching.answered(request, who.principal, outcome, answer.log_facts, answer.why)
        return answer

    def _refusal(self, request: Request, who: RequestContext | None, error: StoreError | Refused) -> Refused:
        """Record that a call is refused, and return the refusal."""
        refused = store_refused(error) if isinstance(error, StoreError) else error
        if error is refused and who is not None and (refused.code == TOO_OFTEN or is_bad_request_state(refused)):
            self._audit.record("refused", era=request.era, principal=str(who.principal), reason=str(refused))
        if request.again:
            refused = outcome_unknown()
        refused.of_request(CORRELATION.get())
        for frames in self._watches:
            frames.refused(message_of(request), refused)
        self._watching.refused(request, None if who is None else who.principal, refused)
        return refused

    def refused(self, headers: Mapping[str, str], refused: Refused, *, again: bool = False) -> Refused:
        if refused.correlation:
            return refused  # it is the outcome of a call, and recorded
        if again:
            refused = outcome_unknown()
        # A request without an id was refused by its wire, before it came here.
        refused.of_request(CORRELATION.get() or correlation_id(headers, {}))
        self._watching.refused_by_wire(refused)
        return refused

    async def admit(self, request: Request) -> None:
        who = None
        try:
            who = await self._authenticated(request)
            await self._rates.body(who.principal, request.client, request.body_bytes)
        except Refused as refused:
            raise self._not_admitted(request, who, refused) from None

    def _not_admitted(self, request: Request, who: Authenticated | None, refused: Refused) -> Refused:
        """Record that a request was refused after its head, before its body was decoded."""
        CLIENT.set(request.client)
        sent = "" if request.forwarded is None else request.headers.get(CORRELATION_HEADER, "")
        CORRELATION.set(sent or correlation_id(request.headers, {}))
        self._audit_refused(request, who, refused)
        return refused

    async def join(self, request: Request) -> Carried:
        who = await self._who(request)
        with store_errors_refused():
            return replace(await self._streams.join(request, who), caller=_name_of(who.principal))

    async def carried(self, request: Request) -> Carried:
        who = await self._who(request)
        with store_errors_refused():
            return replace(await self._streams.carried(request, who), caller=_name_of(who.principal))

    async def leave(self, token: str) -> None:
        await self._streams.leave(token)

    async def negotiated(self, request: Request) -> str:
        with store_errors_refused():
            return await self._legacy.negotiated(request, await self._who(request))

    async def notify(self, request: Request) -> list[tuple[bytes, bytes]]:
        who = await self._who(request)
        with store_errors_refused():
            if request.era is MODERN:
                return await self._modern.notify(request, who)
            await self._legacy.notify(request, who)
        return []

    async def respond(self, request: Request) -> None:
        with store_errors_refused():
            await self._legacy.respond(request, await self._who(request))

    async def stream(self, request: Request, last_event_id: str | None) -> EventSource:
        with store_errors_refused():
            who = await self._who(request)
            return await self._legacy.stream(request, who, last_event_id)

    async def end(self, request: Request) -> None:
        with store_errors_refused():
            await self._legacy.end(request, await self._who(request))

    async def _who(self, request: Request) -> RequestContext:
        """Authenticate a request, or take over the principal that another replica has authenticated. From now on log
        lines have the correlation id of the request and the address of its client."""
        CLIENT.set(request.client)
        if self._watching.tracing is not None and request.message is not None and request.message.is_request:
            correlation = self._watching.tracing.arrived(request).correlation
        else:
            sent = "" if request.forwarded is None else request.headers.get(CORRELATION_HEADER, "")
            correlation = sent or correlation_id(request.headers, request.meta)
        CORRELATION.set(correlation)
        if request.forwarded is not None:  # its sender has counted it
            return RequestContext(request.forwarded.principal, request.forwarded.granted, correlation)
        who = None
        try:
            who = await self._authenticated(request)
            await self._rates.message(who.principal, request.client)
        except Refused as refused:
            self._audit_refused(request, who, refused)
            raise
        return RequestContext(who.principal, who.granted, correlation, who.until)

    async def _authenticated(self, request: Request) -> Authenticated:
        """Return who sends a request. Raises `Refused`: 401, its credential is not valid."""
        who: Authenticated | None = request.vouched_for or self._identity.known(request.headers, request.peer)
        return await self._identity.verify(request.headers, request.peer) if who is None else who

    def _audit_refused(self, request: Request, who: Authenticated | RequestContext | None, refused: Refused) -> None:
        principal = "" if who is None else str(who.principal)
        self._audit.record("refused", era=request.era, principal=principal, reason=str(refused))


def _name_of(principal: Principal) -> str:
    """A name for the wire, which does not reveal the principal."""
    return hashlib.sha256(encode([principal.issuer, principal.subject])).hexdigest()


@contextlib.contextmanager
def store_errors_refused() -> Iterator[None]:
    """Turn errors of the store into refusals inside the block."""
    try:
        yield
    except StoreError as error:
        raise store_refused(error) from None
