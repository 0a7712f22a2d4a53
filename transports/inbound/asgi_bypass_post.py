"""Begin to serve POSTs when their bytes arrive, without HTTP parser and ASGI, and store the result of each step. If a
POST has to be finished by parser and ASGI, its endpoint uses these results and does not repeat the steps."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final, Protocol

from msgspec.structs import replace

from transports.inbound.call_template import MAX_KEPT_BYTES, CallTemplate
from transports.inbound.event_stream import stream_headers, whole_stream
from transports.inbound.host_and_origin import origin_headers
from transports.inbound.http_requests_and_responses import Receive, Scope, Send
from transports.inbound.modern_request_checks import MIRRORED
from transports.inbound.post_parsing import Head, Posts, is_batch
from transports.inbound_port import (
    Answer,
    AnsweringConnection,
    CallInFlight,
    CallPath,
    HandlerCache,
    HeaderList,
    OwnedByPeer,
    PeerAnswer,
    Request,
)
from transports.jsonrpc import Message, is_one_value
from transports.reply_queue import Frame


class PostServer(Protocol):
    """An endpoint that serves POSTs (`transports.inbound.streamable_http.StreamableHttp`). It is an ASGI app, which can
    also finish a `StartedPost`. Its other methods are the single steps, for POSTs that are served without ASGI."""

    posts: Posts

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, started: "StartedPost | None" = None
    ) -> None: ...
    async def call(self, request: Request) -> Answer: ...
    def begin_elsewhere(self, elsewhere: OwnedByPeer, request: Request, body: bytes) -> PeerAnswer | None: ...
    def quiet_after_s(self, request: Request) -> float: ...
    def can_resume(self, request: Request) -> bool: ...
    def status_of(self, request: Request, frame: Frame) -> int: ...


_MOST_PATHS: Final = 4
"""Maximum number of fast paths (each for calls like one earlier call) that are stored for one head. Legacy clients do
not name the tool in the head, so calls of several tools share a head."""

_PATH_BYTES: Final = 3_000 + MAX_KEPT_BYTES
"""The bytes that are counted for one fast path and its template: about the most that they need."""

_MOST_CREDIT: Final = 8
"""Maximum number of fast paths that are made for one head before a call uses one. This limits the cost of a client
whose calls never fit a path."""

_CREDIT_BACK_S: Final = 10.0
"""Seconds after which one more fast path may be made although none was used: earlier ones may have expired
meanwhile."""


class RepeatedHead:
    """Serve the POSTs that repeat one request head, which the endpoint has checked once."""

    __slots__ = (
        "__weakref__",
        "_count_memory",
        "_credit",
        "_endpoint",
        "_learned_at",
        "_paths",
        "can_resume",
        "head",
        "shared",
    )

    def __init__(self, endpoint: PostServer, head: Head, shared: HeaderList) -> None:
        self._endpoint = endpoint
        self.head = head
        self.shared = shared
        """Headers of each response."""
        self.can_resume = False
        """True if the client can resume event streams. Set with the first fast path."""
        self._paths: list[tuple[CallTemplate, CallPath]] = []
        self._credit = _MOST_CREDIT
        self._learned_at = 0.0
        self._count_memory: Callable[[int], None] = lambda size: None

    def begin_fast(
        self, connection: AnsweringConnection, body: bytes, trace: bytes, correlation: str = ""
    ) -> CallInFlight | None:
        """Send the call in `body` on the first fast path that fits it, and return it. Return None, and send nothing, if
        no path does. The other arguments are those of `CallPath.begin`."""
        for place, (template, path) in enumerate(self._paths):
            if (values := template.fit(body)) is None:
                continue
            if (call := path.begin(connection, body, values, trace, correlation)) is not None:
                if place:
                    self._paths.insert(0, self._paths.pop(place))
                self._credit = _MOST_CREDIT
                return call
            if path.is_over:
                del self._paths[place]
                self._count_memory(-_PATH_BYTES)
                return None
        return None

    def learn(self, started: "StartedPost") -> bool:
        """Make a fast path for later calls like `started`, which was answered by a single message. Return True if one
        was made."""
        decided, now = started.decided, monotonic()
        if now - self._learned_at >= _CREDIT_BACK_S:
            self._credit = max(1, self._credit)
        if decided is None or not self._credit or any(_is_like(known, started.body) for known, _ in self._paths):
            return False
        request, path_for = decided
        assert request.message is not None
        template = CallTemplate.of(started.body, request.message, request.params, self._endpoint.posts.read)
        path = None if template is None else path_for(request, self._endpoint.quiet_after_s(request))
        self._credit -= 1
        self._learned_at = now
        if template is None or path is None:
            return False
        if len(self._paths) < _MOST_PATHS:
            self._count_memory(_PATH_BYTES)
        self.can_resume = self._endpoint.can_resume(request)
        self._paths = [(template, path), *self._paths[: _MOST_PATHS - 1]]
        return True

    def forget(self) -> None:
        """Drop all fast paths, to make room for those of other heads."""
        self._count_memory(-_PATH_BYTES * len(self._paths))
        self._paths.clear()

    def count_memory_with(self, count: Callable[[int], None]) -> None:
        """Set `count` as the function that counts the memory of this head's fast paths. It is called with the number of
        bytes by which this memory grows, which is negative if paths are dropped."""
        self._count_memory = count

    def resumed(self, body: bytes, head: Head, began: float, become: Callable[[Request], Answer]) -> "StartedPost":
        """Return a POST that leaves the fast path, to be finished by ASGI and handler. `head` is the POST's own head,
        `began` the monotonic time of its arrival. `become` returns the handler's answer for the POST's request."""
        posts = self._endpoint.posts
        request = replace(posts.request(head, posts.read(body), len(body)), arrived_at=began)
        return StartedPost.of(self._endpoint, body, request, become, self.shared)

    @classmethod
    def of(cls, endpoint: PostServer, head: Head) -> "RepeatedHead":
        """Return a `RepeatedHead` for later POSTs to the endpoint with the same head as one that ASGI has served."""
        # Another request has another length.
        headers = {name: value for name, value in head.headers.items() if name != "content-length"}
        # No header comes twice in a head that is stored. Then the raw ones are read for mirrored arguments alone.
        mirrored = [header for header in head.raw_headers if header[0].lower().startswith(MIRRORED)]
        origin = headers.get("origin")
        shared = [] if origin is None else origin_headers(origin)
        kept = replace(head, headers=headers, raw_headers=mirrored, again=False, handler_cache=HandlerCache())
        return cls(endpoint, kept, shared)

    def begin(self, body: bytes, trace: bytes = b"") -> "StartedPost | None":
        """Begin to serve a POST with this head. If `trace` is not empty, it is the POST's `traceparent`. Return None,
        and do nothing, if parser and ASGI have to serve the POST. Raises nothing."""
        if is_batch(body):
            return None
        return StartedPost(self._endpoint, self.head_with(trace), body, self.shared)

    def head_with(self, trace: bytes) -> Head:
        """Return the head. If `trace` is not empty, replace the head's `traceparent` by it."""
        head = self.head
        return replace(head, headers={**head.headers, "traceparent": trace.decode("ascii")}) if trace else head


def _is_like(template: CallTemplate, body: bytes) -> bool:
    """Return True if the call in a body is like the earlier call of a template: the body fits, and the arguments that
    `fit` finds are one JSON value. Without the second check, a body with a progress token behind the arguments would
    also be like a call without a token, because the template takes the token for a part of the arguments."""
    values = template.fit(body)
    return values is not None and (not values[2] or is_one_value(values[2]))


class StartedPost:
    """Serve one POST step by step, and store the result of each step."""

    __slots__ = (
        *("_calling", "_endpoint", "_failure", "_message", "_peer", "_request", "_shared", "_waiting"),
        *("answer", "body", "quiet_at"),
    )

    def __init__(self, endpoint: PostServer, head: Head, body: bytes, shared: HeaderList) -> None:
        self._endpoint = endpoint
        self._shared = shared
        self.body = body
        self.answer: Answer | None = None
        """The handler's answer. None until the handler has returned it."""
        self.quiet_at: float | None = None
        """The time (monotonic clock) at which the answer becomes an event stream if no frame has come by then. 0: at
        once. None: there is no answer yet."""
        self._message: Message | None = None
        self._request: Request | None = None
        self._calling: Coroutine[Any, Any, Answer] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._peer: PeerAnswer | None = None  # the answer of another process
        try:
            self._message = message = endpoint.posts.read(body)
            self._request = request = endpoint.posts.request(head, message, len(body))
            if message.is_request:
                self._calling = endpoint.call(request)
        except Exception as error:  # `finish` raises it in the step that failed
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Store the error of a step. If the error says that another process owns the session, first try to send the
        request there. If that is possible without waiting, store the other process's answer instead of the error."""
        if isinstance(error, OwnedByPeer) and self._request is not None:
            try:
                self._peer = self._endpoint.begin_elsewhere(error, self._request, self.body)
            except Exception as fault:
                error = fault
        if self._peer is None:
            self._failure = error
        else:
            self.answer = self._peer
            self.quiet_at = math.inf  # the other process begins the event stream

    def _take(self, answer: Answer, since: float) -> None:
        self.answer = answer
        assert self._request is not None
        quiet_after_s = self._endpoint.quiet_after_s(self._request)
        self.quiet_at = quiet_after_s and since + quiet_after_s

    @property
    def has_failed(self) -> bool:
        """Return True if a step has raised: the POST is refused, or another process owns its session."""
        return self._failure is not None

    @property
    def is_elsewhere(self) -> bool:
        """Return True if another gateway process owns the session, and the POST was not forwarded to it yet."""
        return isinstance(self._failure, OwnedByPeer)

    @property
    def is_no_request(self) -> bool:
        """Return True if the message is a notification or a response, and was not given to the handler yet."""
        return self._request is not None and self._calling is None and self._failure is None

    def wait(self, task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> asyncio.Task[None]:
        """Start a task that waits for the answer, with the function `task`. Return the task, which raises nothing."""
        self._waiting = waiting = task(self._arrive())
        return waiting

    async def _arrive(self) -> None:
        calling = self._calling
        try:
            assert calling is not None
            self._take(await calling, monotonic())
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
        endpoint: PostServer,
        body: bytes,
        request: Request,
        become: Callable[[Request], Answer],
        shared: HeaderList,
    ) -> "StartedPost":
        """Return the POST of a call that was sent on the fast path and has left it. `become` returns the handler's
        answer for the call's request, or raises `OwnedByPeer`. `shared` are headers of the response."""
        started = cls.__new__(cls)
        started._endpoint, started._shared, started.body = endpoint, shared, body
        started._message, started._request = request.message, request
        started.answer = started.quiet_at = started._calling = started._waiting = started._failure = started._peer = (
            None
        )
        try:
            started._take(become(request), request.arrived_at)
        except OwnedByPeer as elsewhere:
            started._fail(elsewhere)
        return started

    @property
    def decided(self) -> tuple[Request, Callable[[Request, float], CallPath | None]] | None:
        """Return the request, and the function that makes a fast path for calls like it. Return None if the handler has
        given no such function."""
        request = self._request
        if request is None or request.offer is None or request.offer.path_for is None:
            return None
        return request, request.offer.path_for

    # -- the steps, for the endpoint

    def message(self) -> Message:
        """Return the message in the body, or raise the error of reading it."""
        return self._message or self._raise()

    def request(self) -> Request:
        """Return the checked request, or raise the error of the check."""
        return self._request or self._raise()

    async def called(self) -> Answer:
        """Return the handler's answer, or raise the handler's error. Call this once."""
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
        """Finish the POST as the ASGI app of its request."""
        await self._endpoint(scope, receive, send, self)

    # -- for the connection

    def json_headers(self, answer: Answer) -> HeaderList:
        return [*answer.headers, *self._shared] if self._shared else answer.headers

    def stream_headers(self, answer: Answer) -> HeaderList:
        return stream_headers(answer.headers) + self._shared

    def stream(self, answer: Answer) -> bytes | None:
        """Return the event stream of an answer whose frames have all arrived; None if the ASGI app has to send it."""
        frames = answer.replies.whole
        if frames is None or answer.is_doubtful or self._request is None:
            return None
        return whole_stream(frames, self._endpoint.can_resume(self._request), answer.record_at_hand)

    def status(self, frame: Frame) -> int:
        """Return the HTTP status of the JSON response `frame` to this POST."""
        return (
            200 if frame.error_code is None or self._request is None else self._endpoint.status_of(self._request, frame)
        )

    def went_quiet(self) -> None:
        """Record that no message came in time, so that the answer has to become an event stream."""
        self.quiet_at = 0.0

    def answered(self) -> None:
        """Release the answer, which the connection has sent as a whole."""
        answer, self.answer = self.answer, None
        if answer is not None:
            answer.done()

    async def drop(self) -> None:
        """Cancel and release the answer. Do nothing if `called` has returned it."""
        if self._waiting is not None:
            await self._waiting
        answer, self.answer = self.answer, None
        if answer is not None:
            answer.cancel("the connection failed")
            answer.done()
