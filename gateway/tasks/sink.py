"""Takes the frames of a call whose client was answered with a task."""

from collections.abc import Callable

from transports.reply_queue import Frame, ReplyQueue

__all__ = ["TaskSink"]


class TaskSink(ReplyQueue):
    """Hands each frame to `receive` at once: nothing waits for a reader, because there is none."""

    __slots__ = ("_receive",)

    def __init__(self, receive: Callable[[Frame], None]) -> None:
        super().__init__()
        self._receive = receive

    def detach(self) -> None:
        """Take no more frames, and forget who received them."""
        self.close()
        self._receive = _nobody

    def push(self, frame: Frame) -> bool:
        if self.is_closed:
            return False
        if frame.final:
            self.close()
        self._receive(frame)
        return True


def _nobody(_: Frame) -> None:
    """Receives nothing: the sink is closed."""
