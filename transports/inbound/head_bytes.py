"""The bytes of the request head that a connection is reading. Pure: no I/O, no parsing."""

__all__ = ["HeadBytes"]


class HeadBytes:
    """Counts the bytes of a head, and copies them for a parser that may have to read the head again.

    `copy` is None if the head did not begin at the start of a chunk: then only the first parser knows where it began.
    `at_most` is the most bytes that a head can have which ends in the present chunk.
    """

    __slots__ = ("_chunk", "_is_first", "at_most", "copy", "size")

    def __init__(self) -> None:
        self.copy: bytearray | None = None
        self.size = self.at_most = 0
        self._chunk = 0
        self._is_first = False

    def arrive(self, size: int, *, between_messages: bool) -> None:
        """Count a chunk of that size, which is about to be parsed."""
        self._chunk = size
        self.at_most = self.size + size
        self._is_first = between_messages

    def begin(self) -> None:
        """A message begins in this chunk. The first one of a chunk that came between messages begins at its start."""
        self.copy = bytearray() if self._is_first else None
        self.size = 0
        self.at_most = self._chunk
        self._is_first = False

    def keep(self, data: bytes) -> None:
        """Count and copy a chunk that ended inside the head.

        If the chunk began with other messages, it is not known where the head begins in it. Then one byte is counted,
        the fewest that the head can have in the chunk.
        """
        if self.copy is not None:
            self.copy += data
        if self.copy is not None or self.size:
            self.size += len(data)
        else:
            self.size = 1

    def end(self) -> None:
        """The head is complete."""
        self.copy = None
