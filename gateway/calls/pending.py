"""Requests the gateway makes of a server itself: what waits for their answers."""

import asyncio

from transports.jsonrpc import Message

__all__ = ["PendingRequests"]


class PendingRequests:
    """By their numbers."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def expect(self, number: int) -> asyncio.Future[Message]:
        """The answer to come."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        return answer

    def settle(self, message: Message) -> bool:
        """An answer came; whether it was to one of these."""
        answer = self._waiting.get(message.id) if isinstance(message.id, int) else None
        if answer is None:
            return False
        if not answer.done():
            answer.set_result(message)
        return True

    def fail(self, number: object, error: Exception) -> None:
        """No answer will come to that request; None: to none of them."""
        for waiting, answer in list(self._waiting.items()):
            if number in (None, waiting) and not answer.done():
                answer.set_exception(error)
