"""The interface between an inbound wire and the gateway: requests in, answers and refusals out. No I/O."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from transports.era import Era
from transports.jsonrpc import Message, Object
from transports.reply_queue import Frame, ReplyQueue

__all__ = [
    "CORRELATION_KEY",
    "Answer",
    "Carried",
    "EventSource",
    "Forwarder",
    "Handler",
    "HeaderList",
    "Memory",
    "Offer",
    "OwnedByPeer",
    "PeerAnswer",
    "Refused",
    "Request",
    "WaitingConnection",
]


HeaderList = list[tuple[bytes, bytes]]
"""Names and values of headers, as they stand in a request or a response."""

CORRELATION_KEY: Final = "correlation_id"
"""Where the `data` of an error has the correlation id of its request."""


class Refused(Exception):
    """A request is refused: the answer, as an HTTP status and as a JSON-RPC error. The message is for the client.

    `correlation` is that of the request, once it is known. `log_facts` are fields of the log line about the refusal,
    such as the session: ids as logs may show them.
    """

    correlation = ""
    log_facts: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self, status: int, code: int, message: str, *, data: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.data = data
        self.headers = dict(headers or {})

    def of_request(self, correlation: str) -> None:
        """Record the correlation id of the request that is refused."""
        self.correlation = correlation

    def about(self, facts: Mapping[str, str]) -> None:
        """Add fields to the log line about the refusal."""
        self.log_facts = {**self.log_facts, **facts}

    def with_headers(self, headers: Mapping[str, str]) -> "Refused":
        """Return the same refusal with these headers as well. Others may be refused with this one, and do not get
        them."""
        same = Refused(self.status, self.code, str(self), data=self.data, headers={**self.headers, **headers})
        same.correlation, same.log_facts = self.correlation, self.log_facts
        return same

    def error(self) -> dict[str, Any]:
        """Return the JSON-RPC error object."""
        body: dict[str, Any] = {"code": self.code, "message": str(self)}
        data = self.data
        if self.correlation and (data is None or isinstance(data, dict)):
            data = {**(data or {}), CORRELATION_KEY: self.correlation}
        return body if data is None else body | {"data": data}


class OwnedByPeer(Exception):
    """Another process serves this request. `route` is for the `Forwarder`. Nothing has been done or sent yet."""

    def __init__(self, route: Any) -> None:
        super().__init__("another process serves this request")
        self.route = route


Holes = tuple[bytes, bytes]
"""What differs between calls that are like each other, as JSON: the id, and the arguments, which may be no JSON."""


class CallInFlight(Protocol):
    """A call that was sent by a `CallPath`."""

    def fall_back(self) -> None:
        """Go on as the handler's answer to the request (`AnsweringConnection.fall_back`)."""
        ...


class AnsweringConnection(Protocol):
    """The connection of a call that was sent by a `CallPath`: a client's, or that of a process which forwards calls."""

    def answer_fast(self, frame: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
        """Send the call's response. If False, nothing was done."""
        ...

    def fall_back(self, began: float, become: "Callable[[Request], Answer]") -> None:
        """Go on with what `become` makes of the call's request, which arrived then by the monotonic clock, in a context
        of the request's own. It raises `OwnedByPeer` if the call was sent to another process."""
        ...


class WaitingConnection(AnsweringConnection, Protocol):
    """A client's connection, whose call may wait before it is sent."""

    def goes_on(self, call: CallInFlight) -> None:
        """Note that the call, which had to wait, is sent now."""
        ...

    def begin_general(self) -> None:
        """Have the handler serve the request: nothing was done for it."""
        ...


class CallPath(Protocol):
    """Sends the calls of one connection that are like one before them, without the handler."""

    is_over: bool
    """Whether it sends no more."""

    def begin(
        self, connection: AnsweringConnection, body: bytes, holes: Holes, trace: bytes = b"", correlation: str = ""
    ) -> CallInFlight | None:
        """Send a call with that body and `traceparent`. None: nothing was done, and the call is for the handler.
        `correlation` is the id that another process has given it, empty for a client's own call. The connection of a
        client's own call is a `WaitingConnection`."""
        ...


class Memory:
    """Keeps what the handler knows from one call for the next ones with the same head, which connections repeat.

    Its requests come from one address, and have the same headers, but for `traceparent`. It ends with that head, and
    with the first refusal. Several of them may be served at once. What a body said and what was answered must not be in
    it.
    """

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: Any = None
        """The handler's own. None at first."""

    def keep(self, kept: Any) -> None:
        """Keep this for the next request."""
        self.kept = kept


class Offer:
    """Holds the path that a handler offers for further calls that are like one request."""

    __slots__ = ("decided", "path_for")

    def __init__(self) -> None:
        self.decided: Any = None
        """What the handler has decided on the request, for its own further steps. None: it makes no offer."""
        self.path_for: Callable[[Request, float], CallPath | None] | None = None
        """Makes what sends further calls, once this one was answered in one piece. It gets a request, and from how many
        seconds on a call without an answer is answered with an event stream. None: the handler has to be asked."""

    def prepare(self, decided: Any) -> None:
        """Keep what was decided on the request."""
        self.decided = decided

    def make(self, path_for: "Callable[[Request, float], CallPath | None]") -> None:
        """Make the offer."""
        self.path_for = path_for


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a client, checked by the rules of its era's wire, and not yet authenticated.

    `headers` has lower-case names, `params` is the top level of the message's params. `same_site` is False if a browser
    reports that another site caused the request. `forwarded` is set if another replica sent the request, with what that
    replica has checked. `peer` is the address of the connection, `client` the network of the client behind trusted
    proxies. `arrived_at` is a time of the monotonic clock (0: unknown). `again`: the request was forwarded to a process
    that was lost, and may have taken effect. `body_bytes` is what the request holds in memory until it is answered.
    `check_mirrored` takes the schema of a tool that mirrors arguments in headers, and the params of a call, and raises
    `Refused` if the headers of the request and these arguments disagree. It is called only after the caller is known to
    see the tool. `vouched_for` is the authenticated caller of a request from within the process, None for any other.
    `memory` is None unless the connection repeats the head. `offer` is None unless it may send further
    calls that differ from this one in id, arguments and progress token alone without asking the handler.
    """

    era: Era
    endpoint: str
    headers: Mapping[str, str]
    message: Message | None = None
    params: Object = msgspec.field(default_factory=dict)
    protocol_version: str = ""
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    forwarded: Any = None
    again: bool = False
    same_site: bool = True
    peer: str = ""
    client: str = ""
    secure: bool = False
    arrived_at: float = 0.0
    body_bytes: int = 0
    check_mirrored: Callable[[Any, Object], None] | None = None
    vouched_for: Any = None
    memory: Memory | None = None
    offer: Offer | None = None


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """The session of an event stream, or of a message that was posted to one. `token` is empty if there is none.

    `headers` give the client its session. `is_returned`: the client has brought it back, `by_cookie` perhaps without
    knowing. `caller` is the name of the sender, as `Handler.admit` returns it.
    """

    caller: str = ""
    token: str = ""
    headers: list[tuple[bytes, bytes]] = msgspec.field(default_factory=list)
    is_returned: bool = False
    by_cookie: bool = False


class Answer(Protocol):
    """A handler's answer to a request: the frames to come, and the headers of the response."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers for the response, complete before the first frame."""
        ...

    @property
    def replies(self) -> ReplyQueue:
        """The frames."""
        ...

    def cancel(self, reason: str) -> None:
        """Cancel the call: the client does not want the answer any more."""
        ...

    @property
    def is_doubtful(self) -> bool:
        """True if another process may have taken the session over, so that frames have to be `confirmed`."""
        ...

    async def confirmed(self, frame: Frame) -> Frame:
        """Return the frame to send: the given one, or an error if the session has passed to another process."""
        ...

    async def record(self, frames: Sequence[Frame]) -> Sequence[str | None]:
        """Keep frames for replay, and return their event ids; None for those that are not kept. The store may get them
        later."""
        ...

    def record_at_hand(self, frames: Sequence[Frame]) -> Sequence[str | None] | None:
        """Do as `record`, if that needs no waiting. None: nothing was done."""
        ...

    def done(self) -> None:
        """Release the answer. Called exactly once."""
        ...


class EventSource(Protocol):
    """A legacy client's GET stream."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...

    @property
    def events(self) -> AsyncIterator[tuple[str, bytes]]:
        """Event ids and frames; an empty frame is a priming event."""
        ...

    async def delivered(self, event_id: str) -> None:
        """Record that the event was written to the client."""
        ...

    async def done(self) -> None:
        """Release the stream. Called exactly once."""
        ...


class PeerAnswer(Answer, Protocol):
    """The answer of another process, to a request that was sent to it. It has one frame, which is a JSON message with
    status 200. If there is none, `elsewhere` takes the request on."""

    def elsewhere(self) -> OwnedByPeer:
        """For the `Forwarder`, which goes on with the request that was sent."""
        ...


class Forwarder(Protocol):
    """Takes requests to the process that serves them."""

    def begin(self, route: Any, request: Request, body: bytes) -> PeerAnswer | None:
        """Send a POST to the other process, if that needs no waiting. None: nothing was sent."""
        ...

    async def forward(self, route: Any, scope: Any, body: bytes, receive: Any, send: Any) -> Any:
        """Answer the request by another process, and return None. Else the request is to be tried here again: return
        the `send` for that. `scope["mcp.relayed"]` is True if the answer was one JSON message with status 200.

        Raises:
            Refused: the other process is not available now.
        """
        ...


class Handler(Protocol):
    """The methods that an inbound wire calls. Each may raise `Refused` and `OwnedByPeer`."""

    def refused(self, headers: Mapping[str, str], refused: Refused, *, again: bool = False) -> Refused:
        """Called before a refusal is sent, whoever made it: gives it its correlation id, logs it, and returns what is
        sent. `again`: the request may have taken effect, so that nothing may invite the client to repeat it."""
        ...

    async def call(self, request: Request) -> Answer:
        """Handle a client's request."""
        ...

    async def admit(self, request: Request) -> None:
        """Authenticate the sender of a request by its head, and charge the sender for `body_bytes`, before a body is
        decoded. The message itself is charged when it is handled."""
        ...

    async def join(self, request: Request) -> Carried:
        """Authenticate the client that opens an event stream, and find or open its session."""
        ...

    async def carried(self, request: Request) -> Carried:
        """Authenticate the sender of a message to an event stream, and find the session that the message carries."""
        ...

    async def leave(self, token: str) -> None:
        """Note that the event stream of a session has ended, and its client may come back."""
        ...

    async def negotiated(self, request: Request) -> str:
        """Return the protocol version that a legacy request's session has negotiated. Called before the request is
        handled."""
        ...

    async def notify(self, request: Request) -> list[tuple[bytes, bytes]]:
        """Handle a client's notification. Returns headers for the client, which may name its session."""
        ...

    async def respond(self, request: Request) -> None:
        """Handle a client's response to a request of the server."""
        ...

    async def stream(self, request: Request, last_event_id: str | None) -> EventSource:
        """Open the GET stream of a legacy client."""
        ...

    async def end(self, request: Request) -> None:
        """Handle a legacy client's DELETE."""
        ...
