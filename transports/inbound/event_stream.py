"""Send event-stream responses: begin them, keep them alive, and end them if the client does not read."""

import asyncio
import math
from collections.abc import Callable, MutableMapping, Sequence
from time import monotonic
from typing import Any, Final

from transports.inbound.http_requests_and_responses import Receive, Send, until_disconnect
from transports.inbound_port import Answer, EventSource, HeaderList
from transports.reply_queue import Frame
from transports.sse import COMMENT, encode_event

KEEPALIVE_S: Final = 15.0
"""Seconds between comments on a quiet stream: proxies close idle connections, often after 60 s, clients after 300 s."""

RETRY_MS: Final = 500
"""Milliseconds that a client waits before it resumes a stream that was closed before its end."""

MOST_TOGETHER_BYTES: Final = 64 << 10
"""Waiting events are joined into one write until they have this many bytes. Copying larger ones would cost more than it
saves."""

_PRIMING: Final = Frame(b"")
"""The first event of a stream that can be resumed: it has an id and no message."""

_SOON_S: Final = 1.0
_WRITE_TIMEOUT_S: Final = 60.0
"""Seconds that a client may take to read one event before it counts as gone."""

_HEADERS: Final[HeaderList] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Stream:
    """Write an event stream to one client. `gone` is True once nothing more can be written to the client."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.gone = False

    async def start(self, headers: HeaderList) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": stream_headers(headers)})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        if self.gone:
            return
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except (TimeoutError, OSError):
            self.gone = True

    async def end(self) -> None:
        """Complete the response. Further writes do nothing."""
        await self.write(b"", more=False)
        self.gone = True


def stream_headers(headers: HeaderList) -> HeaderList:
    """Return the headers of an event-stream response. `headers` are those of the answer."""
    return _HEADERS + [(name, value) for name, value in headers if name != b"cache-control"]


async def next_or_quiet(answer: Answer, until: float) -> Frame | TimeoutError | None:
    """Wait for the next frame and return it; None at the end. If no frame came for `KEEPALIVE_S` or before `until`
    (monotonic clock), return a `TimeoutError` without raising it."""
    try:
        return await answer.replies.next(min(monotonic() + KEEPALIVE_S, until))
    except TimeoutError as quiet:
        return quiet


async def stream_answer(
    send: Send,
    answer: Answer,
    first: Frame | TimeoutError,
    *,
    can_resume: bool,
    poll_after_s: float,
) -> bool:
    """Send `first` and the rest of an answer as an event stream. Return True if the last frame is a result; False if it
    is an error, or never came.

    If the client `can_resume` the stream, the stream starts with an event from which the client can resume (MCP
    2025-11-25, Transports §Sending Messages; SEP-1699). `poll_after_s` seconds after this event, the stream is closed,
    and the client polls for the rest; 0: the stream stays open.

    Frames are recorded for replay before they are written, even if the client is gone: in the era with replay, a lost
    connection does not cancel the call (MCP 2025-11-25, Transports §Resumability).
    """
    stream = Stream(send)
    await stream.start(answer.headers)
    begins, closes_at = can_resume, math.inf
    frame: Frame | TimeoutError | None = first
    while frame is not None:
        frames = [] if isinstance(frame, TimeoutError) else await _with_those_behind(frame, answer)
        recorded = [_PRIMING, *frames] if begins else frames
        ids = await answer.record(recorded) if recorded else ()
        if frames and answer.is_doubtful:  # the store may have taken long to give out ids
            last = await answer.confirmed(frames[-1])
            if last is not frames[-1]:
                frames = recorded = [last]
                ids = (None,)
        events = encode_events(recorded, ids)
        if begins and ids[0] is not None:
            closes_at = monotonic() + (poll_after_s or math.inf)
        begins = False
        if frames and frames[-1].final:
            await stream.write(events, more=False)
            return frames[-1].error_code is None
        await stream.write(events if frames else events + COMMENT)
        frame = await next_or_quiet(answer, closes_at)
        if monotonic() >= closes_at and not stream.gone:
            await stream.end()
            closes_at = math.inf
    await stream.end()
    return False


async def _with_those_behind(frame: Frame, answer: Answer) -> list[Frame]:
    """Return `frame` and those behind it that wait in the queue of the answer, to be written together: at most until
    they have more than `MOST_TOGETHER_BYTES`."""
    frames: list[Frame] = []
    size, following = 0, frame
    while True:
        if answer.is_doubtful:
            following = await answer.confirmed(following)
        frames.append(following)
        size += len(following.data)
        if following.final or size > MOST_TOGETHER_BYTES or (further := answer.replies.take()) is None:
            return frames
        following = further


def whole_stream(
    frames: Sequence[Frame],
    can_resume: bool,
    record: Callable[[Sequence[Frame]], Sequence[str | None] | None],
) -> bytes | None:
    """Store all frames of an answer for replay, and return the encoded events that `stream_answer` would send for them.
    If the client `can_resume`, the first event is one from which it can resume. `record` is `Answer.record_at_hand`.
    Return None, and store nothing, if the frames are too large together, or if storing would need waiting."""
    if sum(len(frame.data) for frame in frames) > MOST_TOGETHER_BYTES:
        return None
    recorded = [_PRIMING, *frames] if can_resume else frames
    ids = record(recorded)
    return None if ids is None else encode_events(recorded, ids)


def encode_events(frames: Sequence[Frame], ids: Sequence[str | None]) -> bytes:
    """Encode recorded frames as events, with the event id of each (None: without). Leave out a priming event without an
    id, because a client could not resume from it."""
    events = []
    for frame, event_id in zip(frames, ids, strict=True):
        if frame is not _PRIMING:
            events.append(encode_event(frame.data, event_id))
        elif event_id is not None:
            events.append(encode_event(b"", event_id, RETRY_MS))
    return b"".join(events)


async def follow(send: Send, receive: Receive, source: EventSource) -> None:
    """Send the events of a legacy client's GET stream, until the stream ends or the client disconnects."""
    stream = Stream(send)
    await stream.start(source.headers)
    # A first comment makes proxies send the head on. The second follows soon: it shows whether they send on the body.
    await stream.write(COMMENT)
    quiet_s = _SOON_S
    # Bare tasks, ended below: a timeout on `anext` itself would cancel the generator with it.
    disconnected = asyncio.create_task(until_disconnect(receive))
    events = aiter(source.events)
    coming = asyncio.ensure_future(anext(events, None))
    try:
        while not stream.gone:
            await asyncio.wait((coming, disconnected), timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
            quiet_s = KEEPALIVE_S
            if disconnected.done():
                return
            if not coming.done():
                await stream.write(COMMENT)
                continue
            event = coming.result()
            if event is None:
                await stream.write(b"", more=False)
                return
            event_id, frame = event
            await stream.write(encode_event(frame, event_id))
            if not stream.gone:
                await source.delivered(event_id)
            coming = asyncio.ensure_future(anext(events, None))
    finally:
        disconnected.cancel()
        coming.cancel()
        await asyncio.gather(disconnected, coming, return_exceptions=True)


def continued(send: Send) -> Send:
    """Return an ASGI `send` for a response whose event stream has already begun: it sends a JSON answer as one
    event."""
    is_stream = False
    parts: list[bytes] = []

    async def sending(event: MutableMapping[str, Any]) -> None:
        nonlocal is_stream
        if event["type"] == "http.response.start":
            is_stream = any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in event["headers"])
        elif is_stream:
            await send(event)
        else:
            parts.append(event.get("body", b""))
            if not event.get("more_body"):
                await send({"type": "http.response.body", "body": encode_event(b"".join(parts)), "more_body": False})

    return sending
