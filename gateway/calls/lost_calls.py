"""Calls whose process died: what the store keeps of them, and the answers to those that are not made again."""

import asyncio
import secrets
from typing import Final

import msgspec

from gateway.calls.streams import age_of_stream, call_of_stream, stream_of_call
from gateway.errors import OUTCOME_UNKNOWN
from session_store import EventStreams, Session, StoreUnavailable
from transports.jsonrpc import Object, RequestId, encode, encode_error

__all__ = ["KEPT_BYTES", "UNKNOWN", "KeptCall", "LostStreams", "answer_lost", "end_lost"]

KEPT_BYTES: Final = 64 << 10
"""The largest request that the store keeps for a repetition."""

UNKNOWN: Final = "The gateway that served this session ended without an answer; whether the call took effect is unknown"


class KeptCall(msgspec.Struct, frozen=True, array_like=True):
    """A `tools/call` as the store keeps it: the endpoint, and the params that the client has sent. No rights: those of
    whoever asks for its answer decide on the repetition."""

    endpoint: str
    params: Object

    @classmethod
    def read(cls, data: bytes) -> "KeptCall":
        """The call of which `encode` has made bytes. Raises `msgspec.MsgspecError`."""
        return msgspec.json.decode(data, type=cls)


class LostStreams:
    """The streams of one session that an earlier process has left open, and whose requests are kept: their calls are
    made again once their clients come back. Each of them waits, or goes on here."""

    __slots__ = ("_going_on", "_has_failed", "_looked", "_waiting")

    def __init__(self) -> None:
        self._waiting: set[str] = set()
        self._going_on: set[str] = set()
        self._looked = asyncio.Event()
        self._has_failed = False

    async def look(self, events: EventStreams, session_id: str) -> bool:
        """Find the streams, and end those whose requests are not kept. False if no others are left open. Raises
        `StoreUnavailable`."""
        try:
            for stream, is_kept in (await events.unfinished(session_id)).items():
                request_id = call_of_stream(stream)
                if is_kept:
                    self.wait(stream)
                elif request_id is not None:
                    await end_lost(events, session_id, stream, request_id)
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._looked.set()
        return bool(self._waiting or self._going_on)

    async def looked(self) -> None:
        """Wait until all of them are found. Raises `StoreUnavailable`: they could not be."""
        await self._looked.wait()
        if self._has_failed:
            raise StoreUnavailable("the streams that an earlier process has left open could not be found")

    def wait(self, stream: str) -> None:
        """A stream waits for its client."""
        self._going_on.discard(stream)
        self._waiting.add(stream)

    def go_on(self, stream: str) -> bool:
        """A stream goes on here from now on. False if it is none that waits."""
        if stream not in self._waiting:
            return False
        self._waiting.discard(stream)
        self._going_on.add(stream)
        return True

    def newest_of(self, call: RequestId) -> str | None:
        """The last stream of a call, by the id that its client has given it."""
        own = encode(call)
        streams = (stream for stream in self._waiting | self._going_on if call_of_stream(stream) == own)
        return max(streams, key=age_of_stream, default=None)

    async def end(self, events: EventStreams, session_id: str, call: RequestId) -> None:
        """End the streams of a call that wait: another request makes it again. Raises `StoreUnavailable`."""
        own = encode(call)
        for stream in [stream for stream in self._waiting if call_of_stream(stream) == own]:
            await end_lost(events, session_id, stream, own)
            self._waiting.discard(stream)


async def end_lost(
    events: EventStreams, session_id: str, stream: str, request_id: bytes, reason: str = UNKNOWN
) -> None:
    """End a stream that an earlier process has left open. `request_id` is that of its call, as JSON."""
    error = {"code": OUTCOME_UNKNOWN, "message": reason}
    await events.append(session_id, stream, encode_error(request_id, error))
    await events.finish(session_id, stream)


async def answer_lost(events: EventStreams, session: Session, call: RequestId) -> str:
    """Answer a call of an earlier process, which has given its client an event and died before the store had it.
    Returns the name of the stream of the answer, which has nothing else: who asks again gets another stream."""
    stream = stream_of_call(session, 0, secrets.token_hex(4), call)
    await end_lost(events, session.id, stream, encode(call))
    return stream
