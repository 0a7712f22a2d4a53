"""Deliver the messages of a call, or of an event stream, to the transport that sends them to the client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from gateway.calls.event_log import EventWriter, LoggedFrame
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.session_event_streams import STANDALONE, event_name, event_names, id_in_log, stream_of_call
from gateway.cluster.ownership import Cluster
from gateway.errors import OUTCOME_UNKNOWN, error_of
from session_store import EventStreams, Session, StoreUnavailable
from session_store.ports.events import MAX_LOG_BYTES
from transports.inbound_port import HeaderList
from transports.jsonrpc import encode, encode_error
from transports.reply_queue import Frame


class CallReply:
    """Pass the messages (frames) of one call to the transport that sends them to the client. The call's session counts
    as in use until the transport calls `done`.

    `events` stores frames for replay; None for a transport without replay. `body_bytes` of the request's body count as
    in flight until `done`. `kept` encodes the request, which is stored with the first event if more events follow, so
    that another process can repeat it. `kept` is None if the call must not be repeated."""

    __slots__ = (
        *("_cluster", "_events", "_exchange", "_is_recorded", "_kept", "_stream", "_use"),
        *("headers", "live", "replies"),
    )

    def __init__(
        self,
        exchange: Exchange,
        live: LiveSession | None,
        headers: HeaderList,
        *,
        events: EventWriter | None,
        cluster: Cluster | None = None,
        body_bytes: int = 0,
        kept: Callable[[], bytes] | None = None,
    ) -> None:
        self.headers = headers
        self.replies = exchange.replies
        self._exchange = exchange
        self._events = events
        self._stream = ""
        self._is_recorded = False
        self._kept = kept
        self._cluster = cluster
        self.live = live  # that of the request: the call may move to a child session
        self._use = None if live is None else live.open_use(body_bytes=body_bytes)
        if live is not None:
            live.exchange_begins(exchange)

    def cancel(self, reason: str) -> None:
        self.replies.abandon()
        if self.replies is not self._exchange.replies:
            self.replies.close()
            return  # this request was answered with a question, and the call waits for the client
        self._exchange.cancel(reason)

    @property
    def is_doubtful(self) -> bool:
        cluster, live = self._cluster, self._exchange.live
        return cluster is not None and live is not None and cluster.may_have_lost(live.session.id)

    async def confirmed(self, frame: Frame) -> Frame:
        cluster, live = self._cluster, self._exchange.live
        if cluster is None or live is None:
            return frame
        why = "Another gateway has taken this session over"
        try:
            if await cluster.still_owns(live.session):
                return frame
        except StoreUnavailable:
            # The others may have agreed meanwhile to claim no session of this replica. A loss that it learned of while
            # it waited has ended the live session, even if it has claimed the session again since then.
            if await cluster.trusts_soon(live.session.id) and not live.ended:
                return frame
            why = "The session store does not answer, and another gateway may have taken this session over"
        reason = f"{why}; whether the call took effect is unknown"
        return Frame(self._unknown(reason), final=True, error_code=OUTCOME_UNKNOWN)

    def _unknown(self, reason: str) -> bytes:
        error = error_of(OUTCOME_UNKNOWN, reason, self._exchange.correlation)
        return encode_error(encode(self._exchange.client_id), error)

    async def record(self, frames: Sequence[Frame]) -> Sequence[str | None]:
        live, events = self.live, self._events
        if events is None or live is None or live.ended:
            return (None,) * len(frames)
        await events.make_ready(live.session.id, len(frames))
        return self._recorded(live, events, frames)

    def record_at_hand(self, frames: Sequence[Frame]) -> Sequence[str | None] | None:
        live, events = self.live, self._events
        if events is None or live is None or live.ended:
            return (None,) * len(frames)
        return self._recorded(live, events, frames) if events.is_ready(live.session.id, len(frames)) else None

    def _recorded(self, live: LiveSession, events: EventWriter, frames: Sequence[Frame]) -> Sequence[str | None]:
        """Store frames for replay, and return their event ids. The id is None for a frame that cannot be replayed."""
        request = b""
        if not self._stream:
            # Keep the name: the exchange gets another number after each question of a modern server.
            exchange = self._exchange
            upstream = "" if exchange.conversation is None else exchange.conversation.name
            self._stream = stream_of_call(live.session, exchange.number, upstream, exchange.client_id)
            if self._kept is not None and not frames[-1].final:
                request = self._kept()
            self._kept = None
        kept: list[LoggedFrame] = [(self._recordable(frame), frame.final) for frame in frames]
        ids = events.record_now(live.session.id, self._stream, kept, request)
        self._is_recorded = frames[-1].final and ids[-1] is not None
        return event_names(ids, self._stream)

    def go_on(self, stream: str) -> None:
        """From now on, store frames in the stream `stream`, which an earlier process has left unfinished."""
        self._stream = stream

    def _recordable(self, frame: Frame) -> bytes | None:
        """Return the bytes to store for replay in place of a frame. This is the frame itself, unless it is larger than
        a session's log. For a larger answer, return an error; for any other larger frame, None (nothing is stored)."""
        if len(frame.data) <= MAX_LOG_BYTES:
            return frame.data
        if not frame.final:
            return None
        reason = (
            f"The call was done, but its result of {len(frame.data)} bytes is larger than a replay can be "
            f"({MAX_LOG_BYTES} bytes). Make the call again if that does no harm."
        )
        return self._unknown(reason)

    def done(self) -> None:
        self.release()
        live = self.live
        if self._stream and not self._is_recorded and self._events is not None and live is not None and not live.ended:
            self._events.end(live.session.id, self._stream)

    def release(self) -> None:
        """End the exchange, and count the session as no longer in use by it. Call this for a reply that has sent no
        frame; for any other reply, call `done`."""
        live = self.live
        if live is None or self._use is None:
            if self._exchange.watchers:
                self._exchange.left()
            return
        self._use.release()
        if self.replies is self._exchange.replies:
            if self._exchange.watchers:
                self._exchange.left()
            self._exchange.done()
        live.exchange_ended(self._exchange)


def record_whole(
    events: EventWriter | None, session: Session, number: int, server: str, client_id: bytes, frames: Sequence[Frame]
) -> Sequence[str | None] | None:
    """Store all frames of a call for replay, and return their event ids. Return None if that would need waiting. An id
    is None if its frame cannot be replayed. `number` is the request id at the server, and `client_id` the client's own
    request id as JSON. The session must be alive, and no frame may be larger than a session's log."""
    if events is None:
        return (None,) * len(frames)
    stream = stream_of_call(session, number, server, msgspec.json.decode(client_id))
    ids = events.record_at_hand(session.id, stream, [(frame.data, frame.final) for frame in frames])
    if ids is None:
        return None
    if ids[-1] is None:
        events.end(session.id, stream)
    return event_names(ids, stream)


class StreamReply:
    """Answer a legacy client's GET with the events of a stream: those of the session's standalone stream, or the
    remaining events of a call's broken stream."""

    def __init__(self, live: LiveSession, stream: str, after: str | None, *, events: EventStreams) -> None:
        self.headers: HeaderList = []
        self._live = live
        self._stream = stream
        self._after = after
        self._events = events
        self._use = live.open_use(is_stream=self.is_standalone)
        self._end = None if self.is_standalone else live.followers.join(stream)

    @property
    def is_standalone(self) -> bool:
        return self._stream == STANDALONE

    @property
    def events(self) -> AsyncIterator[tuple[str, bytes]]:
        return self._follow()

    async def _follow(self) -> AsyncIterator[tuple[str, bytes]]:
        events = self._events.follow(self._live.session.id, self._stream, self._after)
        leaving = asyncio.create_task(self._live.draining.wait())
        ends = (leaving,) if self._end is None else (leaving, self._end)
        try:
            while True:
                coming = asyncio.ensure_future(anext(events, None))
                try:
                    await asyncio.wait((coming, *ends), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not coming.done():
                        coming.cancel()
                        await asyncio.gather(coming, return_exceptions=True)
                if coming.cancelled() or (event := coming.result()) is None:
                    return
                if event.frame:  # an empty event only says that a process has continued the stream
                    yield event_name(event.id, self._stream), event.frame
        except StoreUnavailable:
            return  # the stream ends without its store, and the client can resume it later
        finally:
            leaving.cancel()
            await events.aclose()

    async def delivered(self, event_id: str) -> None:
        if self.is_standalone and not self._live.ended:
            with contextlib.suppress(StoreUnavailable):
                await self._events.delivered(self._live.session.id, self._stream, id_in_log(event_id))

    async def done(self) -> None:
        self._use.release()
        if self._end is not None:
            self._live.followers.leave(self._stream, self._end)
