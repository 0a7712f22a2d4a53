"""Serve HTTP requests of one connection without the HTTP parser and ASGI, if their head equals one that came earlier.
`HttpConnection` reads everything else. If a request turns out to be unusual, the parser gets its bytes. The ASGI task
that then starts continues from the steps that were done here. docs/adr/0012-the-http-edge.md"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE
from uvicorn.server import ServerState

from transports.inbound.asgi_bypass_post import RepeatedHead, StartedPost
from transports.inbound.event_stream import stream_headers, whole_stream
from transports.inbound.head_cache import (
    MAX_HEAD_BYTES,
    REPEATS,
    ConnectionHeads,
    HeadCache,
    HeadOffer,
    HeadUse,
    SharedHeads,
    StoredHead,
)
from transports.inbound_port import Answer, CallInFlight, HeaderList, Request
from transports.reply_queue import Frame

logger = logging.getLogger(__name__)

_COPIED_BYTES: Final = 64 << 10
"""The largest body that is copied into one write with its head. A larger one is written separately."""


class Connection(Protocol):
    """The parts of a client's connection that `RepeatedRequests` uses."""

    loop: asyncio.AbstractEventLoop

    @property
    def transport(self) -> asyncio.Transport: ...
    @property
    def flow(self) -> FlowControl: ...
    @property
    def server_state(self) -> ServerState: ...

    def parse(self, data: bytes) -> None:
        """Parse data with the HTTP parser, and serve the requests in it as ASGI requests."""

    def is_between_requests(self) -> bool:
        """Return True if all requests were answered, no byte of another one has arrived, and the connection takes
        one."""


class RepeatedRequests:
    """Serve those requests of one connection that repeat a stored head (`head_cache.py`), one request at a time.
    `cache` is where the connections of a listener share their stored heads. None: serve no request."""

    __slots__ = (
        *("_body", "_connection", "_context", "_fast", "_first", "_head_bytes", "_heads", "_json", "_known", "_cache"),
        *("_missing", "_new", "_resumed", "_started", "_stream", "_trace", "requests"),
    )

    def __init__(self, connection: Connection, cache: HeadCache | None) -> None:
        self._connection = connection
        self._cache = cache
        self._heads: ConnectionHeads[RepeatedHead] = ConnectionHeads(SharedHeads() if cache is None else cache.heads)
        self._json = JsonHeads()
        self._stream = StreamHeads()
        self.requests = 0
        """The number of requests whose head was recognized here, for the connection's deadlines."""
        self._new: bytes | None = None  # data that begins with a head that is not known
        # The request that arrives or is served: its head, and its bytes.
        self._known: StoredHead[RepeatedHead] | None = None
        self._first = b""
        self._body: bytes | bytearray = b""
        self._trace = b""
        self._head_bytes = self._missing = 0
        self._started: StartedPost | None = None
        self._fast: CallInFlight | None = None  # in place of `_started`, while the request is on the fast path
        self._context: Context | None = None
        self._resumed: StartedPost | None = None  # the POST that the next task takes over

    def come_from(self, where: tuple[str, ...]) -> None:
        """Share stored heads with other connections from the same place. `where` has the client's address and the
        scheme."""
        if self._cache is not None:
            self._heads = ConnectionHeads(self._cache.heads, where)

    # -- reading

    @property
    def received(self) -> int | None:
        """Return how many bytes of an incomplete body have arrived; None if no body is incomplete."""
        return len(self._first) - self._head_bytes + len(self._body) if self._missing else None

    @property
    def is_answering(self) -> bool:
        """Return True while this object serves a request."""
        return self._started is not None or self._fast is not None

    def take(self, data: bytes) -> bool:
        """Handle received data of a request that repeats a stored head, and return True. Return False if the data is
        not of such a request, or cannot be handled here: the caller has to give it to the HTTP parser, which then has
        all earlier bytes."""
        if self._missing:
            return self._take_body(data)
        if self._started is not None or self._fast is not None:
            self.give_up("pipelined")
            return False
        self._new = None
        cache, connection = self._cache, self._connection
        if cache is None or not connection.is_between_requests() or not cache.may_serve():
            return False
        found = self._heads.match(data)
        if found is None:
            self._new = data if data.startswith(b"POST ") else None
            return False
        size = found.head_bytes + found.body_bytes
        if not 0 < found.body_bytes <= cache.body_bytes or len(data) > size or connection.flow.write_paused:
            is_small = 0 < found.body_bytes <= cache.body_bytes
            cache.counts["size" if not is_small else "pipelined" if len(data) > size else "interrupted"] += 1
            return False
        self.requests += 1
        self._known, self._first, self._head_bytes = found.known, data, found.head_bytes
        self._trace = found.trace
        self._missing = size - len(data)
        if not self._missing:
            self._begin(data[found.head_bytes :])
        return True

    def _take_body(self, data: bytes) -> bool:
        if len(data) > self._missing:
            self.give_up("pipelined")
            return False
        self._missing -= len(data)
        if self._missing:
            self._body = self._body or bytearray()
            self._body += data
        elif not self._body and len(self._first) == self._head_bytes:
            self._body = data
            self._begin(data)  # most clients send the body in a piece of its own
        else:
            self._body += data
            self._begin((self._first + self._body)[self._head_bytes :])
        return True

    def parsed(self, scope: Any, headers: HeaderList, *, is_last: bool) -> None:
        """Record that the parser has read a new head. Unless the connection ends after the request (`is_last`), put a
        `HeadOffer` into the scope, with which the app can store the head."""
        data, self._new = self._new, None
        if data is None or self._cache is None:
            return
        self._cache.counts["new_head"] += 1
        if not is_last and (end := data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)) >= 0:
            scope[REPEATS] = HeadOffer(self._heads, data[: end + 4], headers)

    # -- serving

    def _begin(self, body: bytes) -> None:
        """Serve a request that has arrived: on the fast path if possible, else by the handler."""
        assert self._known is not None
        try:
            self._fast = self._known.value.begin_fast(self, body, self._trace)
        except Exception:  # the call was not sent: once it is sent, nothing can fail
            logger.exception("a call cannot be sent on the fast path")
        if self._fast is None:
            self._begin_general(body)

    def _begin_general(self, body: bytes) -> None:
        assert self._known is not None
        # The context of a request, as its task would have one: log lines have the correlation id from there.
        self._context = context = Context()
        self._started = started = context.run(self._known.value.begin, body, self._trace)
        if started is None or started.is_no_request:
            self._resume("no_request")
        elif started.has_failed:
            self._go_on(started)
        else:
            # In a task of its own, with the context of the request.
            waiting = started.wait(functools.partial(self._spawn, context=context))
            waiting.add_done_callback(functools.partial(self._waited, started))

    def _waited(self, started: StartedPost, waiting: asyncio.Task[None]) -> None:
        """Continue a request once the task `waiting` has ended: the handler has accepted or refused the request. Do
        nothing if an ASGI task has taken the request over."""
        if started is self._started:
            self._go_on(started)

    def _go_on(self, started: StartedPost) -> None:
        """Write the handler's answer if its first frame has come, or wait for this frame. If there is no answer, or it
        has to become an event stream at once, let parser and ASGI finish the request."""
        if started.answer is None:
            assert self._known is not None
            if not started.is_elsewhere:
                self._heads.forget(self._known.template)  # the next one is served from its beginning
            self._resume("refused")
        elif not started.quiet_at:
            self._resume("streamed")
        elif started.answer.replies.first is not None:
            self._answer(started)
        else:
            started.answer.replies.when_ready(functools.partial(self._ready, started), started.quiet_at)

    def _ready(self, started: StartedPost, is_quiet: bool) -> None:  # the queue calls it
        """Go on with a started call: write its answer if it is complete, else let parser and ASGI go on. Called when
        its first frame has come, when none came in time (`is_quiet`), or when none will come."""
        if started is not self._started:
            return  # a task has taken it over
        if is_quiet:
            started.went_quiet()
        self._answer(started)

    def _answer(self, started: StartedPost) -> None:
        """Write the answer if all its frames have arrived; otherwise let parser and ASGI finish the request."""
        connection, parts = self._connection, None
        if started.quiet_at and not connection.flow.write_paused and not connection.transport.is_closing():
            parts = self._whole(started)
        if parts is None:
            self._resume("streamed")
            return
        assert self._known is not None
        known = self._known.value
        self._started = self._context = None
        self._write("direct", *parts)
        try:
            started.answered()
            known.learn(started)
        except Exception:
            logger.exception("an answer was sent, and could not be recorded")

    def _write(self, outcome: HeadUse, head: bytes, body: bytes) -> None:
        self._known = None
        self._first = self._body = b""
        assert self._cache is not None
        self._cache.counts[outcome] += 1
        transport = self._connection.transport
        if len(body) <= _COPIED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        self._connection.server_state.total_requests += 1

    # -- on the fast path (`transports.inbound_port.WaitingConnection`)

    def answer_fast(self, frame: bytes, headers: HeaderList) -> bool:
        connection, known = self._connection, self._known
        if known is None or connection.flow.write_paused or connection.transport.is_closing():
            return False
        shared = known.value.shared
        defaults = connection.server_state.default_headers
        head = self._json.head(200, defaults, [*headers, *shared] if shared else headers, len(frame))
        if head is None:
            return False
        self._fast = None
        self._write("fast", head, frame)
        return True

    def stream_fast(
        self,
        frames: Sequence[Frame],
        record: Callable[[Sequence[Frame]], Sequence[str | None] | None],
        headers: HeaderList,
    ) -> bool:
        connection, known = self._connection, self._known
        if known is None or connection.flow.write_paused or connection.transport.is_closing():
            return False
        repeated = known.value
        head = self._stream.head(connection.server_state.default_headers, stream_headers(headers) + repeated.shared)
        events = None if head is None else whole_stream(frames, repeated.can_resume, record)
        if head is None or events is None:
            return False
        self._fast = None
        self._write("fast", head, whole_body(events))
        return True

    def goes_on(self, call: CallInFlight) -> None:
        self._fast = call

    def begin_general(self) -> None:
        self._fast = None
        self._begin_general((self._first + self._body)[self._head_bytes :])

    def fall_back(self, began: float, become: Callable[[Request], Answer]) -> None:
        self._fast = None
        self._context = context = Context()
        body = (self._first + self._body)[self._head_bytes :]
        try:
            assert self._known is not None
            known = self._known.value
            self._started = started = context.run(known.resumed, body, known.head_with(self._trace), began, become)
        except Exception:  # the call was sent, so it cannot begin again: its client learns that there is no answer
            logger.exception("a call cannot go on in the usual way")
            self._context = None
            self._clear()
            self._connection.transport.close()
            return
        assert started.answer is not None
        context.run(started.answer.replies.when_ready, functools.partial(self._ready, started), started.quiet_at or 0.0)

    def _whole(self, started: StartedPost) -> tuple[bytes, bytes] | None:
        """Return the encoded head and body of the response to `started` if all frames of the answer have arrived.
        Return None if they have not, or if parser and ASGI have to make the response for another reason."""
        answer = started.answer
        frame = None if answer is None else answer.replies.first
        if answer is None or frame is None or answer.is_doubtful:
            return None
        defaults = self._connection.server_state.default_headers
        try:
            if frame.final:
                size = len(frame.data)
                head = self._json.head(started.status(frame), defaults, started.json_headers(answer), size)
                return None if head is None else (head, frame.data)
            head = self._stream.head(defaults, started.stream_headers(answer))
            events = None if head is None else started.stream(answer)
            return None if head is None or events is None else (head, whole_body(events))
        except Exception:
            logger.exception("an answer cannot be written at once")
            return None

    def _spawn(self, work: Coroutine[Any, Any, None], context: Context | None = None) -> asyncio.Task[None]:
        task = self._connection.loop.create_task(work, context=context)
        tasks = self._connection.server_state.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    # -- the usual way

    def give_up(self, why: HeadUse = "interrupted") -> None:
        """If a request is being served here, let parser and ASGI finish it. `why` is the outcome that is counted for
        the request (`OUTCOMES`)."""
        if self._missing:
            self._missing = 0
            assert self._cache is not None
            self._cache.counts[why] += 1
            self._connection.parse(self._take_bytes())
            return
        if self._fast is not None:
            self._fast.fall_back()
        if self._started is not None:
            self._resume(why)

    def _resume(self, why: HeadUse) -> None:
        """Give the request's bytes to the parser. This starts an ASGI task, which continues from the steps that were
        done here. `why` is the outcome that is counted for the request (`OUTCOMES`)."""
        assert self._cache is not None
        self._cache.counts[why] += 1
        self._resumed, self._started = self._started, None
        context, self._context = self._context or Context(), None
        context.run(self._connection.parse, self._take_bytes())
        if self._resumed is not None:
            logger.error("a request that was started cannot be parsed")
            started, self._resumed = self._resumed, None
            self._spawn(_logged(started.drop()))

    def _take_bytes(self) -> bytes:
        data = self._first + self._body if self._body else self._first
        self._clear()
        return data

    def _clear(self) -> None:
        self._known = None
        self._first = self._body = b""

    def app(self, app: Any) -> Any:
        """Return the ASGI app for the request that was just parsed: `app`, or one that finishes a request which was
        begun here."""
        started, self._resumed = self._resumed, None
        return app if started is None else started.finish

    def forget(self) -> None:
        """Drop all heads, because the connection has ended. A request in progress goes on as if its client had left."""
        if self._missing:
            self._missing = 0
            self._clear()
        self.give_up()
        self._heads.close()


async def _logged(rest: Coroutine[Any, Any, None]) -> None:
    try:
        await rest
    except Exception:
        logger.exception("an answer was sent, and could not be recorded")


_OF_THE_SERVER: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})


class JsonHeads:
    """Encode the HTTP heads of JSON responses on one connection. Cache the last head, because most are the same."""

    __slots__ = ("_after", "_before", "_defaults", "_headers", "_status")

    def __init__(self) -> None:
        self._status = 0
        self._defaults: HeaderList = []
        self._headers: HeaderList = []
        self._before = self._after = b""

    def head(self, status: int, defaults: HeaderList, headers: HeaderList, body_bytes: int) -> bytes | None:
        """Return the encoded head of a JSON response with a body of `body_bytes`. `defaults` are the headers that the
        HTTP server adds to each response, `headers` those of the answer.

        Return None if uvicorn has to write the response, because a header concerns the connection or is not valid.
        """
        if status != self._status or defaults is not self._defaults or headers != self._headers:
            first, last = _lines(defaults), _lines(headers)
            if first is None or last is None:
                return None
            self._status, self._defaults, self._headers = status, defaults, list(headers)
            self._before = STATUS_LINE[status] + first + b"content-type: application/json\r\ncontent-length: "
            self._after = b"\r\n" + last + b"\r\n"
        return b"%b%d%b" % (self._before, body_bytes, self._after)


class StreamHeads:
    """Encode the HTTP heads of event-stream responses on one connection. Cache the last head."""

    __slots__ = ("_defaults", "_head", "_headers")

    def __init__(self) -> None:
        self._defaults: HeaderList = []
        self._headers: HeaderList = []
        self._head = b""

    def head(self, defaults: HeaderList, headers: HeaderList) -> bytes | None:
        """Return the encoded head of an event-stream response, with a chunked body. The arguments, and the result None,
        are as for `JsonHeads.head`."""
        if not self._head or defaults is not self._defaults or headers != self._headers:
            lines = _lines([*defaults, *headers])
            if lines is None:
                return None
            self._defaults, self._headers = defaults, list(headers)
            self._head = STATUS_LINE[200] + lines + b"transfer-encoding: chunked\r\n\r\n"
        return self._head


def whole_body(data: bytes) -> bytes:
    """Return the data as a complete body in chunked coding, with one chunk."""
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


def _lines(headers: HeaderList) -> bytes | None:
    """Encode the headers. Return None if one concerns the connection or is not valid."""
    lines = b""
    for name, value in headers:
        name = name.lower()
        if name in _OF_THE_SERVER or HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
            return None
        lines += b"%b: %b\r\n" % (name, value)
    return lines
