"""The gateway's own requests to a server that have no answer yet."""

import asyncio

from transports.jsonrpc import Message

__all__ = ["PendingRequests"]


class PendingRequests:
    """The pending requests of one conversation, by number."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def expect(self, number: int) -> asyncio.Future[Message]:
        """A future for the answer to request `number`."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        answer.add_done_callback(lambda _: self._settled(number))
        return answer

    def _settled(self, number: int) -> None:
        self._waiting.pop(number, None)
        if not self._waiting:
            self._waiting = {}  # one that was in use keeps its size

    def settle(self, message: Message) -> bool:
        """Set the answer to one of these requests. False if the message answers none of them."""
        answer = self._waiting.get(message.id) if isinstance(message.id, int) else None
        if answer is None:
            return False
        if not answer.done():
            answer.set_result(message)
        return True

    def fail(self, number: object, error: Exception) -> None:
        """Fail the request with that number, or all requests if `number` is None: no answer will come."""
        for waiting, answer in list(self._waiting.items()):
            if number in (None, waiting) and not answer.done():
                answer.set_exception(error)
