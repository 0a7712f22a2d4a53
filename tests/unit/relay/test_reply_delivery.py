"""GET requests that follow the streams of calls: one for each stream, and a limited number in a session."""

import asyncio

from gateway.calls.live_session import LiveSession
from gateway.calls.session_event_streams import MOST_FOLLOWED, STANDALONE
from gateway.relay.reply_delivery import StreamReply
from session_store import MemoryEventLog
from tests.requirements import requirement
from tests.support.fake_upstream import a_live

pytestmark = requirement("spec.one-follower")


class Follower:
    """A client that reads a stream."""

    def __init__(self, live: LiveSession, log: MemoryEventLog, stream: str) -> None:
        self.reply = StreamReply(live, stream, None, events=log)
        self.frames: list[bytes] = []
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for _, frame in self.reply.events:
            self.frames.append(frame)
        await self.reply.done()

    async def ended(self) -> None:
        await asyncio.wait_for(self.reading, 60)


async def begun(log: MemoryEventLog, *streams: str) -> tuple[LiveSession, list[Follower]]:
    live = a_live(log)
    for stream in streams:
        await log.append(live.session.id, stream, b"first")
    followers = [Follower(live, log, stream) for stream in streams]
    async with asyncio.timeout(60):
        while not all(each.frames for each in followers):  # noqa: ASYNC110 - each turn is looked at
            await asyncio.sleep(0)
    return live, followers


async def test_a_stream_of_a_call_is_followed_by_the_newest_request_only() -> None:
    log = MemoryEventLog()
    live, (older, other, own) = await begun(log, "1/1/s/1", "1/2/s/2", STANDALONE)
    newer = Follower(live, log, "1/1/s/1")
    await older.ended()
    newest = Follower(live, log, "1/1/s/1")
    await newer.ended()
    for each, stream in ((newest, "1/1/s/1"), (other, "1/2/s/2")):
        await log.append(live.session.id, stream, b"second")
        await log.finish(live.session.id, stream)
        await each.ended()
        assert each.frames == [b"first", b"second"]
    assert older.frames == [b"first"] and not own.reading.done()
    live.drain()
    await own.ended()
    assert not live.busy


async def test_of_too_many_streams_the_one_that_is_followed_longest_ends_for_now() -> None:
    log = MemoryEventLog()
    streams = [f"1/{number}/s/{number}" for number in range(MOST_FOLLOWED)]
    live, followers = await begun(log, *streams)
    more = Follower(live, log, "1/99/s/99")
    await followers[0].ended()
    again = Follower(live, log, streams[0])
    await followers[1].ended()
    assert not any(each.reading.done() for each in (*followers[2:], more, again))
    live.drain()
    for each in (*followers[2:], more, again):
        await each.ended()
    assert not live.busy
