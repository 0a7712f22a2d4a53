"""The present uses of a session: how many calls and streams, and how much memory they hold. Pure."""

from typing import Self

__all__ = ["Usage", "Use"]


class Usage:
    """Counts the uses of one session. The idle time of a session counts from the end of the last use.

    Only `in_use`, `begin_use`, `at_work` and their ends change `busy` (uses that have not ended), `held_bytes` (large
    request bodies of calls in flight), `open_streams` (standalone streams) and `tasks` (that end with a process of it).
    """

    # A base class, so that a session takes no second object for it.
    __slots__ = ("_was_used", "busy", "held_bytes", "open_streams", "tasks")

    def __init__(self) -> None:
        self.busy = 0
        self.held_bytes = 0
        self.open_streams = 0
        self.tasks = 0
        self._was_used = False  # since `take_use`

    def in_use(self, *, held: int = 0, is_stream: bool = False) -> "Use":
        """Count one more use, until it is released.

        `held`: bytes of a request body that stay in memory for as long. `is_stream`: the use is a standalone stream.
        """
        self.busy += 1
        self.held_bytes += held
        self.open_streams += is_stream
        return Use(self, held, is_stream)

    def begin_use(self) -> None:
        """Do as `in_use`, for a use that `end_use` ends once, and that holds nothing."""
        self.busy += 1

    def end_use(self) -> None:
        """End a use that `begin_use` has begun."""
        self.busy -= 1
        self._was_used = True

    def at_work(self) -> "Use":
        """Do as `in_use`, for a task that ends with a process of this session."""
        self.busy += 1
        self.tasks += 1
        return _Work(self, 0, False)

    @property
    def is_busy(self) -> bool:
        """True if a use is under way."""
        return self.busy > 0

    def take_use(self) -> bool:
        """Return True if the session is in use, or was since this was last asked: the store has to restart its idle
        time."""
        was_used, self._was_used = self._was_used or self.is_busy, False
        return was_used

    def keep_use(self) -> None:
        """Undo `take_use`: the store could not restart the idle time."""
        self._was_used = True


class Use:
    """One use of a session, from its beginning until `release`; also a context manager."""

    __slots__ = ("_held", "_is_stream", "_usage")

    def __init__(self, usage: Usage, held: int, is_stream: bool) -> None:
        self._usage: Usage | None = usage
        self._held = held
        self._is_stream = is_stream

    def release(self) -> None:
        """End the use. Idempotent."""
        usage, self._usage = self._usage, None
        if usage is not None:
            usage.busy -= 1
            usage.held_bytes -= self._held
            usage.open_streams -= self._is_stream
            usage._was_used = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Work(Use):
    """The use by one task."""

    __slots__ = ()

    def release(self) -> None:
        if self._usage is not None:
            self._usage.tasks -= 1
        super().release()
