"""The messages of one HTTP/1.1 connection as httptools reads them, with the limits of heads. Sends nothing."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from transports.inbound.framing import BadRequest, plain_target
from transports.inbound.head_bytes import HeadBytes
from transports.inbound.limits import Limited, Limits

__all__ = ["LastRequest", "MessageReading", "UnusualHead", "too_long"]


class UnusualHead(Exception):
    """A head that h11 has to parse."""


class LastRequest(Exception):
    """The previous request was the last one on this connection (`Connection: close`)."""


class MessageReading(HttpToolsProtocol):
    """The callbacks of the parser. What is wrong with a message is raised through the parser, and kept in `_fault`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._fault: Exception | None = None
        self._in_head = self._in_body = False
        self._heads = 0
        self._body_bytes = 0
        self._overhead = 0
        self._head = HeadBytes()

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

    def _check_head(self) -> None:
        method, version = self.parser.get_method().decode("ascii"), self.parser.get_http_version()
        if version == "1.0" or (self.parser.should_upgrade() and method != "CONNECT"):
            raise UnusualHead
        if self._head.at_most > self._limits.head_bytes:
            if _size_of(self.url, self.headers) > self._limits.head_bytes:
                raise too_long(self._limits.head_bytes)
        if len(self.pipeline) >= self._limits.pipelined:
            raise BadRequest(503, "Too many unanswered requests on one connection.", Limited.PIPELINE)
        self.url = plain_target(method, self.url, version, self.headers)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()


def _size_of(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


def too_long(limit: int) -> BadRequest:
    """The refusal of a head of more bytes than that."""
    return BadRequest(431, f"The headers are larger than {limit} bytes.", Limited.HEAD_SIZE)
