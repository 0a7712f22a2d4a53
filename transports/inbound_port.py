"""Define the interface between the transports of clients and the gateway: requests in, answers and refusals out. No
I/O."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, Self

import msgspec

from transports.era import Era
from transports.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    Message,
    Object,
)
from transports.reply_queue import Frame, ReplyQueue

HeaderList = list[tuple[bytes, bytes]]
"""Names and values of headers, as they stand in a request or a response."""

CORRELATION_KEY: Final = "correlation_id"
"""The key in the `data` of an error that holds the correlation id of its request."""

REASON_KEY: Final = "reason"
"""The key in the `data` of an error that holds the name of its reason, by which client programs decide what to do."""

REASONS: Final[Mapping[int, str]] = MappingProxyType(
    {
        PARSE_ERROR: "parse_error",
        INVALID_REQUEST: "invalid_request",
        METHOD_NOT_FOUND: "method_not_found",
        INVALID_PARAMS: "invalid_params",
        INTERNAL_ERROR: "internal_error",
        HEADER_MISMATCH: "header_mismatch",
        MISSING_CAPABILITY: "missing_capability",
        UNSUPPORTED_VERSION: "unsupported_version",
    }
)
"""For each error code, the reason for refusals that name none. Only codes that protocols define."""


class Refused(Exception):
    """The refusal of a request: an HTTP status and a JSON-RPC error. The message is for people, and the reason for
    programs: a name that stays when the message changes. Only codes in `REASONS` have a default reason.
    """

    correlation = ""
    """The correlation id of the request; empty until it is known."""
    is_recorded = False
    """True once the handler has recorded the refusal, so that it is recorded only once."""
    log_facts: Mapping[str, str] = MappingProxyType({})
    """Fields of the log line about the refusal, such as the session id, in the form that logs may show."""

    def __init__(
        self,
        status: int,
        code: int,
        message: str,
        *,
        reason: str = "",
        data: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.data: Mapping[str, Any] = {REASON_KEY: reason or REASONS.get(code, ""), **(data or {})}
        self.headers = dict(headers or {})

    @property
    def reason(self) -> str:
        return str(self.data[REASON_KEY])

    def recorded(self) -> Self:
        """Return this refusal, marked as recorded."""
        self.is_recorded = True
        return self

    def of_request(self, correlation: str) -> None:
        """Set the correlation id of the refused request."""
        self.correlation = correlation

    def about(self, facts: Mapping[str, str]) -> None:
        """Add the fields `facts` to the log line about the refusal."""
        self.log_facts = {**self.log_facts, **facts}

    def with_headers(self, headers: Mapping[str, str]) -> "Refused":
        """Return a copy with these headers added. This refusal stays unchanged: it may be sent to other clients too."""
        same = Refused(self.status, self.code, str(self), data=self.data, headers={**self.headers, **headers})
        same.correlation, same.log_facts = self.correlation, self.log_facts
        same.is_recorded = self.is_recorded
        return same

    def error(self) -> dict[str, Any]:
        """Return the JSON-RPC error object."""
        correlation = {CORRELATION_KEY: self.correlation} if self.correlation else {}
        return {"code": self.code, "message": str(self), "data": {**self.data, **correlation}}


class OwnedByPeer(Exception):
    """Another gateway process owns the session of this request. Nothing was done or sent yet. `route` tells the
    `Forwarder` where to send the request (a `gateway.cluster.ownership.Route`, which no transport reads)."""

    def __init__(self, route: Any) -> None:
        super().__init__("another process serves this request")
        self.route = route


CallValues = tuple[bytes, bytes, bytes]
"""The JSON texts that differ between otherwise equal tool calls: the id, the progress token, and the arguments (not
checked to be JSON). Token and arguments are empty if such calls have none."""


class CallInFlight(Protocol):
    """A call that was sent on the fast path (`CallPath`), and that has no answer yet."""

    def fall_back(self) -> None:
        """Leave the fast path: let the handler, which knows all cases, finish the call
        (`AnsweringConnection.fall_back`)."""


class AnsweringConnection(Protocol):
    """The receiver of the answer to a call on the fast path (`CallPath`). Sends the answer to the client, or to the
    process that has forwarded the call."""

    def answer_fast(self, frame: bytes, headers: HeaderList) -> bool:
        """Send the response, whose JSON body is `frame`. Return False, and do nothing, if it cannot be sent now."""

    def stream_fast(
        self,
        frames: "Sequence[Frame]",
        record: "Callable[[Sequence[Frame]], Sequence[str | None] | None]",
        headers: list[tuple[bytes, bytes]],
    ) -> bool:
        """Send the response as an event stream with all its frames. `record` is `Answer.record_at_hand`. Return False,
        and do nothing, if it cannot be sent now."""

    def fall_back(self, began: float, become: "Callable[[Request], Answer]") -> None:
        """Let the handler finish a call that leaves the fast path. The call arrived at `began` (monotonic clock).
        `become` returns the answer for the call's request. It runs in its own context, and raises `OwnedByPeer` if the
        call went to another process."""


class WaitingConnection(AnsweringConnection, Protocol):
    """A client's connection with a call on the fast path that may have to wait before it is sent."""

    def goes_on(self, call: CallInFlight) -> None:
        """Record that the call was sent after it had to wait."""

    def begin_general(self) -> None:
        """Let the handler serve the waiting call from its beginning, because it was not sent on the fast path."""


class CallPath(Protocol):
    """Send calls that are like an earlier call of their connection, without asking the handler again (the *fast
    path*)."""

    is_over: bool
    """True once this path can send no more calls."""

    def begin(
        self,
        connection: AnsweringConnection,
        body: bytes,
        values: CallValues,
        trace: bytes = b"",
        correlation: str = "",
    ) -> CallInFlight | None:
        """Send the call with this body and `traceparent`. Return None, and do nothing, if the handler has to serve it.
        `correlation` is the correlation id from the process that has forwarded the call. It is empty for a client's own
        call, whose `connection` is a `WaitingConnection`."""


class HandlerCache:
    """Store a value that the handler computed for one request, for later requests with the same head. These requests
    come from one address and have the same headers, except `traceparent`. Several may be served at once. The value is
    dropped with the stored head, and at the first refusal. It must not depend on a body or an answer."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: Any = None
        """A value of the handler. None at first."""

    def keep(self, kept: Any) -> None:
        """Store a value for later requests."""
        self.kept = kept


class FastPathOffer:
    """Hold the handler's offer, made for one request, to send later calls like that request on the fast path."""

    __slots__ = ("decision", "path_for")

    def __init__(self) -> None:
        self.decision: Any = None
        """The handler's decision on the request (`gateway.relay.fast_path.CallDecision`), which it needs to make its
        offer. None: it makes no offer."""
        self.path_for: Callable[[Request, float], CallPath | None] | None = None
        """The function that makes the fast path, called once this call was answered by a single message. Its arguments
        are a request, and the seconds after which an unanswered call gets an event stream. None: further calls go to
        the handler."""

    def prepare(self, decision: Any) -> None:
        """Store the handler's decision on the request, which the handler needs later to make its offer (`make`)."""
        self.decision = decision

    def make(self, path_for: "Callable[[Request, float], CallPath | None]") -> None:
        """Make the offer: store `path_for`, the function that makes the fast path."""
        self.path_for = path_for


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a client, checked by the rules of its era's transport, and not yet authenticated."""

    era: Era
    endpoint: str
    """The name of the endpoint."""
    headers: Mapping[str, str]
    """The HTTP headers, by lower-case name."""
    message: Message | None = None
    """None for an HTTP request without a message, such as GET and DELETE."""
    params: Object = msgspec.field(default_factory=dict)
    """The top level of the message's params, with raw values."""
    protocol_version: str = ""
    """The MCP version that the `_meta` of a modern message or the headers name; 2025-03-26 if they name none. Empty if
    the request was not made by Streamable HTTP."""
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The decoded `_meta` of the message."""
    forwarded: Any = None
    """The facts that another replica has checked, if that replica sent the request
    (`gateway.cluster.ownership.Forwarded`); None for a client's own request."""
    again: bool = False
    """True if the request was forwarded before, to a process that was lost, and may have taken effect there."""
    same_site: bool = True
    """False if a browser reports that another site caused the request."""
    peer: str = ""
    """The address of the connection's other end."""
    client: str = ""
    """The network of the client, which may be behind trusted proxies."""
    secure: bool = False
    """True if the client uses TLS."""
    arrived_at: float = 0.0
    """A time of the monotonic clock; 0 if unknown."""
    body_bytes: int = 0
    """The size of the body, which stays in memory until the request is answered."""
    check_mirrored: Callable[[Any, Object], None] | None = None
    """Raises `Refused` if arguments of a tool call disagree with the headers that mirror them. Its arguments are the
    tool's input schema and the params. Called only after the caller is known to see the tool."""
    vouched_for: Any = None
    """The authenticated caller of a request from within the process (`gateway.identity.authenticate.Authenticated`);
    None for any other request."""
    handler_cache: HandlerCache | None = None
    """Where the handler stores a value for later requests with the same head. None unless the connection repeats it."""
    offer: FastPathOffer | None = None
    """None unless the connection can send later calls on the fast path that differ from this one only in id, arguments
    and progress token."""


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """The session that a message or event stream of an HTTP+SSE client belongs to."""

    caller: str = ""
    """The name of the authenticated sender."""
    token: str = ""
    """The session's token; empty if there is no session."""
    headers: HeaderList = msgspec.field(default_factory=list)
    """Headers for the response, which tell the client the session."""
    is_returned: bool = False
    """True if the client itself has sent the token."""
    by_cookie: bool = False
    """True if the token came in a cookie, perhaps without the client's knowledge."""


class Answer(Protocol):
    """A handler's answer to a request: the frames to come, and the headers of the response."""

    @property
    def headers(self) -> HeaderList:
        """Return the headers of the response. They are complete before the first message (frame) is."""

    @property
    def replies(self) -> ReplyQueue:
        """Return the queue of the answer's messages (frames)."""

    def cancel(self, reason: str) -> None:
        """Cancel the call, because the client does not want the answer."""

    @property
    def is_doubtful(self) -> bool:
        """Return True if another process may own the session now, so that `confirmed` has to check each frame."""

    async def confirmed(self, frame: Frame) -> Frame:
        """Return the message (frame) to send: the given one, or an error if another process owns the session now."""

    async def record(self, frames: Sequence[Frame]) -> Sequence[str | None]:
        """Store frames for replay, so that the client can fetch them later, and return the event id of each; None for a
        frame that is not stored. The frames may reach the store after this call."""

    def record_at_hand(self, frames: Sequence[Frame]) -> Sequence[str | None] | None:
        """Store frames as `record` does, if that needs no waiting. Otherwise do nothing, and return None."""

    def done(self) -> None:
        """Release the answer. Called exactly once."""


class UnrecordedAnswer:
    """Implement the part of `Answer` that is the same for all answers whose frames are not stored for replay."""

    __slots__ = ()

    async def confirmed(self, frame: Frame) -> Frame:
        return frame

    async def record(self, frames: Sequence[Frame]) -> Sequence[str | None]:
        return (None,) * len(frames)

    def record_at_hand(self, frames: Sequence[Frame]) -> Sequence[str | None] | None:
        return (None,) * len(frames)


class EventSource(Protocol):
    """The events of a legacy client's GET stream, and the headers of its response."""

    @property
    def headers(self) -> HeaderList: ...

    @property
    def events(self) -> AsyncIterator[tuple[str, bytes]]:
        """Return the event ids and frames. An empty frame is a priming event, which only gives the client an id."""

    async def delivered(self, event_id: str) -> None:
        """Record that the event was written to the client."""

    async def done(self) -> None:
        """Release the stream. Called exactly once."""


class PeerAnswer(Answer, Protocol):
    """The answer of another gateway process to a request that was forwarded to it: one frame, a JSON message with
    status 200. If the queue ends without a frame, the caller raises `elsewhere()`, and the `Forwarder` continues the
    request."""

    def elsewhere(self) -> OwnedByPeer:
        """Return the exception for the caller to raise. It contains this answer, so that the `Forwarder` reads on and
        does not send the request a second time."""


class Forwarder(Protocol):
    """Forward requests to the gateway process that owns their session."""

    def begin(self, route: Any, request: Request, body: bytes) -> PeerAnswer | None:
        """Send a POST to the process that owns its session (`OwnedByPeer.route`), and return the answer, which comes
        later. If that would need waiting, send nothing and return None."""

    async def forward(self, route: Any, scope: Any, body: bytes, receive: Any, send: Any) -> Any:
        """Let the process that owns the session (`OwnedByPeer.route`) answer the request, and return None. If it does
        not answer, return an ASGI `send` with which the caller tries the request again. After an answer,
        `scope["mcp.relayed"]` is True if it was one JSON message with status 200.

        Raises:
            Refused: the other process is not available now.
        """


class Handler(Protocol):
    """Serve the requests that the transports of clients have read. Each method may raise `Refused` and
    `OwnedByPeer`."""

    def refused(self, headers: Mapping[str, str], refused: Refused, *, again: bool = False) -> Refused:
        """Give a refusal its correlation id, log it, and return the refusal to send. Call this before any refusal is
        sent. `headers` are those of the refused request. `again`: the request may have taken effect, so the refusal
        must not invite the client to repeat it."""

    async def call(self, request: Request) -> Answer:
        """Handle a client's request, and return its answer."""

    async def check_sender(self, request: Request) -> None:
        """Authenticate the sender of a request by its head, and count `body_bytes` against the sender's rate limit.
        Called before a large body is read and before any body is decoded; not called if a request with the same head
        was checked before. The message itself is counted when it is handled. Raises `Refused`: 401, 429."""

    async def join(self, request: Request) -> Carried:
        """Authenticate the client that opens an HTTP+SSE stream, and find or open its session."""

    async def carried(self, request: Request) -> Carried:
        """Authenticate the sender of a message to an HTTP+SSE stream, and find the session that the message names."""

    async def leave(self, token: str) -> None:
        """Handle the end of the HTTP+SSE event stream of the session with this token. The session stays, because its
        client may come back."""

    async def negotiated(self, request: Request) -> str:
        """Return the protocol version that the session of a legacy request has negotiated."""

    async def notify(self, request: Request) -> HeaderList:
        """Handle a client's notification. Return headers for the response, which may name the client's session."""

    async def respond(self, request: Request) -> None:
        """Handle a client's response to a request that an upstream server has sent to the client."""

    async def stream(self, request: Request, last_event_id: str | None) -> EventSource:
        """Open the GET stream of a legacy client. `last_event_id` is the event after which the client resumes a stream;
        None: it resumes none."""

    async def end(self, request: Request) -> None:
        """Handle a legacy client's DELETE, which ends its session."""
