"""Sends and answers calls that are like one before them, with what was decided on that one.

A call that took the general way leaves a `FastPath` with the head of its request: what was found for it, and the form
of its frame. The next call that fits is sent if everything still holds that the decision rests on
(`FastPath.begin`), and answered in the turn in which its server answers. No rule of the general way is repeated here:
what may have changed is asked of those who decide it, or has raised `LiveSession.version`.

Before its frame is written, a call for which anything is unusual takes the general way from its beginning. Afterwards
it falls back (`FastCall.fall_back`) to the exchange that the general way would have made of it, and goes on as
that. So nothing unusual has code here. docs/adr/0040-the-fast-path.md
"""

import asyncio
import logging
import math
import weakref
from collections.abc import Callable
from time import monotonic, time
from typing import Final, NamedTuple, Protocol, cast

import msgspec

from gateway.bridge.legacy_server import LegacyServerBridge
from gateway.bridge.modern_server import ModernServerBridge
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.cluster.ownership import Cluster
from gateway.context.facts import new_correlation_id, trace_id_of
from gateway.errors import InvalidArguments
from gateway.identity.request_context import RequestContext
from gateway.observability.logs import CLIENT, CORRELATION
from gateway.observability.outcome import OK, EndedCall, is_complete, outcome_of
from gateway.observability.request_log import RequestLog
from gateway.policy.rate_limits import RateLimits
from gateway.protocol.reserved_meta import may_name_reserved
from gateway.relay.admission import AdmittedTool, Route
from gateway.relay.frame_form import FrameForm, Prepared
from gateway.sessions.attach import Resolved
from gateway.sessions.cached_record import AGING_AFTER_S
from gateway.sessions.resolve import SessionResolver
from transports.inbound_port import (
    Answer,
    AnsweringConnection,
    HeaderList,
    Holes,
    Refused,
    Request,
    WaitingConnection,
)
from transports.jsonrpc import Object, encode_result, splice

__all__ = ["Decided", "FastCall", "FastPath", "FastPaths"]

logger = logging.getLogger(__name__)

_METHOD: Final = "tools/call"

_USUAL_S: Final = 1.0
"""A call that has no answer for so long falls back, if it cannot be slow or late or need an event stream before."""


class Decided(NamedTuple):
    """What was decided on a call, for those that differ from it in id, arguments and progress token alone: its session
    in that version, the headers that give its client the session, what makes the exchange of another such call, and
    what has found the session."""

    resolved: Resolved
    version: int
    headers: HeaderList
    exchange_for: Callable[[Request, RequestContext], Exchange]
    resolver: SessionResolver


class GeneralWay(Protocol):
    """The steps of the general way that the fast path has done for it (`gateway.relay.call.Intake`)."""

    max_exchanges: int

    def may_repeat(self, request: Request, route: Route) -> bool:
        """Return True if calls like one that took that route need no look of their own."""
        ...

    def prepared(
        self, decided: Decided, route: Route, request: Request, who: RequestContext, params: Object
    ) -> Prepared:
        """Make what a server gets of a request with these params. Nothing is sent or counted."""
        ...

    def begin(
        self,
        exchange: Exchange,
        request: Request,
        who: RequestContext,
        params: Object,
        headers: HeaderList,
        *,
        may_repeat: bool = False,
    ) -> tuple[Answer, Object]:
        """Begin to answer a call that was counted."""
        ...


class _Forever:
    """The lease of a replica that shares its store with none."""

    trusted_until = math.inf


class FastPaths:
    """Makes the fast paths of one gateway process, and records the calls that took them."""

    def __init__(self, way: GeneralWay, rates: RateLimits, log: RequestLog, cluster: Cluster | None) -> None:
        self.lease = _Forever() if cluster is None else cluster.lease
        self.way = way
        self.rates = rates
        self.log = log
        self._ended: list[FastCall] = []

    def of(
        self,
        decided: Decided,
        route: Route,
        who: RequestContext,
        accepted: Object,
        request: Request,
        quiet_after_s: float,
    ) -> "FastPath | None":
        """Make a path for calls that are like this request, on which that was decided, and which was sent by that
        route. None: each of them has to take the general way. `accepted` are the params that were decided on.
        `quiet_after_s`: without an answer for so long, the client needs an event stream."""
        if accepted != request.params:
            return None  # something was taken out of what the client has sent, as it would have to be each time
        if request.again or "traceparent" in request.meta:
            return None
        if request.forwarded is not None and self.log.tracing is not None:
            return None  # the span of its sender decides
        resolved, conversation = decided.resolved, route.held_conversation
        if conversation is None or not isinstance(route.admitted, AdmittedTool):
            return None
        if _lasts_s(request, who, decided) <= 0 or not route.leads_to(conversation, request.era):
            return None
        live = resolved.live
        if (
            live.version != decided.version
            or not decided.resolver.holds(live)
            or live.frames is not None
            or not conversation.has_nothing_but_calls(live)
        ):
            return None
        if not self.way.may_repeat(request, route) or not _may_be_bare(request, route.admitted):
            return None
        prepared = self.way.prepared(decided, route, request, who, request.params)
        if not _is_plain(prepared.exchange, conversation):
            return None
        frame = FrameForm.of(prepared, who.correlation)
        if frame is None:
            return None
        usual_s = min(_USUAL_S, quiet_after_s, conversation.deadlines.call_s, route.admitted.slow_s)
        return FastPath(self, decided, route, who, request, frame, prepared, usual_s)

    def ended(self, call: "FastCall") -> None:
        """Record a call that went well, in the next turn of the event loop."""
        self._ended.append(call)
        if len(self._ended) == 1:
            call.path.loop.call_soon(self._record)

    def _record(self) -> None:
        calls, self._ended = self._ended, []
        since = time() - monotonic()
        for call in calls:
            path, tool, session = call.path, call.path.tool, call.path.live.session
            at, took_s = since + call.ended_at, call.ended_at - call.began
            try:
                ended = EndedCall(
                    at, _METHOD, tool.name, path.server, OK, took_s, session, call.correlation, "", tool.is_listed
                )
                path.live.count(None)
                self.log.went_well(ended, path.era)
                if tool.is_audited:
                    tool.ended(ended)
            except Exception:
                logger.exception("a call was answered, and could not be recorded")


def _lasts_s(request: Request, who: RequestContext, decided: Decided) -> float:
    """Return for how many seconds the same bytes are of the same caller, and for the same session while it lives."""
    resolved = decided.resolved
    if resolved.live.session.context != resolved.context:
        return 0.0
    return min(who.until - time(), decided.resolver.same_session_for_s(request, who, resolved))


def _is_plain(exchange: Exchange, conversation: Conversation) -> bool:
    """Return True if answers of calls with such an exchange need nothing but to be translated between the eras."""
    if type(exchange) is not Exchange or exchange.forwarded is not None:
        return False
    if conversation.log_level_for(exchange):
        return False  # which the server may have to be told
    bridge = exchange.bridge
    is_shaped = exchange.shape is not None and not exchange.keeps_complete
    return not is_shaped and (bridge is None or type(bridge) in (LegacyServerBridge, ModernServerBridge))


def _may_be_bare(request: Request, tool: AdmittedTool) -> bool:
    """Return True if the request has arguments, or if a call without any is sent without any. As all that decides on it
    is the same each time, calls that are like it need no check of their own."""
    if "arguments" in request.params:
        return True
    try:
        return tool.checker(request.check_mirrored)(b"{}") == b"{}"
    except (ValueError, msgspec.MsgspecError, Refused, InvalidArguments):
        return False  # the general way says why, each time


def _as_given(arguments: bytes) -> bytes:
    return arguments


class FastPath:
    """Holds what was decided on a call, and sends those that are like it (`transports.inbound_port.CallPath`)."""

    __slots__ = """_check _client _conversation _decided _frame _has_ids _has_trace _is_forwarded _principal _resolver
        _route _tracing _usual_s _waits _who __weakref__ era facts facts_version headers is_over is_shaped live loop
        paths server tool translate until version""".split()

    def __init__(
        self,
        paths: FastPaths,
        decided: Decided,
        route: Route,
        who: RequestContext,
        request: Request,
        frame: FrameForm,
        prepared: Prepared,
        usual_s: float,
    ) -> None:
        bridge, conversation = prepared.exchange.bridge, route.held_conversation
        assert isinstance(route.admitted, AdmittedTool) and conversation is not None
        self.paths = paths
        self._decided = decided
        self._route = route
        self._who = who
        self._is_forwarded = request.forwarded is not None
        # The rate of a forwarded call's sender was spent where it came from.
        self._principal, self._client = None if self._is_forwarded else who.principal, request.client
        self.until = monotonic() + _lasts_s(request, who, decided)
        self.facts = route.upstream.known
        self.facts_version = self.facts.version
        self._resolver = decided.resolver
        self.headers = decided.headers
        # A connection that rests does not keep what its session has given up.
        self._conversation = weakref.ref(conversation)
        self._frame = frame
        self._waits = prepared.waits
        self._tracing = paths.log.tracing
        self._has_trace = "traceparent" in request.headers
        self._has_ids = self._tracing is not None or self._has_trace or self._is_forwarded
        # Not the bridge: it would keep the conversation.
        self.translate: Callable[[bytes], bytes | None] = splice
        if isinstance(bridge, LegacyServerBridge | ModernServerBridge):
            self.translate = bridge.translator(_METHOD)
        self._usual_s = usual_s
        self.tool = route.admitted
        self._check = self.tool.checker(request.check_mirrored) if "arguments" in request.params else _as_given
        self.live = decided.resolved.live
        self.version = self.live.version
        self.era = request.era
        # A result that is not complete is for the shape, which the general way applies.
        self.is_shaped = prepared.exchange.shape is not None
        self.server = conversation.name
        self.loop = asyncio.get_running_loop()
        self.is_over = False
        """Whether what was decided does not hold any more."""
        self.live.hold_path(self)

    def begin(
        self,
        connection: AnsweringConnection,
        body: bytes,
        holes: Holes,
        trace: bytes = b"",
        correlation: str = "",
        *,
        arrived_at: float = 0.0,
    ) -> "FastCall | _CallBehindRead | None":
        """Send a call. None: nothing was done, and the call is to take the general way. `arrived_at`: the call has
        come then, and the record of its session was read since; 0: it comes now."""
        if self.is_over:
            return None
        live, paths, now = self.live, self.paths, monotonic()
        if live.version != self.version or self.facts.version != self.facts_version or now >= self.until:
            self.is_over = True
            return None
        if now - live.read_at >= AGING_AFTER_S and not self._resolver.still_serves(live):
            waits = not arrived_at and not self._is_forwarded  # else its sender would have to be told
            return (
                _CallBehindRead(self, cast("WaitingConnection", connection), body, holes, trace, now) if waits else None
            )
        if now >= paths.lease.trusted_until or live.busy >= paths.way.max_exchanges or (self._waits and self._waits()):
            return None
        correlation, trace = self._ids(trace, correlation) if self._has_ids else (new_correlation_id(), trace)
        client_id, given = holes
        try:
            arguments = self._check(given)
        except (ValueError, msgspec.MsgspecError, RecursionError, Refused, InvalidArguments):
            return None  # the general way says why
        rates, session_id = paths.rates, live.session.id
        if (conversation := self._conversation()) is None or not correlation:
            return None
        if not rates.spend_at_hand(self._principal, self._client, session_id):
            return None
        number = conversation.next_number()
        began = arrived_at or now
        call = FastCall(self, connection, conversation, client_id, number, correlation, began, began + self._usual_s)
        if not conversation.send_fast(number, self._frame.frame(number, arguments, correlation, trace), call):
            rates.give_back(self._principal, self._client, session_id)
            return None
        live.begin_use()
        if self._tracing is not None:
            self._tracing.begun_unsampled()
        return call

    def let_go(self) -> None:
        """Keep nothing of the session, which has ended: the connection may rest for long."""
        self.is_over = True
        del self.live, self.tool, self._check, self._decided, self._frame, self._route, self._waits

    def read_again(self) -> "asyncio.Future[None]":
        """Read the record of the session, once for all calls that wait for it."""
        return self._resolver.read_again(self.live)

    def _ids(self, trace: bytes, correlation: str) -> tuple[str, bytes]:
        """Return the correlation id, and the `traceparent` for the server, of a call with that `traceparent` in its
        head, to which another replica may have given that correlation id. They are empty if the general way has to look
        at it: it is not valid, or the call is recorded, or has a `traceparent` and the first call had none."""
        if self._is_forwarded:
            is_alike = bool(trace) is self._has_trace and (not trace or trace_id_of(trace.decode()) != "")
            # The frame gets the id between quotation marks, as it is.
            return (correlation, trace) if is_alike and correlation.isascii() and correlation.isalnum() else ("", b"")
        if self._tracing is None:
            return trace_id_of(trace.decode()), trace
        unsampled = self._tracing.unsampled(trace.decode())
        return ("", b"") if unsampled is None else (unsampled.correlation, unsampled.parent)

    def as_answer(self, request: Request, call: "FastCall") -> Answer:
        """Make the exchange of a call that was sent, as the general way would have, and return its answer."""
        who = RequestContext(self._who.principal, self._who.claims, call.correlation)
        params = request.params
        if "arguments" in params:
            params = params | {"arguments": msgspec.Raw(self._check(bytes(params["arguments"])))}
        prepared = self.paths.way.prepared(self._decided, self._route, request, who, params)
        exchange, params, meta = prepared.exchange, prepared.params, prepared.meta
        answer, _ = self.paths.way.begin(exchange, request, who, request.params, self.headers, may_repeat=True)
        self.tool.begins(exchange)
        exchange.frame(call.number, params, meta)  # which keeps the token of its client
        link = call.conversation.link
        # Without a link it may be that which has forgotten the session, and the call is sent over the next one.
        sent = (params, meta) if link is None or link.may_forget else None
        exchange.sent_as(call.conversation, call.number, sent, call.began)
        call.conversation.calls.send(exchange)
        return answer


class _CallBehindRead:
    """Sends a call once the record of its session was read (`CallInFlight`)."""

    def __init__(
        self,
        path: FastPath,
        connection: WaitingConnection,
        body: bytes,
        holes: Holes,
        trace: bytes,
        arrived_at: float,
    ) -> None:
        self._path = path
        self._connection: WaitingConnection | None = connection
        self._body, self._holes, self._trace, self._arrived_at = body, holes, trace, arrived_at
        path.read_again().add_done_callback(self._read)

    def _read(self, _: object) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            call = self._path.begin(connection, self._body, self._holes, self._trace, arrived_at=self._arrived_at)
        except Exception:
            logger.exception("a call cannot be sent on the fast path")
            call = None
        if call is None:
            connection.begin_general()
        else:
            connection.goes_on(call)

    def fall_back(self) -> None:
        """Have the handler serve the request: nothing was done."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.begin_general()


class FastCall(msgspec.Struct, eq=False):
    """One call on its way (`gateway.calls.in_flight.FastCall`, `transports.inbound_port.CallInFlight`)."""

    path: FastPath
    connection: AnsweringConnection
    conversation: Conversation
    client_id: bytes
    number: int
    correlation: str
    began: float
    falls_back_at: float
    ended_at: float = 0.0

    def answer(self, result: msgspec.Raw) -> bool:
        """Answer its client with its server's result. False: it has fallen back."""
        path, now, data = self.path, monotonic(), bytes(result)
        is_answered = False
        try:
            if (
                path.live.version == path.version
                and path.facts.version == path.facts_version
                and now < path.paths.lease.trusted_until
                and now - self.began <= path.tool.slow_s
                and not may_name_reserved(data)
            ):
                answer = path.translate(data)
                is_answered = (
                    answer is not None
                    and (not path.is_shaped or is_complete(answer))
                    and outcome_of(answer) is OK
                    and self.connection.answer_fast(encode_result(self.client_id, answer), path.headers)
                )
        except Exception:
            logger.exception("an answer cannot be given on the fast path")
        if is_answered:
            self.ended_at = now
            del self.conversation.calls.fast[self.number]
            self.conversation.links.rest()
            path.live.end_use()
            path.paths.ended(self)
            return True
        self.fall_back()
        return False

    def fall_back(self) -> None:
        """Go on as the exchange that the general way would have made. Does nothing the second time, nor after the
        answer."""
        path = self.path
        if self.conversation.calls.fast.pop(self.number, None) is not self:
            return
        path.live.end_use()
        self.connection.fall_back(self.began, self._as_answer)

    def _as_answer(self, request: Request) -> Answer:
        """Return its answer on the general way. Called in a context of the request's own."""
        CLIENT.set(request.client)
        CORRELATION.set(self.correlation)
        return self.path.as_answer(request, self)
