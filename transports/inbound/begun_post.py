"""A POST that was begun where its bytes arrived, without parser and ASGI: what each step of its beginning has found.

Its endpoint takes the steps from here in place of taking them again, if the POST has to be finished in the usual way.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final, Protocol

from msgspec.structs import replace

from transports.inbound.call_template import MAX_KEPT_BYTES, CallTemplate
from transports.inbound.event_stream import StreamTimes, stream_headers, whole_stream
from transports.inbound.http import Receive, Scope, Send, origin_headers
from transports.inbound.modern import MIRRORED
from transports.inbound.posts import Head, Posts, is_batch
from transports.inbound_port import (
    Answer,
    AnsweringConnection,
    CallInFlight,
    CallPath,
    HeaderList,
    Memory,
    OwnedByPeer,
    PeerAnswer,
    Request,
)
from transports.jsonrpc import Message, is_one_value
from transports.reply_queue import Frame

__all__ = ["BegunPost", "Endpoint", "RepeatedHead"]


class Endpoint(Protocol):
    """What a begun POST needs of its endpoint."""

    async def finish(self, begun: "BegunPost", scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the POST as any other, from the steps that have been taken."""

    async def call(self, request: Request) -> Answer:
        """Give a request to the handler."""

    def begin_elsewhere(self, elsewhere: OwnedByPeer, request: Request, body: bytes) -> PeerAnswer | None:
        """Send a POST to the process that serves it, if that needs no waiting. None: nothing was sent."""

    def quiet_after_s(self, request: Request) -> float:
        """How long a request may have no answer until it is answered with an event stream. 0: it is at once."""

    def times_of(self, request: Request) -> StreamTimes | None:
        """When an event stream begins and is closed that the client can resume; None if it cannot."""

    def status_of(self, request: Request, frame: Frame) -> int:
        """The HTTP status of a JSON answer."""


_MOST_PATHS: Final = 4
"""Of one head: legacy clients do not name the tool in the head, and use some tools in turn."""

_PATH_BYTES: Final = 3_000 + MAX_KEPT_BYTES
"""About what a path and its template hold, at most."""

_MOST_CREDIT: Final = 8
"""Paths that may be made of one head before a call takes one. So a client whose calls never fit costs nothing more."""

_CREDIT_BACK_S: Final = 10.0
"""After this time one more may be made: paths may have ended by time alone before their next call came."""


class RepeatedHead:
    """A head that connections repeat, as its endpoint has checked it. `shared` are headers for each response."""

    __slots__ = ("__weakref__", "_credit", "_endpoint", "_hold", "_learned_at", "_paths", "_posts", "head", "shared")

    def __init__(self, endpoint: Endpoint, posts: Posts, head: Head, shared: HeaderList) -> None:
        self._endpoint = endpoint
        self._posts = posts
        self.head = head
        self.shared = shared
        self._paths: list[tuple[CallTemplate, CallPath]] = []
        self._credit = _MOST_CREDIT
        self._learned_at = 0.0
        self._hold: Callable[[int], None] = lambda size: None

    def begin_fast(
        self, connection: AnsweringConnection, body: bytes, trace: bytes, correlation: str = ""
    ) -> CallInFlight | None:
        """Send a call that is like one before it, as `CallPath.begin`. None: nothing was done."""
        for place, (template, path) in enumerate(self._paths):
            if (holes := template.fit(body)) is None:
                continue
            if (call := path.begin(connection, body, holes, trace, correlation)) is not None:
                if place:
                    self._paths.insert(0, self._paths.pop(place))
                self._credit = _MOST_CREDIT
                return call
            if path.is_over:
                del self._paths[place]
                self._hold(-_PATH_BYTES)
                return None
        return None

    def learn(self, begun: "BegunPost") -> bool:
        """Have calls take a path from now on that are like a POST which was answered in one piece. True if there is a
        new path."""
        decided, now = begun.decided, monotonic()
        if now - self._learned_at >= _CREDIT_BACK_S:
            self._credit = max(1, self._credit)
        if decided is None or not self._credit or any(_is_like(known, begun.body) for known, _ in self._paths):
            return False
        request, path_for = decided
        assert request.message is not None
        template = CallTemplate.of(begun.body, request.message, request.params, self._posts.read)
        path = None if template is None else path_for(request, self._endpoint.quiet_after_s(request))
        self._credit -= 1
        self._learned_at = now
        if template is None or path is None:
            return False
        if len(self._paths) < _MOST_PATHS:
            self._hold(_PATH_BYTES)
        self._paths = [(template, path), *self._paths[: _MOST_PATHS - 1]]
        return True

    def forget(self) -> None:
        """Forget all paths, to make room for those of other heads."""
        self._hold(-_PATH_BYTES * len(self._paths))
        self._paths.clear()

    def holds(self, hold: Callable[[int], None]) -> None:
        """Have the bytes that are held for paths counted by that function; a negative number gives them back."""
        self._hold = hold

    def resumed(self, body: bytes, head: Head, began: float, become: Callable[[Request], Answer]) -> "BegunPost":
        """A POST that was begun on the fast path at that time, as `become` goes on with it. `head` is its own."""
        request = self._posts.request(head, self._posts.read(body), len(body))
        request = replace(request, arrived_at=began)
        return BegunPost.of(self._endpoint, body, request, become, self.shared)

    @classmethod
    def of(cls, endpoint: Endpoint, posts: Posts, head: Head) -> "RepeatedHead":
        """The head of a POST that was served, for the connection that may repeat it."""
        # Another request has another length.
        headers = {name: value for name, value in head.headers.items() if name != "content-length"}
        # No header comes twice in a head that is remembered. Then the raw ones are read for mirrored arguments alone.
        mirrored = [header for header in head.raw_headers if header[0].lower().startswith(MIRRORED)]
        origin = headers.get("origin")
        shared = [] if origin is None else origin_headers(origin)
        kept = replace(head, headers=headers, raw_headers=mirrored, memory=Memory())
        return cls(endpoint, posts, kept, shared)

    def begin(self, body: bytes, trace: bytes = b"") -> "BegunPost | None":
        """Begin to serve a POST with this head, and with that `traceparent` if there is one.

        None: it has to be served from its beginning in the usual way. Nothing was done then. Raises nothing.
        """
        if is_batch(body):
            return None
        return BegunPost(self._endpoint, self._posts, self.head_with(trace), body, self.shared)

    def head_with(self, trace: bytes) -> Head:
        """The head with that `traceparent`, if there is one."""
        head = self.head
        return replace(head, headers={**head.headers, "traceparent": trace.decode("ascii")}) if trace else head


def _is_like(template: CallTemplate, body: bytes) -> bool:
    """Return True if a body is one of that form. A form without a progress token fits bodies with one behind the
    arguments as well, which then are no JSON value."""
    holes = template.fit(body)
    return holes is not None and is_one_value(holes[1])


class BegunPost:
    """One POST. `answer` is None as long as it is not there, for whatever reason. `quiet_at` is when it becomes an
    event stream if no frame has come (monotonic clock), 0 for at once, None if there is no answer yet."""

    __slots__ = (
        *("_calling", "_endpoint", "_failure", "_message", "_peer", "_request", "_shared", "_waiting"),
        *("answer", "body", "quiet_at"),
    )

    def __init__(self, endpoint: Endpoint, posts: Posts, head: Head, body: bytes, shared: HeaderList) -> None:
        self._endpoint = endpoint
        self._shared = shared
        self.body = body
        self.answer: Answer | None = None
        self.quiet_at: float | None = None
        self._message: Message | None = None
        self._request: Request | None = None
        self._calling: Coroutine[Any, Any, Answer] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._peer: PeerAnswer | None = None  # the answer of another process
        try:
            self._message = message = posts.read(body)
            self._request = request = posts.request(head, message, len(body))
            if message.is_request:
                self._calling = endpoint.call(request)
        except Exception as error:  # `finish` raises it in the step that failed
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """A step has failed. A request that another process serves may be on its way there already."""
        if isinstance(error, OwnedByPeer) and self._request is not None:
            try:
                self._peer = self._endpoint.begin_elsewhere(error, self._request, self.body)
            except Exception as fault:
                error = fault
        if self._peer is None:
            self._failure = error
        else:
            self.answer = self._peer
            self.quiet_at = math.inf  # the other process sees to it

    def _has(self, answer: Answer, since: float) -> None:
        self.answer = answer
        assert self._request is not None
        quiet_after_s = self._endpoint.quiet_after_s(self._request)
        self.quiet_at = quiet_after_s and since + quiet_after_s

    @property
    def has_failed(self) -> bool:
        """Whether a step has failed: the POST is refused, or another process serves it."""
        return self._failure is not None

    @property
    def is_elsewhere(self) -> bool:
        """Whether another process serves the POST, and it was not sent there."""
        return isinstance(self._failure, OwnedByPeer)

    @property
    def is_no_request(self) -> bool:
        """Whether it is a notification or a response: nothing was given to the handler."""
        return self._request is not None and self._calling is None and self._failure is None

    def wait(self, task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> asyncio.Task[None]:
        """Wait for the answer in a task, which raises nothing."""
        self._waiting = waiting = task(self._arrive())
        return waiting

    async def _arrive(self) -> None:
        calling = self._calling
        try:
            assert calling is not None
            self._has(await calling, monotonic())
        except Exception as error:
            self._fail(error)
        except BaseException:
            self._failure = RuntimeError("the process stops")
            raise
        finally:
            self._waiting = None

    @classmethod
    def of(
        cls,
        endpoint: Endpoint,
        body: bytes,
        request: Request,
        become: Callable[[Request], Answer],
        shared: HeaderList,
    ) -> "BegunPost":
        """A POST that was begun on the fast path: its request, and what makes the handler's answer of it, or raises
        `OwnedByPeer`."""
        begun = cls.__new__(cls)
        begun._endpoint, begun._shared, begun.body = endpoint, shared, body
        begun._message, begun._request = request.message, request
        begun.answer = begun.quiet_at = begun._calling = begun._waiting = begun._failure = begun._peer = None
        try:
            begun._has(become(request), request.arrived_at)
        except OwnedByPeer as elsewhere:
            begun._fail(elsewhere)
        return begun

    @property
    def decided(self) -> tuple[Request, Callable[[Request, float], CallPath | None]] | None:
        """Its request, and what makes a path of what was decided on that; None if nothing does."""
        request = self._request
        if request is None or request.offer is None or request.offer.path_for is None:
            return None
        return request, request.offer.path_for

    # -- the steps, for the endpoint

    def read(self) -> Message:
        """The message. Raises what the reading has raised."""
        return self._message or self._raise()

    def request(self) -> Request:
        """The request. Raises what the rules have raised."""
        return self._request or self._raise()

    async def called(self) -> Answer:
        """What the handler has returned, once. Raises what it has raised."""
        if self._waiting is not None:
            await self._waiting
        answer, self.answer = self.answer, None
        if self._peer is not None:
            raise self._peer.elsewhere()
        found: Answer = self._raise() if answer is None else answer
        return found

    def _raise(self) -> Any:
        failure, self._failure = self._failure, None
        assert failure is not None
        try:
            raise failure
        finally:
            del failure  # else it would refer to itself, by this frame

    async def finish(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Go on as the ASGI app of the request."""
        await self._endpoint.finish(self, scope, receive, send)

    # -- for the connection

    def json_headers(self, answer: Answer) -> HeaderList:
        """The headers of a JSON response."""
        return [*answer.headers, *self._shared] if self._shared else answer.headers

    def stream_headers(self, answer: Answer) -> HeaderList:
        """The headers of a response that is an event stream."""
        return stream_headers(answer.headers) + self._shared

    def stream(self, answer: Answer) -> bytes | None:
        """The events of an answer whose frames are all there; None if it is to be sent in the usual way."""
        return None if self._request is None else whole_stream(answer, self._endpoint.times_of(self._request))

    def status(self, frame: Frame) -> int:
        """The HTTP status of a JSON response."""
        return (
            200 if frame.error_code is None or self._request is None else self._endpoint.status_of(self._request, frame)
        )

    def went_quiet(self) -> None:
        """No frame came for so long that an event stream has to begin."""
        self.quiet_at = 0.0

    def answered(self) -> None:
        """The connection has sent the whole answer."""
        answer, self.answer = self.answer, None
        if answer is not None:
            answer.done()

    async def drop(self) -> None:
        """End what was begun, if nobody has taken it."""
        if self._waiting is not None:
            await self._waiting
        answer, self.answer = self.answer, None
        if answer is not None:
            answer.cancel("the connection failed")
            answer.done()
