"""Serve one HTTP/1.1 connection: uvicorn's httptools protocol, with limits and a defined answer to each fault of a
client.

httptools (llhttp, strict) parses the bytes. h11 takes over the connections that httptools cannot read correctly: a head
with `Upgrade`, whose body httptools would take for another protocol, and HTTP/1.0. docs/adr/0012-the-http-edge.md"""

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import unquote

import h11
import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.h11_impl import RequestResponseCycle as H11Cycle
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from transports.inbound.asgi_bypass import RepeatedRequests
from transports.inbound.connection_handover import ConnectionHandover, Siblings
from transports.inbound.connections import Connections, CycleTransport, LingeringClose, Phase, drop, reset
from transports.inbound.framing_checks import BadRequest, plain_target
from transports.inbound.head_cache import HeadCache
from transports.inbound.http_requests_and_responses import Receive, Scope, Send
from transports.inbound.unauthenticated_limits import Limited

_PROGRESS_BITS: Final = 16
"""A body counts as making progress each time another 2 ** 16 bytes (64 KiB) have arrived."""


class HeadBytes:
    """Count the bytes of a request head, and copy them, because a second parser (h11) may have to read the head
    again."""

    __slots__ = ("_chunk", "_is_first", "at_most", "copy", "size")

    def __init__(self) -> None:
        self.copy: bytearray | None = None
        """The bytes of the head so far. None between heads, and if the head did not begin at the start of a chunk: then
        only the first parser knows where it began."""
        self.size = self.at_most = 0
        """The bytes of the head in earlier chunks, and the most that it can have if it ends in the present chunk."""
        self._chunk = 0
        self._is_first = False

    def arrive(self, size: int, *, between_messages: bool) -> None:
        """Set the size of the chunk of data that is parsed next. `between_messages`: no request is incomplete."""
        self._chunk = size
        self.at_most = self.size + size
        self._is_first = between_messages

    def begin(self) -> None:
        """Record that a head begins in this chunk. It begins at the start of the chunk if no request was incomplete,
        and no head came before it in the chunk."""
        self.copy = bytearray() if self._is_first else None
        self.size = 0
        self.at_most = self._chunk
        self._is_first = False

    def keep(self, data: bytes) -> None:
        """Count and copy a chunk that ended inside the head.

        If the chunk began with another message, the head may begin anywhere in it. Then count one byte, the fewest that
        the head can have in the chunk.
        """
        if self.copy is not None:
            self.copy += data
        if self.copy is not None or self.size:
            self.size += len(data)
        else:
            self.size = 1

    def end(self) -> None:
        """Record that the head is complete."""
        self.copy = None


class UnusualHead(Exception):
    """A request head that has to be parsed by h11."""


class LastRequest(Exception):
    """A request has come after the last one: the earlier request ends its connection (`Connection: close`)."""


class HttpConnection(HttpToolsProtocol):
    """Serve one HTTP/1.1 connection of a client, as uvicorn's protocol class.

    `connections` has all open connections of the listener. `place` is the path of a Unix socket, if the connection is
    on one. `cache` is for `RepeatedRequests`; None: no head is stored. `handover` may move the connection to another
    process; None: it stays in this one.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
        place: str = "",
        cache: HeadCache | None = None,
        handover: ConnectionHandover | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = connections.limits
        self._fault: Exception | None = None
        self._in_head = self._in_body = False
        self._heads = 0
        self._body_bytes = 0
        self._overhead = 0
        self._head = HeadBytes()
        self._others = connections
        self._place = place
        self._running: RequestResponseCycle | None = None
        self._last_response: bytes | None = None
        """A last response, which is written after those in progress, before the connection ends. Once it is set,
        nothing is read."""
        self._of_cycles: asyncio.Transport
        self._lingering = LingeringClose()
        self._handover = handover
        if handover is not None and handover.moves:
            self._heads = 1  # it has had a request, so that it may be idle for as long as any other
        self.access_log = False  # even if its logger has listeners: requests with stored heads are not logged
        self._repeated = RepeatedRequests(self, cache)

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        where = (self.client[0] if self.client else "", self.scheme or "")
        # Among workers, the first request of a connection decides which of them gets it. So no heads are shared.
        self._repeated.come_from(where if self._handover is None else (*where, str(id(self))))
        self._of_cycles = cast("asyncio.Transport", CycleTransport(self.transport, self._close_after_response))
        reserve: Callable[[int], bool] | None = getattr(self.loop, "reserve", None)  # of a `GuardedLoop`
        ours = self.transport.get_extra_info("socket")
        if reserve is not None and ours is not None and not reserve(ours.fileno()):
            self.transport.abort()
        refused = self._others.enter(self, self.client[0] if self.client else "", place=self._place)
        if refused is not None and not self.transport.is_closing():
            # Nobody checks the deadlines of this connection, so it must not wait for the client to read.
            self.transport.write(BadRequest(503, "Too many connections.", refused).response())
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.leave(self)
        self._repeated.forget()
        super().connection_lost(exc)
        running = self._running
        if running is not None and not running.response_complete:
            _disconnect(running)  # uvicorn does this only for the last of pipelined requests
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        if self._last_response is not None or self._lingering.has_begun or self.transport.is_closing():
            self._lingering.drop(len(data), self.flow)
            return
        if not self._repeated.take(data):
            self.parse(data)

    def parse(self, data: bytes) -> None:
        """Parse data with httptools, and serve the requests in it."""
        self._head.arrive(len(data), between_messages=not (self._in_head or self._in_body))
        was_in_body, body_bytes = self._in_body, self._body_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            fault, self._fault = self._fault, None
            self._end_at(fault, data)
        except httptools.HttpParserUpgrade:
            self._refuse(BadRequest(400, "This connection speaks HTTP/1.1 only."))
        else:
            if self._in_head:
                self._head.keep(data)
                if self._head.size > self._limits.head_bytes:
                    self._refuse(_too_long(self._limits.head_bytes))
            elif self._in_body:
                # Data with nothing but trailers or chunk extensions must not go on for ever.
                is_overhead = was_in_body and self._body_bytes == body_bytes
                self._overhead = self._overhead + len(data) if is_overhead else 0
                if self._overhead > self._limits.head_bytes:
                    self._refuse(BadRequest(431, "The trailers are too large.", Limited.HEAD_SIZE))
                elif self._body_bytes > self._limits.body_bytes and self.cycle.response_complete:
                    self._others.refusals[Limited.BODY_SIZE] += 1
                    self._leave(b"")  # the request has its answer already

    def is_between_requests(self) -> bool:
        """Return True if all requests were answered, no byte of another one has arrived, and the connection takes
        one."""
        if self._in_head or self._in_body or self.pipeline:
            return False
        last = self._running
        return last is None or (last.response_complete and last is self.cycle and last.keep_alive)

    # -- the message that is being read. A fault in it is raised through the parser, and kept in `_fault`.

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.keep_alive:
            self._fault = LastRequest()
            raise self._fault
        super().on_message_begin()
        self._in_head = True
        self._head.begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            return  # a trailer: not merged into the headers (RFC 9110 §6.5.1), because it was not checked with them
        if len(self.headers) >= self._limits.headers:
            self._fault = BadRequest(431, f"More than {self._limits.headers} headers.", Limited.HEAD_SIZE)
            raise self._fault
        name = name.lower()
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        try:
            self._check_head()
        except (BadRequest, UnusualHead) as fault:
            self._fault = fault
            raise
        self._head.end()
        self._heads += 1
        self._in_body = True
        self._body_bytes = self._overhead = 0
        super().on_headers_complete()
        self._repeated.parsed(self.scope, self.headers, is_last=not self.parser.should_keep_alive())

    def _check_head(self) -> None:
        method, version = self.parser.get_method().decode("ascii"), self.parser.get_http_version()
        if version == "1.0" or (self.parser.should_upgrade() and method != "CONNECT"):
            raise UnusualHead
        if self._head.at_most > self._limits.head_bytes:
            if (
                len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
                > self._limits.head_bytes
            ):
                raise _too_long(self._limits.head_bytes)
        if len(self.pipeline) >= self._limits.pipelined:
            raise BadRequest(503, "Too many unanswered requests on one connection.", Limited.PIPELINE)
        self.url = plain_target(method, self.url, version, self.headers)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    # -- responses

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        cycle.transport = self._of_cycles
        super()._start_asgi_task(cycle, self._repeated.app(app))

    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def on_response_complete(self) -> None:
        # Replaces uvicorn's method, which starts a timer here and stops it with the next byte.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._last_response is not None:
            self._leave(self._last_response)
        elif self._handover is None or self._running is None:
            self.flow.resume_reading()
        elif (sibling := self._handover.place_for(self._running.scope)) is None:
            self.flow.resume_reading()
        else:
            # What the client sends from now on is for the other process to read. First the response is written.
            self.flow.pause_reading()
            self.loop.call_soon(self._give, sibling)

    def _give(self, sibling: int) -> None:
        """Hand the connection to a sibling process, if it is between requests; otherwise go on reading."""
        if self.transport.is_closing():
            return
        if self._handover is not None and self.is_between_requests() and self._handover.give(self.transport, sibling):
            self._others.leave(self)
            self.transport.abort()  # closes the descriptor here, and sends nothing
        else:
            self.flow.resume_reading()

    # -- the end

    def shutdown(self) -> None:
        self._repeated.give_up()
        super().shutdown()

    def _close_after_response(self) -> None:
        """Close the connection after a response. If the request's body is still arriving, first let the client read the
        response: closing at once would send a reset, which could overtake the response (RFC 9112 §9.6)."""
        if self._in_body and self.cycle is self._running and self.cycle.response_complete:
            self._leave(b"", in_body=True)
        else:
            self.transport.close()

    def _end_at(self, fault: Exception | None, data: bytes) -> None:
        if isinstance(fault, LastRequest):
            self._last_response = b""  # uvicorn closes the connection with the response
        elif isinstance(fault, BadRequest):
            self._refuse(fault)
        elif not isinstance(fault, UnusualHead):
            self._refuse(BadRequest(400, "This is not an HTTP/1.1 request."))
        elif self._head.copy is None or self._is_answering():
            # Only the parser knew where the head begins in the data. No well-meaning client sends this.
            self._refuse(BadRequest(400, "An Upgrade, or HTTP/1.0, must not follow another request so closely."))
        else:
            _continue_with_h11(self, bytes(self._head.copy) + data)

    def _refuse(self, fault: BadRequest) -> None:
        """Let the answers to earlier requests be sent, then send the response for this fault, and end the
        connection."""
        self._others.refusals[fault.kind] += 1
        if self._in_body:
            self._in_body = False
            cycle = self.cycle
            if cycle is not self._running:
                self.pipeline.popleft()  # the faulty request is the last one there, and has not begun
            elif cycle.response_complete:
                self._leave(b"")  # the request has its answer already
                return
            else:
                _disconnect(cycle)
                if cycle.response_started:
                    self.transport.abort()
                else:
                    self._leave(fault.response())
                return
        if self._is_answering():
            self._last_response = fault.response()
            self.flow.pause_reading()
        else:
            self._leave(fault.response())

    def _leave(self, answer: bytes, *, in_body: bool = False) -> None:
        """Write a last response and stop sending. `in_body`: a request's body is still arriving."""
        self._in_head = self._in_body = False
        for cycle in (self._running, self.cycle):
            if cycle is not None:
                cycle.waiting_for_100_continue = False  # else an app that reads more would write behind the last answer
        if answer:
            self.transport.write(answer)
        self._lingering.begin(self.transport, self.flow, in_body=in_body)

    # -- for `Connections`

    def progress(self) -> tuple[Phase, int]:
        if self._lingering.has_begun:
            return Phase.LINGERING, 0
        if self.flow.read_paused or self._last_response is not None:
            return Phase.BUSY, 0
        heads, received = self._heads + self._repeated.requests, self._repeated.received
        if self._in_head or not heads:
            return Phase.HEAD, heads
        if self._in_body or received is not None:
            return Phase.BODY, (heads << 40) + ((self._body_bytes if received is None else received) >> _PROGRESS_BITS)
        return (Phase.BUSY if self._is_answering() or self._repeated.is_answering else Phase.IDLE), heads

    def unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def cut(self, kind: Limited | None) -> None:
        if self._repeated.received is not None:
            self._repeated.give_up()
        if kind is Limited.WRITE_TIME or self._lingering.has_begun:
            if kind is not None:
                self._others.refusals[kind] += 1
            reset(self.transport)
        elif kind is not None and (self._in_head or self._in_body):
            self._refuse(BadRequest(408, "The request did not arrive in time.", kind))
        else:
            if kind is not None:
                self._others.refusals[kind] += 1
            self.transport.close()

    def drop(self) -> None:
        drop(self.transport)


def _disconnect(cycle: RequestResponseCycle | H11Cycle) -> None:
    """Tell the app of a request that its client has left."""
    cycle.disconnected = True
    cycle.message_event.set()


def _too_long(limit: int) -> BadRequest:
    return BadRequest(431, f"The headers are larger than {limit} bytes.", Limited.HEAD_SIZE)


def _continue_with_h11(connection: HttpConnection, head: bytes) -> None:
    """Hand a connection over to the parser h11. `head` has all bytes from the beginning of the present request, which
    h11 parses again."""
    connection._repeated.forget()
    connection.server_state.connections.discard(connection)
    config, state, app_state = connection.config, connection.server_state, connection.app_state
    successor = H11Connection(config, state, app_state, connection.loop, connections=connection._others)
    connection._others.swap(connection, successor)
    successor.connection_made(connection.transport)
    connection.transport.set_protocol(successor)
    successor.data_received(head.lstrip(b"\r\n"))


def http_connections(
    connections: Connections, cache: HeadCache | None = None, siblings: Siblings | None = None
) -> Callable[..., HttpConnection]:
    """Return the factory of connections for uvicorn (`Config(http=…)`). Without `cache`, no head is stored. With
    `siblings`, a connection moves to the process that owns its session; the factory's argument `moves` counts its moves
    so far."""

    def made(*of_uvicorn: Any, moves: int = 0, **more_of_uvicorn: Any) -> HttpConnection:
        handover = None if siblings is None else ConnectionHandover(siblings, moves)
        return HttpConnection(*of_uvicorn, connections=connections, cache=cache, handover=handover, **more_of_uvicorn)

    return made


_errors = logging.getLogger("uvicorn.error.h11")
_errors.setLevel(logging.ERROR)  # else any client could fill the log with offers to upgrade


class H11Connection(H11Protocol):
    """Serve a client's HTTP connection with the parser h11, after `HttpConnection` has accepted it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._others = connections
        self._limits = connections.limits
        self._inner = self.app
        self.app = self._checked
        self.logger = _errors
        self.conn = h11.Connection(h11.SERVER, self._limits.head_bytes)
        self._heads = 0
        self._received = self._received_before = 0
        self._lingering = LingeringClose()

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._heads += 1
        try:
            self._check_head(scope)
        except BadRequest as fault:
            self._others.refusals[fault.kind] += 1
            headers = [*fault.headers, (b"content-length", b"%d" % len(fault.body))]
            await send({"type": "http.response.start", "status": fault.status, "headers": headers})
            await send({"type": "http.response.body", "body": fault.body})
        else:
            await self._inner(scope, receive, send)

    def _check_head(self, scope: Scope) -> None:
        if len(scope["headers"]) > self._limits.headers:
            raise BadRequest(431, f"More than {self._limits.headers} headers.", Limited.HEAD_SIZE)
        raw, query = scope["raw_path"], scope["query_string"]
        asked = raw + b"?" + query if query else raw
        target = plain_target(scope["method"], asked, scope["http_version"], scope["headers"])
        if target != asked:
            raw, _, query = target.partition(b"?")
            scope.update(path=unquote(raw.decode("ascii")), raw_path=raw, query_string=query)

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn says so too
        own = CycleTransport(transport, functools.partial(self._close_after_response, transport))
        super().connection_made(cast("asyncio.Transport", own))

    def _close_after_response(self, transport: asyncio.Transport) -> None:
        """Close the connection after a response. If the body is still arriving, first let the client read the
        response."""
        cycle = self.cycle
        if cycle is None or not cycle.response_complete or self.conn.their_state is not h11.SEND_BODY:
            transport.close()
            return
        self._lingering.begin(transport, self.flow, in_body=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._lingering.has_begun:
            self._lingering.drop(len(data), self.flow)
            return
        self._received += len(data)
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and cycle.response_complete and self.conn.their_state is h11.SEND_BODY:
            if self._received - self._received_before > self._limits.body_bytes:
                self._others.refusals[Limited.BODY_SIZE] += 1
                self.transport.close()  # the request has its answer already

    def _should_upgrade(self) -> bool:
        self._received_before = self._received  # a request begins
        return False

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest(400, "This is not an HTTP/1.1 request."))

    def _refuse(self, fault: BadRequest) -> None:
        self._others.refusals[fault.kind] += 1
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            _disconnect(cycle)
            if cycle.response_started:
                self.transport.abort()
                return
        self.transport.write(fault.response())
        self.transport.close()

    # -- for `Connections`

    def progress(self) -> tuple[Phase, int]:
        theirs = self.conn.their_state
        if self._lingering.has_begun:
            return Phase.LINGERING, 0
        if self.flow.read_paused:
            return Phase.BUSY, 0
        if theirs is h11.SEND_BODY:
            return Phase.BODY, (self._heads << 40) + (self._received >> _PROGRESS_BITS)
        if self.cycle is not None and not self.cycle.response_complete:
            return Phase.BUSY, 0
        if not self._heads or (theirs is h11.IDLE and self.conn.trailing_data[0]):
            return Phase.HEAD, self._heads
        return Phase.IDLE, self._heads

    def unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def cut(self, kind: Limited | None) -> None:
        if kind is Limited.WRITE_TIME or self._lingering.has_begun:
            if kind is not None:
                self._others.refusals[kind] += 1
            reset(self.transport)
        elif kind is None:
            self.transport.close()
        else:
            self._refuse(BadRequest(408, "The request did not arrive in time.", kind))

    def drop(self) -> None:
        drop(self.transport)
