"""Read frames from a stream of bytes. A frame has a head of fixed size, which contains the content's size, and then the
content."""

from collections.abc import Iterator
from typing import Final

_SIZE: Final = 4


class FrameTooLong(Exception):
    """A frame announces more content than its reader accepts. The rest of the stream cannot be read."""


class FrameReader:
    """Assemble frames from the pieces in which they arrive.

    `head_bytes` is the size of a frame's head. The size of the content stands in the head at the offset `size_at` (4
    bytes, big-endian). `most` is the largest accepted content, in bytes.
    """

    def __init__(self, head_bytes: int, size_at: int, most: int) -> None:
        self._head_bytes = head_bytes
        self._size_at = size_at
        self._most = most
        self._rest = bytearray()
        self._need = 0  # bytes that the rest must have before it can be a whole frame

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Add received bytes, and yield each complete frame as (head, content). The caller must exhaust the iterator,
        or bytes are lost.

        Raises:
            FrameTooLong: a frame is too long. The frames before it were yielded.
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
                raise FrameTooLong("a frame is too long")
            begin = at + self._head_bytes
            if end - begin < size:
                self._need = self._head_bytes + size
                break
            at = begin + size
            yield head, data[begin:at]
        if at < end:
            self._rest += data[at:]
