"""Frames in a stream of bytes: each begins with a head of fixed size, which has the size of the content behind it."""

from collections.abc import Iterator
from typing import Final

__all__ = ["FrameReader", "FrameTooLong"]

_SIZE: Final = 4


class FrameTooLong(Exception):
    """A head announces more than its reader takes. Nothing behind it can be read."""


class FrameReader:
    """Puts frames together that arrive in pieces.

    `head_bytes`: size of a head. `size_at`: where in it the size of the content stands, as 4 bytes,
    big-endian. `most`: the largest content.
    """

    def __init__(self, head_bytes: int, size_at: int, most: int) -> None:
        self._head_bytes = head_bytes
        self._size_at = size_at
        self._most = most
        self._rest = bytearray()
        self._need = 0  # bytes of the rest before it is worth looking at

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Take bytes. The frames that are complete, as heads and contents. To be read to its end, or never again.

        Raises:
            FrameTooLong: after the frames before it.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data, self._rest = bytes(self._rest), bytearray()
        at, end, self._need = 0, len(data), self._head_bytes
        while end - at >= self._head_bytes:
            head = data[at : at + self._head_bytes]
            size = int.from_bytes(head[self._size_at : self._size_at + _SIZE], "big")
            if size > self._most:
                raise FrameTooLong
            begin = at + self._head_bytes
            if end - begin < size:
                self._need = self._head_bytes + size
                break
            at = begin + size
            yield head, data[begin:at]
        if at < end:
            self._rest += data[at:]
