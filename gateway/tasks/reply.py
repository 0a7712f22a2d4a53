"""The reply to a call that can become a task: the answer of the call, or the handle of the task."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from gateway.calls.lifecycles import step
from gateway.tasks.exchange import TaskExchange, fail_unsent
from transports.inbound_port import Answer
from transports.reply_queue import Frame
from transports.soon import arrived

__all__ = ["REPLY", "ReplyEvent", "ReplyState", "TaskableReply"]

Headers = list[tuple[bytes, bytes]]


class ReplyState(StrEnum):
    """What the client of a call that can become a task gets."""

    SENDING = "sending"
    """Nothing yet: the call is on its way to its server."""
    ACCEPTED = "accepted"
    """The reply of the call, once there is one. A slow call may still become a task."""
    TASK = "task"
    """The handle of the task."""
    REFUSED = "refused"
    """An error: the call was not sent."""


class ReplyEvent(StrEnum):
    """What happens to such a call."""

    ACCEPT = "accept"
    """It was sent. Its reply is the client's, or its task's."""
    REFUSE = "refuse"
    """It could not be sent. The error is the client's, or its task's."""
    MAKE_TASK = "make task"


_S, _E = ReplyState, ReplyEvent

REPLY: Final[Mapping[ReplyState, Mapping[ReplyEvent, ReplyState]]] = {
    _S.SENDING: {_E.ACCEPT: _S.ACCEPTED, _E.REFUSE: _S.REFUSED, _E.MAKE_TASK: _S.TASK},
    _S.ACCEPTED: {_E.MAKE_TASK: _S.TASK},
    _S.TASK: {_E.ACCEPT: _S.TASK, _E.REFUSE: _S.TASK},
    _S.REFUSED: {},
}


class TaskableReply:
    """Stands between the wire and the reply of the call (`transports.inbound_port.Answer`).

    `answered` is set once the client can be answered: the call was accepted or refused, or is a task. Whoever runs
    the task gets the reply of the call, and has to end it.
    """

    def __init__(self, exchange: TaskExchange, headers: Headers) -> None:
        self.headers = headers
        self.replies = exchange.replies
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._exchange = exchange
        self._state = ReplyState.SENDING
        self._inner: Answer | None = None
        self._hold: Callable[[Answer], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_done = False

    @property
    def is_task(self) -> bool:
        """Whether the client was answered with a task."""
        return self._state is ReplyState.TASK

    @property
    def is_gone(self) -> bool:
        """Whether the client has left, or has its answer, or gets an error."""
        return self._is_done or self._state is ReplyState.REFUSED or self.replies.abandoned or self.replies.is_closed

    def begin_after(self, seconds: float, begin: Callable[[], None]) -> None:
        """Call `begin` after that time, if the wire is not done by then."""

        def due() -> None:
            self._timer = None  # it would keep what `begin` refers to in a circle
            begin()

        self._timer = asyncio.get_running_loop().call_later(seconds, due)

    def accepted(self, inner: Answer) -> None:
        """The call has this reply."""
        self._step(ReplyEvent.ACCEPT)
        self._inner = inner
        if self._hold is not None:
            self._hold(inner)
        self._answer()

    def refused(self, error: BaseException) -> None:
        """The call was not sent. The client gets the error, or its task does."""
        self._step(ReplyEvent.REFUSE)
        if self.is_task:
            fail_unsent(self._exchange, error)
        elif not self.answered.done():
            self.answered.set_exception(error)

    def became_task(self, hold: Callable[[Answer], None]) -> None:
        """The client gets a handle. `hold` gets the reply of the call."""
        self._step(ReplyEvent.MAKE_TASK)
        self._hold = hold
        if self._inner is not None:
            hold(self._inner)
        self._answer()

    def _step(self, event: ReplyEvent) -> None:
        self._state = step(REPLY, self._state, event)

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

    def record(self, frames: Sequence[Frame]) -> Sequence[None]:
        return (None,) * len(frames)

    async def done(self) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        if self._inner is not None and not self.is_task:
            await arrived(self._inner.done())
