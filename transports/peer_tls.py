"""Serve TLS between replicas on the answering side, so that connections are counted from their beginning.

`loop.create_server(ssl=…)` reports a connection only after its TLS handshake. Before that, the connection could neither
be counted nor be closed to make room."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from transports.peer_authentication import Layer

_PIECE_BYTES: Final = 64 << 10


class PeerTls(NamedTuple):
    """The TLS contexts of both sides of a connection between replicas."""

    asking: ssl.SSLContext
    answering: ssl.SSLContext


class Encrypted(Layer):
    """Decrypt the bytes that arrive for a protocol, and encrypt the bytes that it writes. `accepted` is called with the
    connection when it opens, and `failed` if the handshake fails. The protocol begins after the handshake."""

    def __init__(
        self,
        protocol: asyncio.Protocol,
        tls: ssl.SSLContext,
        *,
        accepted: Callable[[asyncio.Transport], None],
        failed: Callable[[], None],
    ) -> None:
        super().__init__(protocol)
        self._accepted = accepted
        self._failed = failed
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._coming, self._going, server_side=True)
        self._is_encrypted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._accepted(self._transport)

    def data_received(self, data: bytes) -> None:
        self._coming.write(data)
        try:
            self._read()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError:  # also the end of the TLS connection
            if not self._is_encrypted:
                self._failed()
            self._flush()  # sends the TLS alert
            self.close()

    def _read(self) -> None:
        """Decrypt all bytes that have arrived. Raises `SSLWantReadError` if more bytes are needed, and `SSLError` for
        any other failure."""
        if not self._is_encrypted:
            self._tls.do_handshake()
            self._is_encrypted = True
            self._protocol.connection_made(self)
        while not self.is_closing():
            self._flush()
            piece = self._tls.read(_PIECE_BYTES)
            if not piece:
                raise ssl.SSLZeroReturnError
            self._protocol.data_received(piece)

    def _flush(self) -> None:
        if self._going.pending and self._transport is not None:
            self._transport.write(self._going.read())

    def write(self, data: Any) -> None:
        if self.is_closing():
            return
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        self._flush()
