"""The answering side of TLS between replicas, on a connection that is known from its beginning.

`loop.create_server(ssl=…)` tells nobody of a connection whose handshake is not over: it could neither be counted, nor
be cut to make room.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from transports.sealed_wire import Layer

__all__ = ["Encrypted", "PeerTls"]

_PIECE_BYTES: Final = 64 << 10


class PeerTls(NamedTuple):
    """The contexts of both sides of a connection between replicas."""

    asking: ssl.SSLContext
    answering: ssl.SSLContext


class Encrypted(Layer):
    """A connection as its protocol sees it once the handshake is over: plain bytes come in, and what is written is
    encrypted. `accepted` is called with the connection at its beginning, and `failed` if the handshake is wrong."""

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
        except ssl.SSLError:  # the end is one too
            if not self._is_encrypted:
                self._failed()
            self._flush()  # the alert
            self.close()

    def _read(self) -> None:
        """Read all that is there. Raises `SSLError`: no more can be read, or not yet."""
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
