"""Count the present uses of a session: its calls and streams, and the memory that they hold. Pure."""

from typing import Self


class Usage:
    """Counts the uses of one session. The idle time of a session counts from the end of its last use.

    Only `in_use`, `begin_use` and their ends change `busy` (uses that have not ended), `held_bytes` (large request
    bodies of calls in flight), `open_streams` (standalone streams) and `movable` (uses that another replica continues).
    """

    # A base class, so that a session needs no second object for it.
    __slots__ = ("_was_used", "busy", "held_bytes", "movable", "open_streams")

    def __init__(self) -> None:
        self.busy = 0
        self.held_bytes = 0
        self.open_streams = 0
        self.movable = 0
        self._was_used = False  # since `take_use`

    def in_use(self, *, held: int = 0, is_stream: bool = False, is_movable: bool = False) -> "Use":
        """Count one more use, until it is released.

        `held`: bytes of a request body that stay in memory as long as the use. `is_stream`: the use is a standalone
        stream. `is_movable`: the use goes on at another replica that takes the session over; a stream always does.
        """
        is_movable |= is_stream
        self.busy += 1
        self.held_bytes += held
        self.open_streams += is_stream
        self.movable += is_movable
        return Use(self, held, is_stream, is_movable)

    def begin_use(self) -> None:
        """Count one more use, which holds no memory. It ends with one `end_use`."""
        self.busy += 1

    def end_use(self) -> None:
        """End a use that `begin_use` has begun."""
        self.busy -= 1
        self._was_used = True

    @property
    def is_busy(self) -> bool:
        """Return True if a use is under way."""
        return self.busy > 0

    @property
    def is_movable(self) -> bool:
        """Return True if every use under way can go on at another replica."""
        return self.busy == self.movable

    def take_use(self) -> bool:
        """Return True if the session is in use, or was since the last call of this method. Then the store has to
        restart the session's idle time."""
        was_used, self._was_used = self._was_used or self.is_busy, False
        return was_used

    def keep_use(self) -> None:
        """Undo `take_use`: the store could not restart the idle time."""
        self._was_used = True


class Use:
    """One use of a session, from its beginning until `release`. It is also a context manager."""

    __slots__ = ("_held", "_is_movable", "_is_stream", "_usage")

    def __init__(self, usage: Usage, held: int, is_stream: bool, is_movable: bool) -> None:
        self._usage: Usage | None = usage
        self._held = held
        self._is_stream = is_stream
        self._is_movable = is_movable

    def release(self) -> None:
        """Stop counting this use of the session. Idempotent."""
        usage, self._usage = self._usage, None
        if usage is not None:
            usage.busy -= 1
            usage.held_bytes -= self._held
            usage.open_streams -= self._is_stream
            usage.movable -= self._is_movable
            usage._was_used = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
