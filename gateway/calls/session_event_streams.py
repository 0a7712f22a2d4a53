"""Name a session's event streams and their events, write to its standalone stream, and end streams that a dead process
has left unfinished."""

import asyncio
import base64
import binascii
import secrets
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.errors import OUTCOME_UNKNOWN, error_of
from session_store import EventStreams, Session, StoreUnavailable
from transports.background_tasks import Tasks
from transports.jsonrpc import Object, RequestId, decode_id, encode, encode_error
from transports.reply_queue import MAX_QUEUED_BYTES

MAX_MESSAGES: Final = 256
"""Maximum number of messages for the standalone stream that wait for the store."""

KEPT_BYTES: Final = 64 << 10
"""Maximum size of a request that is stored so that its call can be repeated."""

UNKNOWN: Final = "The gateway that served this session ended without an answer; whether the call took effect is unknown"

MOST_FOLLOWED: Final = 32
"""Maximum number of streams of calls that the client of one session follows with GET at the same time."""

_RETRY_S: Final = 0.5
"""Seconds between a failure of the store and the next attempt."""

_MOST_NAMED_BYTES: Final = 256
"""Maximum bytes of a call's request id, as JSON, that is made part of the ids of its events."""

STANDALONE: Final = "standalone"
"""The name of the stream that belongs to no call. A legacy client reads it with GET."""


def stream_of_call(session: Session, number: int, upstream: str, client_id: RequestId) -> str:
    """Return the name of the event stream of a call. `number` is the call's request id at the server `upstream`. The
    epoch in the name makes it unique across the processes that have served the session."""
    return f"{session.epoch}/{number}/{upstream}/{encode(client_id).decode()}"


def call_of_stream(stream: str) -> bytes | None:
    """Return the client's request id (JSON) of the call that a stream belongs to; None for the standalone stream.
    `stream` is the name of the stream."""
    return None if stream == STANDALONE else stream.split("/", 3)[-1].encode()


def event_names(event_ids: Iterable[str | None], stream: str) -> list[str | None]:
    """Return the event ids that the client gets for the ids in the log: each has the client's request id of the
    stream's call added. By that, a call can be answered even if the process dies before the store has the event. None
    stays None."""
    call = call_of_stream(stream)
    if call is None or len(call) > _MOST_NAMED_BYTES:
        return list(event_ids)
    end = f".{base64.urlsafe_b64encode(call).rstrip(b'=').decode()}"
    return [None if event_id is None else event_id + end for event_id in event_ids]


def event_name(event_id: str, stream: str) -> str:
    """Return the event id that the client gets for an id in the log: it has the client's request id of the stream's
    call added."""
    (name,) = event_names([event_id], stream)
    return name or event_id


def id_in_log(name: str) -> str:
    """Return the event id in the log that is part of `name`, an event id that a client has sent."""
    return name.partition(".")[0]


def call_of_event(name: str) -> RequestId | None:
    """Return the request id that is part of `name`, an event id that a client has sent and may have forged. Return None
    if it contains no request id."""
    encoded = name.partition(".")[2]
    try:
        call = decode_id(msgspec.Raw(base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    return call if isinstance(call, int | str) else None


class Outbox:
    """Write the messages for one session's standalone stream to the stored log, in order. Retry while the store is
    unavailable. At most `MAX_MESSAGES` messages with `MAX_QUEUED_BYTES` bytes together are queued."""

    __slots__ = ("_bytes", "_events", "_is_stopped", "_session_id", "_tasks", "_waiting")

    def __init__(self, session_id: str, events: EventStreams) -> None:
        self._session_id = session_id
        self._events = events
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._is_stopped = False
        self._tasks = Tasks("standalone stream")

    def put(self, frame: bytes) -> bool:
        """Queue a message. Return False if it is dropped, because the queue is full or stopped."""
        is_full = self._waiting and self._bytes + len(frame) > MAX_QUEUED_BYTES
        if self._is_stopped or is_full or len(self._waiting) >= MAX_MESSAGES:
            return False
        self._waiting.append(frame)
        self._bytes += len(frame)
        self._tasks.start(STANDALONE, self._flush)
        return True

    async def _flush(self) -> None:
        while self._waiting and not self._is_stopped:
            try:
                await self._events.append(self._session_id, STANDALONE, self._waiting[0])
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_S)
            else:
                self._bytes -= len(self._waiting.popleft())

    def stop(self) -> None:
        """Write no more messages, and drop those in the queue."""
        self._is_stopped = True

    async def close(self) -> None:
        """Stop, and wait until the write in progress has ended. Idempotent."""
        self.stop()
        await self._tasks.close(wait_s=_RETRY_S)


class Followers:
    """The GET requests of one session's client that follow event streams of calls, one for each stream. Each event of
    the session wakes all of them, so their number is limited."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Future[None]] = {}

    def join(self, stream: str) -> asyncio.Future[None]:
        """Let a new request follow a stream. Return a future that is set when the request must end, because a newer
        request follows the stream, or too many streams are followed. The client can resume the stream later."""
        if stream in self._ends:
            self._ends.pop(stream).set_result(None)
        elif len(self._ends) >= MOST_FOLLOWED:
            self._ends.pop(next(iter(self._ends))).set_result(None)
        end = self._ends[stream] = asyncio.get_running_loop().create_future()
        return end

    def leave(self, stream: str, end: asyncio.Future[None]) -> None:
        """Forget a request that has ended. `end` is what `join` has returned for it."""
        if self._ends.get(stream) is end:
            del self._ends[stream]


class KeptCall(msgspec.Struct, frozen=True, array_like=True):
    """A `tools/call` in the store, so that another process can repeat it. A repeated call has the rights of the client
    that asks for its answer."""

    endpoint: str
    params: Object

    @classmethod
    def read(cls, data: bytes) -> "KeptCall":
        """Decode a call that `encode` has encoded. Raises `msgspec.MsgspecError`."""
        return msgspec.json.decode(data, type=cls)


class LostStreams:
    """The event streams of one session that a dead process has left unfinished, and whose requests are stored. When the
    client comes back for a stream, this process repeats the stream's call."""

    __slots__ = ("_going_on", "_looked", "_waiting", "has_failed")

    def __init__(self) -> None:
        self._waiting: set[str] = set()
        self._going_on: set[str] = set()
        self._looked = asyncio.Event()
        self.has_failed = False
        """True if the streams could not be found, because the store did not answer."""

    async def look(self, events: EventStreams, session_id: str) -> bool:
        """Find the unfinished streams. End those whose requests are not stored. Return False if no stream is left that
        could be continued. Raises `StoreUnavailable`."""
        try:
            for stream, is_kept in (await events.unfinished(session_id)).items():
                request_id = call_of_stream(stream)
                if is_kept:
                    self.mark_waiting(stream)
                elif request_id is not None:
                    await end_lost(events, session_id, stream, request_id)
        except BaseException:
            self.has_failed = True
            raise
        finally:
            self._looked.set()
        return bool(self._waiting or self._going_on)

    async def wait_until_looked(self) -> None:
        """Wait until `look` has ended. Raises `StoreUnavailable` if it has failed."""
        await self._looked.wait()
        if self.has_failed:
            raise StoreUnavailable("the streams that an earlier process has left open could not be found")

    def mark_waiting(self, stream: str) -> None:
        """Record that a stream waits for its client to come back."""
        self._going_on.discard(stream)
        self._waiting.add(stream)

    def mark_continued(self, stream: str) -> bool:
        """Record that this process now continues a stream that was waiting, and return True. Return False if the stream
        was not waiting."""
        if stream not in self._waiting:
            return False
        self._waiting.discard(stream)
        self._going_on.add(stream)
        return True

    def newest_of(self, call: RequestId) -> str | None:
        """Return the name of the newest unfinished stream of the call with the client's request id `call`; None if
        there is none."""
        own = encode(call)
        streams = (stream for stream in self._waiting | self._going_on if call_of_stream(stream) == own)
        # The later of two streams of a call has the greater epoch, or the greater number.
        return max(streams, key=lambda stream: [int(part) for part in stream.split("/", 2)[:2]], default=None)

    async def end(self, events: EventStreams, session_id: str, call: RequestId) -> None:
        """End the waiting streams of a call, because its client repeats the call with another request. Raises
        `StoreUnavailable`."""
        own = encode(call)
        for stream in [stream for stream in self._waiting if call_of_stream(stream) == own]:
            await end_lost(events, session_id, stream, own)
            self._waiting.discard(stream)


async def end_lost(
    events: EventStreams, session_id: str, stream: str, request_id: bytes, reason: str = UNKNOWN
) -> None:
    """End an unfinished stream of an earlier process with an error. `request_id` is the client's request id of the
    stream's call, as JSON. `reason` is the text of the error."""
    await events.append(session_id, stream, encode_error(request_id, error_of(OUTCOME_UNKNOWN, reason, "")))
    await events.finish(session_id, stream)


async def answer_lost(events: EventStreams, session: Session, call: RequestId) -> str:
    """Write an error for a call into a new stream, and return the name of that stream. Used if the call's process has
    died after it had sent the client an event that the store does not have. Each attempt of the client gets a new
    stream."""
    stream = stream_of_call(session, 0, secrets.token_hex(4), call)
    await end_lost(events, session.id, stream, encode(call))
    return stream
