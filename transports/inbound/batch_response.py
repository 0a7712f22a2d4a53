"""The HTTP response to a batch: one JSON array, or an event stream.

MCP 2025-03-26, Transports §Sending Messages to the Server. An event stream begins with the first message that is no
answer, when nothing was ready for a while, or when the answers become too large to be held.
"""

import asyncio
from collections.abc import Coroutine
from typing import Final

from transports.inbound.event_stream import KEEPALIVE_S, Stream
from transports.inbound.http import Send, send_json, send_status
from transports.reply_queue import MAX_QUEUED_BYTES
from transports.sse import COMMENT, encode_event

__all__ = ["BatchResponse"]


ROOM_WITHIN_S: Final = 10.0
"""How long a large answer waits for room."""

_SMALL_BYTES: Final = 4_096
"""Answers of this size, such as refusals, are always taken: a batch has few messages."""


class BatchResponse:
    """What the messages of one batch send to the client. Its events have no ids: the stream cannot be resumed, because
    the client could name the last event of one call only."""

    MOST: Final = MAX_QUEUED_BYTES
    """Bytes of answers that may wait, for the other answers or for a client that does not read."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._stream: Stream | None = None
        self._held: dict[int, bytes] = {}  # by the number of the message
        self._waiting = 0
        self._writing = asyncio.Lock()

    async def emit(self, message: bytes) -> None:
        """Send a message that is no answer: a notification or a request of a server."""
        async with self._writing:
            stream = await self._streaming()
            await stream.write(encode_event(message))

    async def answer(self, number: int, answer: bytes) -> bool:
        """Send the answer to the message of that number, now or with the others. False if there is no room for it."""
        if self._is_full(answer) and (not await self._make_room() or self._is_full(answer)):
            return False
        self._waiting += len(answer)
        async with self._writing:
            if self._stream is None:
                self._held[number] = answer
            else:
                await self._write(self._stream, answer)
        return True

    async def _make_room(self) -> bool:
        """Wait until what waits before this is written. False if the client does not read it."""
        try:
            # Only until it can write: a write that is cut short would lose what was held.
            async with asyncio.timeout(ROOM_WITHIN_S):
                await self._writing.acquire()
        except TimeoutError:
            return False
        try:
            await self._streaming()
        finally:
            self._writing.release()
        return True

    def _is_full(self, answer: bytes) -> bool:
        return self._waiting + len(answer) > self.MOST and self._waiting > 0 and len(answer) > _SMALL_BYTES

    async def during(self, handling: Coroutine[None, None, None]) -> None:
        """Send comments while the batch is handled, and complete the response."""
        keeper = asyncio.create_task(self._keep_alive())
        try:
            await handling
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        await self.end()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(KEEPALIVE_S)
            async with self._writing:
                stream = await self._streaming()
                await stream.write(COMMENT)

    async def end(self) -> None:
        """Complete the response: every message of the batch is done."""
        async with self._writing:
            if self._stream is not None:
                await self._stream.end()
            elif self._held:
                answers = b",".join(self._held[number] for number in sorted(self._held))
                await send_json(self._send, 200, b"[" + answers + b"]")
            else:
                await send_status(self._send, 202)

    async def _streaming(self) -> Stream:
        """The event stream, begun with the answers that were held."""
        if self._stream is None:
            self._stream = Stream(self._send)
            await self._stream.start([])
            held, self._held = self._held, {}
            for answer in held.values():
                await self._write(self._stream, answer)
        return self._stream

    async def _write(self, stream: Stream, answer: bytes) -> None:
        try:
            await stream.write(encode_event(answer))
        finally:
            self._waiting -= len(answer)
