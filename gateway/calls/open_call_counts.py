"""Count the open calls and streams of a session, and the memory of their requests. Pure."""

from typing import Self


class Usage:
    """Counts the uses (open calls and streams) of one session. Its idle time starts when the last use ends. Only
    `open_use`, `begin_use` and their ends change the counts."""

    # A base class, so that a session needs no second object for it.
    __slots__ = ("_was_used", "body_bytes", "busy", "movable", "open_streams")

    def __init__(self) -> None:
        self.busy = 0
        """The number of uses."""
        self.body_bytes = 0
        """The bytes of the large request bodies in use."""
        self.open_streams = 0
        """The number of open standalone streams."""
        self.movable = 0
        """The number of uses that another replica can continue."""
        self._was_used = False  # since `take_use`

    def open_use(self, *, body_bytes: int = 0, is_stream: bool = False, is_movable: bool = False) -> "Use":
        """Begin a use of the session (a call or a stream), and return it. The caller must release it. `body_bytes` of a
        request body stay in memory until then. `is_stream`: the use is a standalone stream.
        `is_movable`: another replica that takes the session over can continue the use, which is true of any stream."""
        is_movable |= is_stream
        self.busy += 1
        self.body_bytes += body_bytes
        self.open_streams += is_stream
        self.movable += is_movable
        return Use(self, body_bytes, is_stream, is_movable)

    def begin_use(self) -> None:
        """Begin a use of the session that holds no memory. The caller must call `end_use` once."""
        self.busy += 1

    def end_use(self) -> None:
        """End a use that `begin_use` has begun."""
        self.busy -= 1
        self._was_used = True

    @property
    def is_busy(self) -> bool:
        """Return True if the session has an open call or stream."""
        return self.busy > 0

    @property
    def is_movable(self) -> bool:
        """Return True if another replica can continue all open calls and streams."""
        return self.busy == self.movable

    def take_use(self) -> bool:
        """Return True if the session is in use, or was since the last call of this method. The caller then restarts the
        idle time in the store."""
        was_used, self._was_used = self._was_used or self.is_busy, False
        return was_used

    def keep_use(self) -> None:
        """Undo `take_use`, because the store could not restart the idle time."""
        self._was_used = True


class Use:
    """One use of a session: a call or a stream, until `release`. Also a context manager."""

    __slots__ = ("_body_bytes", "_is_movable", "_is_stream", "_usage")

    def __init__(self, usage: Usage, body_bytes: int, is_stream: bool, is_movable: bool) -> None:
        self._usage: Usage | None = usage
        self._body_bytes = body_bytes
        self._is_stream = is_stream
        self._is_movable = is_movable

    def release(self) -> None:
        """Stop counting this use of the session. Idempotent."""
        usage, self._usage = self._usage, None
        if usage is not None:
            usage.busy -= 1
            usage.body_bytes -= self._body_bytes
            usage.open_streams -= self._is_stream
            usage.movable -= self._is_movable
            usage._was_used = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
