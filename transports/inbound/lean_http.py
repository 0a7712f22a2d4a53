"""uvicorn's HTTP protocol with less work for each request: what a call of a hot path pays for and nobody needs.

Three things differ, and nothing that a client can see: a response that comes whole leaves in one write, other parts of
a turn of the loop leave together, and a connection has one timer for its idle time instead of one for each response.
"""

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HEADER_VALUE_RE, STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

__all__ = ["LeanHttpProtocol"]


class LeanHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _idle_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", _Gathering(cast("asyncio.Transport", transport))))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    # -- requests

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        scope = cast("dict[str, Any]", self.scope)
        scope["method"] = self.parser.get_method().decode("ascii")
        if version != "1.1" or self.root_path or b"%" in self.url or self.limit_concurrency is not None:
            super().on_headers_complete()
            return
        url = httptools.parse_url(self.url)
        scope["path"], scope["raw_path"] = url.path.decode("ascii"), url.path
        scope["query_string"] = url.query or b""
        before = self.cycle
        self.cycle = _Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    # -- idle time

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None  # the timer goes on, and finds out

    def on_response_complete(self) -> None:
        if self.pipeline or self.timeout_keep_alive_task is None:
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()
        self._idle_since = self.loop.time()

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None or self.transport.is_closing():
            return  # the next response starts it again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            self.transport.close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)


class _Cycle(RequestResponseCycle):
    """One request and its response."""

    _head: Any = None
    _has_read = False

    async def receive(self) -> Any:
        if self._has_read or self.more_body or self.disconnected or self.waiting_for_100_continue:
            return await super().receive()
        # The body is here already, as it mostly is.
        self._has_read = True
        self.message_event.clear()
        self.flow.resume_reading()
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Any) -> None:
        head, self._head = self._head, None
        if message["type"] == "http.response.start":
            if "whole" in message and not self.response_started and self.scope["method"] != "HEAD":
                self._head = message  # its body comes at once
            else:
                await super().send(message)
        elif head is None:
            await super().send(message)
        elif not self._answered(head, message["body"]):
            await super().send(head)
            await super().send(message)

    def _answered(self, head: Any, body: bytes) -> bool:
        """Whether the whole response was written; else nothing was."""
        if self.flow.write_paused or self.disconnected or not self.keep_alive:
            return False
        parts = [STATUS_LINE[head["status"]]]
        for name, value in (*self.default_headers, *head["headers"]):
            if name == b"connection" or HEADER_VALUE_RE.search(value):
                return False
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n", body)
        self.response_started = self.response_complete = True
        cast("_Gathering", self.transport).write_now(b"".join(parts))
        self.message_event.set()
        self.on_response()
        return True


class _Gathering:
    """A transport that gathers what it is given until the turn of the loop ends."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parts: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def write_now(self, data: bytes) -> None:
        """With what was gathered before it."""
        if self._parts:
            self._parts.append(data)
            self._flush()
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        if self._parts:
            data, self._parts = b"".join(self._parts), []
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
