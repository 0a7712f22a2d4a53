"""The reply to a call that can become a task: the answer of the call, or the handle of the task."""

import asyncio
from collections.abc import Callable

from gateway.tasks.exchange import TaskExchange, fail_unsent
from transports.inbound_port import Answer
from transports.reply_queue import Frame
from transports.soon import arrived

__all__ = ["TaskableReply"]

Headers = list[tuple[bytes, bytes]]


class TaskableReply:
    """Stands between the wire and the reply of the call (`transports.inbound_port.Answer`).

    `answered` is set once the client can be answered: the call was accepted or refused, or is a task. `held` is called
    with the reply of the call if the call is a task: whoever runs the task has to end it.
    """

    def __init__(self, exchange: TaskExchange, headers: Headers) -> None:
        self.headers = headers
        self.replies = exchange.replies
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._exchange = exchange
        self._inner: Answer | None = None
        self._hold: Callable[[Answer], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_done = False

    @property
    def is_task(self) -> bool:
        """Whether the client was answered with a task."""
        return self._hold is not None

    @property
    def is_gone(self) -> bool:
        """Whether the client has left, or has its answer."""
        return self._is_done or self.replies.abandoned or self.replies.is_closed

    def begin_after(self, seconds: float, begin: Callable[[], None]) -> None:
        """Call `begin` after that time, if the wire is not done by then."""

        def due() -> None:
            self._timer = None  # it would keep what `begin` refers to in a circle
            begin()

        self._timer = asyncio.get_running_loop().call_later(seconds, due)

    def accepted(self, inner: Answer) -> None:
        """The call has this reply."""
        self._inner = inner
        if self._hold is not None:
            self._hold(inner)
        self._answer()

    def refused(self, error: BaseException) -> None:
        """The call was not sent. The client gets the error, or its task does."""
        if not self.answered.done():
            self.answered.set_exception(error)
        elif self.is_task:
            fail_unsent(self._exchange, error)

    def became_task(self, hold: Callable[[Answer], None]) -> None:
        """The client gets a handle."""
        self._hold = hold
        if self._inner is not None:
            hold(self._inner)
        self._answer()

    def _answer(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)

    # -- for the wire

    def cancel(self, reason: str) -> None:
        self.replies.abandon()
        if self.is_task:
            self.replies.close()
        elif self._inner is not None:
            self._inner.cancel(reason)
        else:
            self._exchange.cancel(reason)

    @property
    def is_doubtful(self) -> bool:
        return self._inner is not None and not self.is_task and self._inner.is_doubtful

    async def confirmed(self, frame: Frame) -> Frame:
        return frame if self._inner is None or self.is_task else await self._inner.confirmed(frame)

    async def record(self, frame: Frame) -> str | None:
        return None

    async def done(self) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        if self._inner is not None and not self.is_task:
            await arrived(self._inner.done())
