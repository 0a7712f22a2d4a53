"""Send and answer calls that repeat an earlier call, by the decision that was made on the earlier one (the *fast
path*).

A call that has taken all steps of `gateway.relay.call` (the *general way*) leaves a `FastPath` beside the parsed head
of its HTTP request. The path has the decision, and a template of the message for the server. `FastPath.begin` sends the
next such call if the decision is still valid. The answer is written in the same iteration of the event loop in which it
arrives.

No rule of the general way is repeated here. A change that matters to the decision raises `LiveSession.version`, or the
object that knows of the change is asked. An unusual call takes the general way if its message is not sent yet.
Otherwise it falls back (`FastCall.fall_back`): it becomes the exchange that the general way would have made, and
continues there. So this module has no code for unusual cases. docs/adr/0040-the-fast-path.md"""

import asyncio
import logging
import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, time
from typing import Final, NamedTuple, Protocol, cast

import msgspec

from gateway.bridge.legacy_server import LegacyServerBridge
from gateway.bridge.modern_server import ModernServerBridge
from gateway.calls.client_request import IncomingCall
from gateway.calls.conversation import Conversation
from gateway.calls.event_log import EventWriter
from gateway.calls.exchange import Exchange
from gateway.cluster.ownership import Cluster
from gateway.context.session_facts import new_correlation_id, trace_id_of
from gateway.errors import InvalidArguments
from gateway.identity.request_context import RequestContext
from gateway.observability.logs import CLIENT, CORRELATION
from gateway.observability.request_log import RequestLog
from gateway.observability.request_outcomes import OK, EndedCall, is_complete, outcome_of
from gateway.policy.rate_limits import RateLimits
from gateway.protocol.reserved_meta import may_name_reserved
from gateway.relay.frame_template import FrameTemplate, Prepared
from gateway.relay.policy_admission import AdmittedTool, CallTarget
from gateway.relay.reply_delivery import record_whole
from gateway.sessions.cached_record_validity import AGING_AFTER_S
from gateway.sessions.client_return_tracking import UsedIds
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.session_attaching import Resolved
from transports.era import LEGACY
from transports.inbound_port import (
    Answer,
    AnsweringConnection,
    CallValues,
    HeaderList,
    Refused,
    Request,
    WaitingConnection,
)
from transports.jsonrpc import Object, encode_result, splice
from transports.reply_queue import Frame

logger = logging.getLogger(__name__)

_METHOD: Final = "tools/call"

_USUAL_S: Final = 1.0
"""Seconds without an answer after which a call leaves the fast path, and is continued by the usual steps. If the call
has a shorter limit of its own, that one counts."""


class CallDecision(NamedTuple):
    """The gateway's decision on a tool call, to be used for later calls that differ only in id, arguments and progress
    token."""

    resolved: Resolved
    """The session of the call."""
    version: int
    """The value of `LiveSession.version` at the decision. The decision is no longer valid once it has changed."""
    headers: HeaderList
    """The response headers that give the client its session token."""
    exchange_for: Callable[[Request, RequestContext], Exchange]
    """Makes the exchange (the state of a call) of a later call."""
    resolver: SessionResolver
    """The resolver that has found the session. It knows how long requests with the same headers lead there."""


class GeneralWay(Protocol):
    """The methods of `gateway.relay.call.Intake` that the fast path uses. They are described there."""

    max_exchanges: int
    """How many calls a session may have in flight."""
    events: EventWriter
    """Stores the messages to legacy clients for replay."""

    def may_take_fast_path(self, request: Request, target: CallTarget) -> bool: ...
    def prepared(
        self, decision: CallDecision, target: CallTarget, request: Request, who: RequestContext, params: Object
    ) -> Prepared: ...
    def begin(self, coming: IncomingCall) -> tuple[Answer, Object]: ...


class _Forever:
    """A lease on the sessions that never expires. Used if no other replica shares the store, so that none can take them
    over."""

    trusted_until = math.inf


class FastPaths:
    """Make the fast paths of this gateway process, and log the calls that have used them."""

    def __init__(self, way: GeneralWay, rates: RateLimits, log: RequestLog, cluster: Cluster | None) -> None:
        self.lease = _Forever() if cluster is None else cluster.lease
        self.way = way
        self.rates = rates
        self.log = log
        self._ended: list[FastCall] = []

    def of(
        self,
        decision: CallDecision,
        target: CallTarget,
        who: RequestContext,
        accepted: Object,
        request: Request,
        quiet_after_s: float,
    ) -> "FastPath | None":
        """Return a fast path for calls like this request. Return None if such calls must pass through all usual steps
        (the general way). `who` sent the request, `decision` let it pass, and `accepted` is what `target` got as
        params. `quiet_after_s` is how many seconds without an answer may pass before the reply must become an event
        stream."""
        if accepted != request.params:
            return None  # part of the client's params was removed, and would have to be each time
        if request.again or "traceparent" in request.meta:
            return None
        if request.forwarded is not None and self.log.tracing is not None:
            return None  # the span of the sending replica says whether the call is recorded
        resolved, conversation = decision.resolved, target.held_conversation
        if conversation is None or not isinstance(target.admitted, AdmittedTool):
            return None
        if _lasts_s(request, who, decision) <= 0 or not target.leads_to(conversation, request.era):
            return None
        live = resolved.live
        if (
            live.version != decision.version
            or not decision.resolver.holds(live)
            or live.recorder is not None
            or not conversation.can_send_fast(live)
        ):
            return None
        if not self.way.may_take_fast_path(request, target) or not _may_skip_checks(request, target.admitted):
            return None
        prepared = self.way.prepared(decision, target, request, who, request.params)
        if not _is_plain(prepared.exchange, conversation):
            return None
        frame = FrameTemplate.of(prepared, who.correlation)
        if frame is None:
            return None
        usual_s = min(_USUAL_S, quiet_after_s, conversation.deadlines.call_s, target.admitted.slow_s)
        return FastPath(self, decision, target, who, request, frame, prepared, usual_s)

    def ended(self, call: "FastCall") -> None:
        """Log a successful call, in the next iteration of the event loop."""
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
                self.log.record_success(ended, path.era)
                if tool.is_audited:
                    tool.ended(ended, path.client)
            except Exception:
                logger.exception("a call was answered, and could not be recorded")


def _lasts_s(request: Request, who: RequestContext, decision: CallDecision) -> float:
    """Return for how many seconds from now the decision holds for requests like this one: they certainly have the same
    caller and the same session. Return 0 or less if it does not hold at all."""
    resolved = decision.resolved
    if resolved.live.session.context != resolved.context:
        return 0.0
    return min(who.until - time(), decision.resolver.same_session_for_s(request, who, resolved))


def _must_wait(used: UsedIds | None, waits: Callable[[], bool] | None, request_id: bytes) -> bool:
    """Return True if a call must take the general way (all usual steps). That is so if the call has to wait for its
    server (`waits` returns True), or if another client may have sent it. `used` has the request ids that clients of a
    shared default session have used before: another client may have sent the call if its id is among them."""
    return (used is not None and request_id in used) or (waits is not None and waits())


def _is_plain(exchange: Exchange, conversation: Conversation) -> bool:
    """Return True if answers to calls like this one pass to the client unchanged, or only translated between the
    eras."""
    if type(exchange) is not Exchange or exchange.forwarded is not None:
        return False
    if conversation.log_level_for(exchange):
        return False  # the server may have to be told the level first
    bridge = exchange.bridge
    is_shaped = exchange.shape is not None and not exchange.keeps_complete
    return not is_shaped and (bridge is None or type(bridge) in (LegacyServerBridge, ModernServerBridge))


def _may_skip_checks(request: Request, tool: AdmittedTool) -> bool:
    """Return True if a fast path can check the arguments of later calls like this request. If this request has
    arguments, that is so unless the audit trail records arguments. If it has none, that is so if empty arguments pass
    the check unchanged."""
    if "arguments" in request.params:
        return not tool.keeps_arguments
    try:
        return tool.checker(request.check_mirrored)(b"{}") == b"{}"
    except (ValueError, msgspec.MsgspecError, Refused, InvalidArguments):
        return False  # the general way says why, each time


def _as_given(arguments: bytes) -> bytes:
    return arguments


class FastPath:
    """Send calls that repeat an earlier call, by the decision on the earlier one
    (`transports.inbound_port.CallPath`)."""

    __slots__ = """_check _conversation _decision _frame _has_ids _has_trace _is_forwarded _is_noted _principal
        _resolver _target _tracing _used_ids _usual_s _waits _who __weakref__ client era events facts facts_version
        headers is_over is_shaped live loop paths server tool translate until version""".split()

    def __init__(
        self,
        paths: FastPaths,
        decision: CallDecision,
        target: CallTarget,
        who: RequestContext,
        request: Request,
        frame: FrameTemplate,
        prepared: Prepared,
        usual_s: float,
    ) -> None:
        bridge, conversation = prepared.exchange.bridge, target.held_conversation
        assert isinstance(target.admitted, AdmittedTool) and conversation is not None
        self.paths = paths
        self._decision = decision
        self._target = target
        self._who = who
        self._is_forwarded = request.forwarded is not None
        # The replica that forwards a call has already counted it against its sender's rate.
        self._principal, self.client = None if self._is_forwarded else who.principal, request.client
        self.until = monotonic() + _lasts_s(request, who, decision)
        self.facts = target.upstream.known
        self.facts_version = self.facts.version
        self._resolver = decision.resolver
        self.headers = decision.headers
        # Weak, because an idle connection must not keep a conversation that its session gave up.
        self._conversation = weakref.ref(conversation)
        self._frame = frame
        self._tracing, used = paths.log.tracing, decision.resolver.used_ids(decision.resolved.live, request)
        self._used_ids, self._is_noted = used, used is not None or self._tracing is not None
        self._waits = None if used is None and prepared.waits is None else partial(_must_wait, used, prepared.waits)
        self._has_trace = "traceparent" in request.headers
        self._has_ids = self._tracing is not None or self._has_trace or self._is_forwarded
        # Only the bridge's function, because the bridge would keep the conversation.
        self.translate: Callable[[bytes], bytes | None] = splice
        if isinstance(bridge, LegacyServerBridge | ModernServerBridge):
            self.translate = bridge.translator(_METHOD)
        self._usual_s = usual_s
        self.tool = target.admitted
        self._check = self.tool.checker(request.check_mirrored) if "arguments" in request.params else _as_given
        self.live = decision.resolved.live
        self.version = self.live.version
        self.era = request.era
        # A result that is not complete needs the shape, which only the general way applies.
        self.is_shaped = prepared.exchange.shape is not None
        self.events = paths.way.events if request.era is LEGACY else None
        self.server = conversation.name
        self.loop = asyncio.get_running_loop()
        self.is_over = False
        """True once the decision on the earlier call is no longer valid."""
        self.live.hold_path(self)

    def begin(
        self,
        connection: AnsweringConnection,
        body: bytes,
        values: CallValues,
        trace: bytes = b"",
        correlation: str = "",
        *,
        arrived_at: float = 0.0,
    ) -> "FastCall | _CallBehindRead | None":
        """Send a call to its server, and return it. If the record of its session must be read again first, return a
        call that is sent after that. Return None, and do nothing, if the call must take all usual steps (the general
        way).

        `trace` is the call's `traceparent`. `correlation` is the correlation id from the replica that has forwarded the
        call. `arrived_at` is the monotonic time at which the call came in, if it had to wait for its session's record;
        else 0."""
        if self.is_over:
            return None
        live, paths, now = self.live, self.paths, monotonic()
        if live.version != self.version or self.facts.version != self.facts_version or now >= self.until:
            self.is_over = True
            return None
        if now - live.read_at >= AGING_AFTER_S and not self._resolver.still_serves(live):
            waits = not arrived_at and not self._is_forwarded  # a forwarding replica would have to be told of the wait
            return (
                _CallBehindRead(self, cast("WaitingConnection", connection), body, values, trace, now)
                if waits
                else None
            )
        if now >= paths.lease.trusted_until or live.busy >= paths.way.max_exchanges:
            return None
        correlation, trace = self._ids(trace, correlation) if self._has_ids else (new_correlation_id(), trace)
        try:
            arguments = self._check(values[2])
        except (ValueError, msgspec.MsgspecError, RecursionError, Refused, InvalidArguments):
            return None  # the general way says why
        rates, session_id = paths.rates, live.session.id
        if (
            (conversation := self._conversation()) is None
            or not correlation
            or (self._waits and self._waits(values[0]))
        ):
            return None
        if not rates.spend_at_hand(self._principal, self.client, session_id):
            return None
        number = conversation.next_number()
        began = arrived_at or now
        call = FastCall(self, connection, conversation, values, number, correlation, began, began + self._usual_s)
        if not conversation.send_fast(number, self._frame.frame(number, arguments, correlation, trace), call):
            rates.give_back(self._principal, self.client, session_id)
            return None
        live.begin_use()
        if self._is_noted:
            self._begun(values[0])
        return call

    def _begun(self, request_id: bytes) -> None:
        """Do what has to follow a call that was sent: use up the trace id that was generated for it, and record its
        request id if several clients share its session by default."""
        if self._tracing is not None:
            self._tracing.unsampled_id_used()
        if self._used_ids is not None:
            self._used_ids.add(request_id)

    def let_go(self) -> None:
        """Drop references to the session, which has ended. An idle connection may keep this object for a long time."""
        self.is_over = True
        del self.live, self.tool, self._check, self._decision, self._frame, self._target, self._waits

    def read_again(self) -> "asyncio.Future[None]":
        """Read the session's record from the store again, and return a future that is done when the read has ended. All
        waiting calls share one read."""
        return self._resolver.attacher.refresh(self.live)

    def _ids(self, trace: bytes, correlation: str) -> tuple[str, bytes]:
        """Return the correlation id of a call, and the `traceparent` for its server. `trace` is the call's
        `traceparent`; `correlation` is the id from the replica that has forwarded the call. The returned id is empty if
        the call must pass through all usual steps: an id is invalid, the trace is sampled, or only one of this call and
        the call that it repeats has a trace."""
        if self._is_forwarded:
            is_alike = bool(trace) is self._has_trace and (not trace or trace_id_of(trace.decode()) != "")
            # The id goes into the frame between quotation marks, without escaping.
            return (correlation, trace) if is_alike and correlation.isascii() and correlation.isalnum() else ("", b"")
        if self._tracing is None:
            return trace_id_of(trace.decode()), trace
        unsampled = self._tracing.unsampled(trace.decode())
        return ("", b"") if unsampled is None else (unsampled.correlation, unsampled.parent)

    def as_answer(self, request: Request, call: "FastCall") -> Answer:
        """Make the exchange that this sent call would have got from the usual steps, because it leaves the fast path.
        Return the reply of the exchange. `request` is the parsed request of the call."""
        who = RequestContext(self._who.principal, self._who.claims, call.correlation)
        params = request.params
        if "arguments" in params:
            params = params | {"arguments": msgspec.Raw(self._check(bytes(params["arguments"])))}
        prepared = self.paths.way.prepared(self._decision, self._target, request, who, params)
        exchange, params, meta = prepared.exchange, prepared.params, prepared.meta
        answer, _ = self.paths.way.begin(IncomingCall(exchange, request, who, request.params, self.headers))
        self.tool.begins(exchange)
        exchange.frame(call.number, params, meta)  # keeps the client's progress token
        link = call.conversation.link
        # A lost link may be the one that has forgotten the session. Then the call is sent again over the next link.
        sent = (params, meta) if link is None or link.may_forget else None
        exchange.sent_as(call.conversation, call.number, sent, call.began)
        call.conversation.calls.add_sent(exchange)
        if call.progress is not None:
            exchange.restart_deadline()
            for frame in call.progress:
                exchange.emit(frame)
        return answer


class _CallBehindRead:
    """Wait until the record of a call's session was read from the store again, then send the call
    (`transports.inbound_port.CallInFlight`)."""

    def __init__(
        self,
        path: FastPath,
        connection: WaitingConnection,
        body: bytes,
        values: CallValues,
        trace: bytes,
        arrived_at: float,
    ) -> None:
        self._path = path
        self._connection: WaitingConnection | None = connection
        self._body, self._values, self._trace, self._arrived_at = body, values, trace, arrived_at
        path.read_again().add_done_callback(self._read)

    def _read(self, _: object) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            call = self._path.begin(connection, self._body, self._values, self._trace, arrived_at=self._arrived_at)
        except Exception:
            logger.exception("a call cannot be sent on the fast path")
            call = None
        if call is None:
            connection.begin_general()
        else:
            connection.goes_on(call)

    def fall_back(self) -> None:
        """Stop waiting, and let the usual steps handle the request, which was not sent yet."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.begin_general()


class FastCall(msgspec.Struct, eq=False):
    """A call that was sent to the server on the fast path and has no answer yet
    (`gateway.calls.in_flight.CallOnFastPath`, `transports.inbound_port.CallInFlight`)."""

    path: FastPath
    connection: AnsweringConnection
    conversation: Conversation
    values: CallValues
    """The JSON texts of the call's id, progress token and arguments."""
    number: int
    """The request id at the server."""
    correlation: str
    began: float
    """When the call began, by `time.monotonic`."""
    falls_back_at: float
    """When the call leaves the fast path if it has no answer by then, by `time.monotonic`."""
    ended_at: float = 0.0
    progress: list[bytes] | None = None
    """Messages for the client, such as progress, that came before the answer in the present iteration of the event
    loop. None if none came."""

    @property
    def progress_token(self) -> bytes:
        """Return the client's progress token as JSON; empty if the client has sent none."""
        return self.values[1]

    def emit(self, frame: bytes) -> None:
        """Send the client a message of the server that belongs to this call, such as progress. If the answer comes in
        the same iteration of the event loop, send both together. Otherwise let the call leave the fast path
        (`fall_back`), which sends the message."""
        if self.progress is None:
            self.progress = []
            self.path.loop.call_soon(self.fall_back)
        self.progress.append(frame)

    def answer(self, result: msgspec.Raw) -> bool:
        """Answer the client with the server's result, and return True. Return False if that needs the usual steps: the
        call has left the fast path (`fall_back`), and they then handle the result."""
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
                if answer is not None and (not path.is_shaped or is_complete(answer)) and outcome_of(answer) is OK:
                    frame = encode_result(self.values[0], answer)
                    if self.progress is None:
                        is_answered = self.connection.answer_fast(frame, path.headers)
                    else:
                        is_answered = self._stream(frame, self.progress)
        except msgspec.MsgspecError:
            pass  # the general way says that it cannot be read
        except Exception:
            logger.exception("an answer cannot be given on the fast path")
        if is_answered:
            self.ended_at = now
            del self.conversation.calls.fast[self.number]
            self.conversation.links.start_idle_timer()
            path.live.end_use()
            path.paths.ended(self)
            return True
        self.fall_back()
        return False

    def _stream(self, frame: bytes, progress: Sequence[bytes]) -> bool:
        """Send the client the progress messages and the answer as an event stream. Return False if the connection
        cannot send them now."""
        frames = [*map(Frame, progress), Frame(frame, final=True)]
        return self.connection.stream_fast(frames, self._record, self.path.headers)

    def _record(self, frames: Sequence[Frame]) -> Sequence[str | None] | None:
        """Store the messages for replay, and return their event ids. Return None if that would need waiting
        (`Answer.record_at_hand`)."""
        path = self.path
        return record_whole(path.events, path.live.session, self.number, self.conversation.name, self.values[0], frames)

    def fall_back(self) -> None:
        """Take the call off the fast path, and continue it as the exchange that the usual steps would have made. Do
        nothing if the call has ended or has fallen back already."""
        path = self.path
        if self.conversation.calls.fast.pop(self.number, None) is not self:
            return
        path.live.end_use()
        self.connection.fall_back(self.began, self._as_answer)

    def _as_answer(self, request: Request) -> Answer:
        """Return the reply of this call after it has left the fast path. Must run in the context variables of the
        call's request."""
        CLIENT.set(request.client)
        CORRELATION.set(self.correlation)
        return self.path.as_answer(request, self)
