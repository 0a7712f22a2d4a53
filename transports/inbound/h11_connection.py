"""Serve a connection with h11: slower than httptools, but correct for `Upgrade` (which it ignores) and for HTTP/1.0.

The limits and the faults that end a connection are those of `HttpConnection`.
"""

import asyncio
import functools
import logging
from typing import Any, Final, cast
from urllib.parse import unquote

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from transports.inbound.connections import Connections, CycleTransport, Leaving, Phase, disconnect, drop, reset
from transports.inbound.framing_checks import BadRequest, plain_target
from transports.inbound.http import Receive, Scope, Send
from transports.inbound.unauthenticated_limits import Limited

_errors = logging.getLogger("uvicorn.error.h11")
_errors.setLevel(logging.ERROR)  # else any client could fill the log with offers to upgrade
_PROGRESS_BITS: Final = 16


class H11Connection(H11Protocol):
    """Serve a client's HTTP connection with the parser h11. `HttpConnection` has accepted it, and hands it over."""

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
        self._leaving = Leaving()

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
        self._leaving.begin(transport, self.flow, in_body=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._leaving.has_begun:
            self._leaving.drop(len(data), self.flow)
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
            disconnect(cycle)
            if cycle.response_started:
                self.transport.abort()
                return
        self.transport.write(fault.response())
        self.transport.close()

    # -- for `Connections`

    def standing(self) -> tuple[Phase, int]:
        theirs = self.conn.their_state
        if self._leaving.has_begun:
            return Phase.LEAVING, 0
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
        if kind is Limited.WRITE_TIME or self._leaving.has_begun:
            if kind is not None:
                self._others.refusals[kind] += 1
            reset(self.transport)
        elif kind is None:
            self.transport.close()
        else:
            self._refuse(BadRequest(408, "The request did not arrive in time.", kind))

    def drop(self) -> None:
        drop(self.transport)
