"""A line on a terminal that is written again and again, below lines that stay."""

from typing import TextIO

__all__ = ["StatusLine"]

_CLEAR = "\r\x1b[2K"


class StatusLine:
    """The terminal as a stream for logs, with one line of status under what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._status = ""

    def show(self, status: str) -> None:
        """Show this instead of the status before; an empty text removes it. The text is one line that fits."""
        if status != self._status:
            self._stream.write((_CLEAR if self._status else "") + status)
            self._stream.flush()
            self._status = status

    def write(self, text: str) -> int:
        """Write whole lines above the status."""
        if not self._status:
            return self._stream.write(text)
        written = self._stream.write(f"{_CLEAR}{text}{self._status if text.endswith(chr(10)) else ''}")
        return written

    def flush(self) -> None:
        """As the stream does."""
        self._stream.flush()

    def isatty(self) -> bool:
        """As the stream says."""
        return self._stream.isatty()
