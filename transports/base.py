"""The seams of the wires: what an upstream is, what a link is, and what an inbound wire calls. No I/O of its own."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from transports.jsonrpc import Message, Object

__all__ = [
    "MAX_QUEUED_BYTES",
    "AheadLink",
    "AheadUpstream",
    "Answer",
    "Elsewhere",
    "Era",
    "EventSource",
    "Forwarder",
    "Frame",
    "Given",
    "Handler",
    "Link",
    "LinkClosed",
    "LinkEvents",
    "Refused",
    "ReplyQueue",
    "Request",
    "Upstream",
    "UpstreamUnavailable",
]

MAX_QUEUED_BYTES: Final = 16 << 20
"""What may wait for one client that does not read. Beyond it the exchange is given up, so that nobody else pays."""


class Era(StrEnum):
    """How a peer speaks MCP: with the handshake (protocol ≤ 2025-11-25) or with facts in every request (2026-07-28)."""

    LEGACY = "legacy"
    MODERN = "modern"


class UpstreamUnavailable(Exception):
    """A link could not be opened. The message is for the person who called the tool: no secrets, what went wrong."""


class LinkClosed(Exception):
    """The link is gone or takes no more; nothing of this message reached the upstream."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a link is given beside what the operator has set for its server.

    `env` is for a process, `launcher` a command that starts it. `headers` gives what goes with every HTTP request.
    `resume` is what an earlier link of the same session has left (`Link.resume`), and `keep` says whether a later one
    is to go on with it. `started` is a link that the same upstream has started ahead for all of this.
    """

    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    headers: Callable[[], Mapping[str, str]] = dict
    resume: str = ""
    keep: Callable[[], bool] = lambda: False
    started: Any = None


class LinkEvents(Protocol):
    """Who hears a link. Called on the event loop, never concurrently, never blocking."""

    def message(self, message: Message) -> None:
        """The upstream sent this."""
        ...

    def unreadable(self, request_id: int | str | None, reason: str) -> None:
        """The upstream sent something that had to be thrown away; the request it answered, where that can be told."""
        ...

    def refused(self, request_id: int | str, reason: str) -> None:
        """The upstream did not take that request, and says why: nothing of it was executed."""
        ...

    def unsent(self, link: "Link", request_id: int | str | None, reason: str) -> None:
        """As `refused`, by an upstream that has forgotten the link's session; None: that is all we know. The link takes
        nothing more. What else it was given may still be answered."""
        ...

    def closed(self, reason: str) -> None:
        """The link has ended, after its last message. Called exactly once, also when we ended it."""
        ...


class Link(Protocol):
    """One live connection to one upstream."""

    @property
    def pid(self) -> int | None:
        """The process behind it, where there is one."""
        ...

    @property
    def last_words(self) -> list[str]:
        """The last lines its process has written for people (stderr), where there is one."""
        ...

    @property
    def resume(self) -> str:
        """What a later link to the same server could go on with; empty where there is no such thing."""
        ...

    @property
    def may_forget(self) -> bool:
        """Whether its server has sessions that it may forget, so that a message turns out to be `unsent` later."""
        ...

    def send(self, frame: bytes) -> None:
        """Send one message (a JSON object without line breaks). Never blocks. Raises `LinkClosed`."""
        ...

    async def close(self) -> None:
        """End it in the order the wire asks for and return when nothing is left. Idempotent."""
        ...


class AheadLink(Link, Protocol):
    """A link that was started before anybody asked for it."""

    @property
    def is_unheard(self) -> bool:
        """Whether it lives and has said nothing yet: nobody can tell it from a new one."""
        ...


class Upstream(Protocol):
    """A server that links can be opened to."""

    async def connect(self, given: Given, events: LinkEvents) -> Link:
        """Open a link. Raises `UpstreamUnavailable`."""
        ...

    async def close(self) -> None:
        """Give back what its links share."""
        ...


class Refused(Exception):
    """A request gets no further: how to say so, over HTTP and as JSON-RPC. The message is fit for the client."""

    def __init__(
        self, status: int, code: int, message: str, *, data: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.data = data
        self.headers = dict(headers or {})

    def error(self) -> dict[str, Any]:
        """As a JSON-RPC error object."""
        body: dict[str, Any] = {"code": self.code, "message": str(self)}
        return body if self.data is None else body | {"data": self.data}


class Elsewhere(Exception):
    """Another process serves this request. `route` is for whoever forwards it; nothing has been done or sent yet."""

    def __init__(self, route: Any) -> None:
        super().__init__("another process serves this request")
        self.route = route


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a client, checked by the rules of its era's wire, before anyone asks whose it is.

    `headers` has lower-case names, `params` is the top level of the message's. `same_site` is False when a browser says
    that another site caused the request. `forwarded` is what another process of ours vouches for, where it sent this.
    `peer` is the address it came from, `client` the network of who is behind the proxies that are trusted, `arrived_at`
    when it did, by the monotonic clock (0: nobody looked). `again`: it was given to a process that was lost, and may
    have taken effect. `body_bytes` is what the request keeps in memory until it is answered. `check_mirrored` is for a
    tool whose schema mirrors arguments in headers, once it is known who asks and what they may see: given the schema,
    it raises `Refused` where headers and arguments disagree.
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
    check_mirrored: Callable[[Any], None] | None = None


class Frame(msgspec.Struct, frozen=True):
    """One message to the client. `error_code` is set on the last one when it is an error."""

    data: bytes
    final: bool = False
    error_code: int | None = None


class ReplyQueue:
    """Frames on their way to one client: filled by whoever hears the upstream, read by the wire the client is on."""

    __slots__ = ("_closed", "_frames", "_quiet_at", "_size", "_waiter", "abandoned")

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._size = 0
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._quiet_at: float | None = None
        self.abandoned = False

    def push(self, frame: Frame) -> bool:
        """Queue a frame; False (and it is dropped) once the last one was queued or the reader is too far behind."""
        if self._closed:
            return False
        if self._size + len(frame.data) > MAX_QUEUED_BYTES and self._frames and not frame.final:
            self.close()
            self.abandoned = True
            return False
        self._frames.append(frame)
        self._size += len(frame.data)
        if frame.final:
            self._closed = True
        self._wake()
        return True

    def close(self) -> None:
        """Nothing more comes; the reader gets what is queued and then None."""
        self._closed = True
        self._wake()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be queued."""
        return self._closed

    async def next(self, quiet_at: float | None = None) -> Frame | None:
        """The next frame, or None when the stream ended without a final one. One reader only.

        Raises:
            TimeoutError: nothing came before `quiet_at`, by the monotonic clock, as a call of `tick` has found.
        """
        while not self._frames:
            if self._closed:
                return None
            self._quiet_at = quiet_at
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        frame = self._frames.popleft()
        self._size -= len(frame.data)
        return frame

    def tick(self, now: float) -> None:
        """Tell a reader that has waited long enough. Whoever fills the queue calls this now and then: a timer for every
        call would cost more than the call's parsing."""
        if (
            self._waiter is not None
            and not self._waiter.done()
            and self._quiet_at is not None
            and now >= self._quiet_at
        ):
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AheadUpstream(Upstream, Protocol):
    """An upstream whose links can be started ahead."""

    async def start(self, given: Given) -> AheadLink:
        """Start a link for somebody who comes later, with `Given.started`. Raises `UpstreamUnavailable`."""
        ...


class Answer(Protocol):
    """What a handler gives back for a request: the frames to come, and what to tell the client beside them."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers for the response, complete before the first frame."""
        ...

    @property
    def replies(self) -> ReplyQueue:
        """The frames."""
        ...

    def cancel(self, reason: str) -> None:
        """The client does not want the answer any more."""
        ...

    @property
    def is_doubtful(self) -> bool:
        """Whether the session may have passed to another process, so that frames have to be `confirmed`."""
        ...

    async def confirmed(self, frame: Frame) -> Frame:
        """What may leave instead of the frame: itself, or an error when the session has passed to another process."""
        ...

    async def record(self, frame: Frame) -> str | None:
        """Keep an SSE frame for replay and return its event id; None where this wire has no replay."""
        ...

    async def done(self) -> None:
        """The wire is finished with the answer. Called exactly once."""
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
        """That event was written to the client."""
        ...

    async def done(self) -> None:
        """The wire is finished with the stream. Called exactly once."""
        ...


class Forwarder(Protocol):
    """Takes requests to the process that serves them."""

    async def forward(self, route: Any, scope: Any, body: bytes, receive: Any, send: Any) -> Any:
        """Answer the request by another process; else where to send the answer when it is tried here again.

        Raises:
            Refused: it cannot be had now.
        """
        ...


class Handler(Protocol):
    """What an inbound wire calls. Every method may raise `Refused` and `Elsewhere`."""

    async def call(self, request: Request) -> Answer:
        """A client's request."""
        ...

    async def admit(self, request: Request) -> str:
        """Who sends a request, before anything is opened for it or revealed: a name, the same for the same client."""
        ...

    async def negotiated(self, request: Request) -> str:
        """The protocol version that the session of a legacy request has negotiated, before anything of it is done."""
        ...

    async def notify(self, request: Request) -> None:
        """A client's notification."""
        ...

    async def respond(self, request: Request) -> None:
        """A client's response to a request of the server's."""
        ...

    async def stream(self, request: Request, last_event_id: str | None) -> EventSource:
        """A legacy client's GET."""
        ...

    async def end(self, request: Request) -> None:
        """A legacy client's DELETE."""
        ...
