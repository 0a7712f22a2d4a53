"""The contract of an `EventLog`."""

import asyncio

import pytest

from session_store.ports.errors import UnknownEvent
from session_store.ports.events import EventLog

__all__ = ["EventLogContract"]


@pytest.mark.anyio
class EventLogContract:
    """What any `EventLog` does."""

    @pytest.fixture
    def log(self) -> EventLog:
        """A log of at most 16 events and 1,000 bytes per session."""
        raise NotImplementedError

    @staticmethod
    async def _read(log: EventLog, session: str, stream: str, after: str | None) -> list[bytes]:
        async with asyncio.timeout(5):
            return [event.frame async for event in log.follow(session, stream, after)]

    async def test_follows_a_stream_from_an_event_to_its_end(self, log: EventLog) -> None:
        ids = [await log.append("s", "one", frame) for frame in (b"a", b"b", b"c")]
        await log.append("s", "two", b"other")
        assert await log.unfinished("s") == ["one", "two"]
        await log.finish("s", "one")
        assert await log.unfinished("s") == ["two"] and await log.unfinished("other") == []
        assert await log.stream_of("s", ids[0]) == "one"
        assert [event.frame for event in await log.kept("s", "one", ids[0])] == [b"b", b"c"]
        assert await self._read(log, "s", "one", ids[0]) == [b"b", b"c"]

    async def test_a_follower_hears_what_comes_later(self, log: EventLog) -> None:
        first = await log.append("s", "one", b"a")
        reading = asyncio.create_task(self._read(log, "s", "one", first))
        for frame in (b"b", b"c"):
            await asyncio.sleep(0)
            await log.append("s", "one", frame)
        await log.finish("s", "one")
        assert await reading == [b"b", b"c"]

    async def test_another_sessions_event_is_unknown(self, log: EventLog) -> None:
        event = await log.append("mine", "one", b"a")
        await log.append("yours", "one", b"b")
        for session in ("yours", "nobody"):
            with pytest.raises(UnknownEvent):
                await log.stream_of(session, event)

    @pytest.mark.parametrize("event", ["", "1", "-1", "zz-1", "x" * 5_000, "1-\u0661"])
    async def test_nonsense_is_unknown(self, log: EventLog, event: str) -> None:
        await log.append("s", "one", b"a")
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", event)

    async def test_the_oldest_events_go_first(self, log: EventLog) -> None:
        ids = [await log.append("s", "one", b"%d" % n) for n in range(20)]
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", ids[0])
        await log.finish("s", "one")
        assert await self._read(log, "s", "one", ids[4]) == [b"%d" % n for n in range(5, 20)]
        big = await log.append("s", "two", b"x" * 995)
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", ids[15])
        assert await log.stream_of("s", big) == "two"

    async def test_who_names_no_event_gets_what_nobody_was_given(self, log: EventLog) -> None:
        await log.append("s", "one", b"a")
        given = await log.append("s", "one", b"b")
        await log.delivered("s", "one", given)
        await log.append("s", "one", b"c")
        await log.finish("s", "one")
        assert await self._read(log, "s", "one", None) == [b"c"]

    async def test_dropping_ends_followers_and_forgets(self, log: EventLog) -> None:
        event = await log.append("s", "one", b"a")
        reading = asyncio.create_task(self._read(log, "s", "one", event))
        await asyncio.sleep(0)
        await log.drop("s")
        assert await reading == []
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", event)
