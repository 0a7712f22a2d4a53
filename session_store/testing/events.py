"""Test the contract of an `EventLog`."""

import asyncio

import pytest

from session_store.ports.errors import UnknownEvent, UnwrittenEvent
from session_store.ports.events import NUMBERS_OF_AN_EPOCH, Entry, EventLog, Reserved, id_of_event


@pytest.mark.anyio
class EventLogContract:
    """Test any `EventLog`."""

    @pytest.fixture
    def log(self) -> EventLog:
        """Return the log to test. Its limits are 16 events and 1,000 bytes for each session."""
        raise NotImplementedError

    @staticmethod
    async def _read(log: EventLog, session: str, stream: str, after: str | None) -> list[bytes]:
        async with asyncio.timeout(5):
            return [event.frame async for event in log.follow(session, stream, after)]

    async def test_follows_a_stream_from_an_event_to_its_end(self, log: EventLog) -> None:
        ids = [await log.append("s", "one", frame) for frame in (b"a", b"b", b"c")]
        await log.append("s", "two", b"other")
        assert list(await log.unfinished("s")) == ["one", "two"]
        await log.finish("s", "one")
        assert await log.unfinished("s") == {"two": False} and await log.unfinished("other") == {}
        assert await log.stream_of("s", ids[0]) == "one"
        assert [event.frame for event in await log.kept("s", "one", ids[0])] == [b"b", b"c"]
        assert await self._read(log, "s", "one", ids[0]) == [b"b", b"c"]

    async def test_who_has_the_last_event_of_a_finished_stream_waits_for_nothing(self, log: EventLog) -> None:
        last = await log.append("s", "appended", b"a")
        await log.finish("s", "appended")
        nonce, number = await _reserved(log, "s", 3)
        entries = [
            Entry(number, "two", b"other"),
            Entry(number + 1, "written", b"b", nonce=nonce),
            Entry(number + 2, "written", b"c", ends=True, nonce=nonce),
        ]
        await log.write({"s": entries})
        for stream, event in (("appended", last), ("written", id_of_event(nonce, number + 2))):
            assert await self._read(log, "s", stream, event) == []
            await log.delivered("s", stream, event)
            assert await self._read(log, "s", stream, None) == []

    async def test_a_stream_ends_for_who_names_a_number_above_its_own(self, log: EventLog) -> None:
        nonce, number = await _reserved(log, "s", 40)
        await log.write({"s": [Entry(number, "one", b"a", nonce=nonce)]})
        early = asyncio.create_task(self._read(log, "s", "one", id_of_event(nonce, number + 30)))
        await asyncio.sleep(0.05)  # whether it reads before or after the write, the result is the same
        await log.write({"s": [Entry(number + 1, "one", b"b", ends=True, nonce=nonce)]})
        assert await early == []
        assert await self._read(log, "s", "one", id_of_event(nonce, number + 30)) == []

    async def test_the_end_of_a_stream_is_no_event(self, log: EventLog) -> None:
        nonce, number = await _reserved(log, "s", 2)
        entries = [Entry(number, "one", b"a", nonce=nonce), Entry(number + 1, "one", b"", ends=True, nonce=nonce)]
        await log.write({"s": entries})
        with pytest.raises(UnwrittenEvent):
            await log.stream_of("s", id_of_event(nonce, number + 1))

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

    async def test_events_without_a_frame_are_dropped_as_others(self, log: EventLog) -> None:
        nonce, number = await _reserved(log, "s", 60)
        for n in range(40):
            assert await log.write({"s": [Entry(number + n, "one", b"", nonce=nonce)]}) == {}
        last = [await log.append("s", "one", b"") for _ in range(3)][-1]
        assert await log.stream_of("s", last) == "one"
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", id_of_event(nonce, number + 26))

    async def test_who_names_no_event_gets_what_nobody_was_given(self, log: EventLog) -> None:
        await log.append("s", "one", b"a")
        given = await log.append("s", "one", b"b")
        await log.delivered("s", "one", given)
        await log.append("s", "one", b"c")
        await log.finish("s", "one")
        assert await self._read(log, "s", "one", None) == [b"c"]

    async def test_events_of_many_sessions_are_written_together_under_reserved_numbers(self, log: EventLog) -> None:
        begun = await log.append("s", "one", b"a")
        (nonce, number), other = await _reserved(log, "s", 100), await _reserved(log, "t", 100)
        entries = [Entry(number, "one", b"b"), Entry(number + 1, "two", b""), Entry(number + 2, "one", b"c", ends=True)]
        for _ in range(2):  # the second time nothing is new
            assert await log.write({"s": entries, "t": [Entry(other.first, "one", b"other")]}) == {}, "no failures"
        assert log.part_of("s") == log.part_of("s") and hash(log.part_of("s")) == hash(log.part_of("s"))
        assert await self._read(log, "s", "one", begun) == [b"b", b"c"]
        assert await log.stream_of("s", id_of_event(nonce, number + 1)) == "two"
        assert await log.stream_of("t", id_of_event(*other)) == "one"
        assert [*await log.unfinished("s"), *await log.unfinished("t")] == ["two", "one"]
        await log.write({"s": [Entry(number + 3, "two", b"", ends=True)]})
        assert await log.unfinished("s") == {}
        after = id_of_event(nonce, number + 1)
        assert await log.kept("s", "two", after) == [] and await self._read(log, "s", "two", after) == []

    async def test_a_log_without_events_takes_a_write_that_adds_none(self, log: EventLog) -> None:
        first = (await _reserved(log, "s", 3)).first
        await log.write({"s": [], "t": [Entry((await _reserved(log, "t", 1)).first, "one", b"other")]})
        await log.write({"s": [Entry(first, "one", b"", ends=True)]})
        assert [*await log.unfinished("s"), *await log.unfinished("t")] == ["one"]

    async def test_a_follower_hears_what_is_written_later(self, log: EventLog) -> None:
        first = await log.append("s", "one", b"a")
        number = (await _reserved(log, "s", 2)).first
        reading = asyncio.create_task(self._read(log, "s", "one", first))
        await asyncio.sleep(0)
        await log.write({"s": [Entry(number, "one", b"b"), Entry(number + 1, "one", b"c", ends=True)]})
        assert await reading == [b"b", b"c"]

    async def test_what_another_process_has_written_since_stays_the_last(self, log: EventLog) -> None:
        (nonce, number), later = await _reserved(log, "s", 10), (await _reserved(log, "s", 10)).first
        await log.write({"s": [Entry(later, "one", b"its", ends=True)]})
        await log.write({"s": [Entry(number, "one", b"late")]})
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", id_of_event(nonce, number))
        assert await self._read(log, "s", "one", id_of_event(nonce, number)) == [b"its"]
        assert int((await log.append("s", "two", b"")).partition("-")[2]) > later + 9

    async def test_a_former_owner_gets_no_numbers_above_those_of_the_next(self, log: EventLog) -> None:
        former, unused = await _reserved(log, "s", 10, epoch=3), await _reserved(log, "s", 10, epoch=3)
        own = await _reserved(log, "s", 10, epoch=4)
        assert former.nonce == own.nonce and former.first < unused.first < own.first
        assert await log.reserve("s", 1, 3) is None and await log.reserve("s", 1) is None
        await log.write({"s": [Entry(own.first, "one", b"a", nonce=own.nonce)]})
        await log.write({"s": [Entry(unused.first, "one", b"late", ends=True, nonce=own.nonce)]})
        await log.write({"s": [Entry(own.first + 1, "one", b"b", ends=True, nonce=own.nonce)]})
        assert await self._read(log, "s", "one", id_of_event(*former)) == [b"a", b"b"]
        assert (await _reserved(log, "s", 1, epoch=4)).first == own.first + 10

    async def test_an_epoch_that_has_used_its_numbers_takes_none_of_the_next(self, log: EventLog) -> None:
        first = (await _reserved(log, "s", NUMBERS_OF_AN_EPOCH - 1, epoch=1)).first
        assert (await _reserved(log, "s", 1, epoch=1)).first == first + NUMBERS_OF_AN_EPOCH - 1
        assert await log.reserve("s", 1, 1) is None
        assert (await _reserved(log, "s", 1, epoch=2)).first == first + NUMBERS_OF_AN_EPOCH

    async def test_numbers_of_many_takeovers_are_exact(self, log: EventLog) -> None:
        nonce, first = await _reserved(log, "s", 2, epoch=2_000_000)
        await log.write({"s": [Entry(first, "one", b"a", nonce=nonce), Entry(first + 1, "one", b"b", nonce=nonce)]})
        assert await log.stream_of("s", id_of_event(nonce, first + 1)) == "one"
        assert await log.append("s", "one", b"c") == id_of_event(nonce, first + 2)
        assert [event.frame for event in await log.kept("s", "one", id_of_event(nonce, first))] == [b"b", b"c"]

    async def test_a_reserved_number_that_nothing_was_written_under_is_told_apart(self, log: EventLog) -> None:
        nonce, first = await _reserved(log, "s", 40)
        with pytest.raises(UnwrittenEvent):
            await log.stream_of("s", id_of_event(nonce, first))
        await log.write({"s": [Entry(first + n, "one", b"%d" % n) for n in range(20)]})
        with pytest.raises(UnwrittenEvent):
            await log.stream_of("s", id_of_event(nonce, first + 20))
        for unknown in (first, first + 40):  # dropped because it was old, and never reserved
            with pytest.raises(UnknownEvent) as caught:
                await log.stream_of("s", id_of_event(nonce, unknown))
            assert not isinstance(caught.value, UnwrittenEvent)

    async def test_the_bounds_hold_for_events_that_are_written_together(self, log: EventLog) -> None:
        nonce, first = await _reserved(log, "s", 40)
        await log.write({"s": [Entry(first + n, "one", b"%02d" % n, ends=n == 19) for n in range(20)]})
        ids = [id_of_event(nonce, first + n) for n in range(20)]
        assert await self._read(log, "s", "one", ids[4]) == [b"%02d" % n for n in range(5, 20)]
        await log.write({"s": [Entry(first + 20, "two", b"x" * 600), Entry(first + 21, "two", b"y" * 600)]})
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", id_of_event(nonce, first + 20))
        assert await log.stream_of("s", id_of_event(nonce, first + 21)) == "two"

    async def test_a_request_is_kept_with_its_event_and_taken_once(self, log: EventLog) -> None:
        nonce, first = await _reserved(log, "s", 4)
        kept = Entry(first, "one", b"", nonce=nonce, request=b"call")
        await log.write({"s": [kept, Entry(first + 1, "two", b"a", nonce=nonce)]})
        assert await log.unfinished("s") == {"one": True, "two": False}
        assert [event.frame for event in await log.kept("s", "one", id_of_event(nonce, first))] == [], "it is no event"
        assert await log.take_request("s", "two") == b"" == await log.take_request("other", "one")
        assert sorted(await asyncio.gather(*(log.take_request("s", "one") for _ in range(3)))) == [b"", b"", b"call"]
        await log.write({"s": [kept]})
        assert await log.take_request("s", "one") == b"", "the event is there already, so the request was as well"
        assert await log.unfinished("s") == {"one": False, "two": False}

    async def test_the_end_of_a_stream_deletes_its_request(self, log: EventLog) -> None:
        nonce, first = await _reserved(log, "s", 9)
        for n, stream in enumerate(("written", "last", "finished", "dropped")):
            await log.write({"s": [Entry(first + n, stream, b"a", nonce=nonce, request=b"call")]})
        await log.write({"s": [Entry(first + 4, "written", b"", ends=True), Entry(first + 5, "last", b"b", ends=True)]})
        await log.finish("s", "finished")
        assert await log.unfinished("s") == {"dropped": True}
        for stream in ("written", "last", "finished"):
            assert await log.take_request("s", stream) == b""
        await log.drop("s")
        assert await log.take_request("s", "dropped") == b""

    async def test_what_a_former_owner_writes_late_brings_no_request_and_ends_no_stream(self, log: EventLog) -> None:
        nonce, late = await _reserved(log, "s", 10)
        await log.write({"s": [Entry(late, "one", b"", nonce=nonce, request=b"call")]})
        await log.append("s", "one", b"")  # the next owner has begun
        ends = Entry(late + 1, "one", b"late", ends=True, nonce=nonce)
        await log.write({"s": [ends, Entry(late + 2, "two", b"", nonce=nonce, request=b"other")]})
        assert await log.unfinished("s") == {"one": True} and await log.take_request("s", "two") == b""
        assert await log.take_request("s", "one") == b"call"

    async def test_requests_are_bounded_for_a_session(self, log: EventLog) -> None:
        nonce, first = await _reserved(log, "s", 9)
        kept = [("one", 100), ("two", 151), ("three", 150), ("one", 1)]
        for n, (stream, size) in enumerate(kept):
            await log.write({"s": [Entry(first + n, stream, b"a", nonce=nonce, request=b"x" * size)]})
        assert await log.unfinished("s") == {"one": True, "three": True, "two": False}, "250 bytes are a quarter"
        assert len(await log.take_request("s", "one")) == 100, "the first stays"
        await log.write({"s": [Entry(first + 4, "two", b"a", nonce=nonce, request=b"y" * 100)]})
        assert len(await log.take_request("s", "two")) == 100, "what was taken makes room"

    async def test_dropping_ends_followers_and_forgets(self, log: EventLog) -> None:
        event = await log.append("s", "one", b"a")
        reading = asyncio.create_task(self._read(log, "s", "one", event))
        await asyncio.sleep(0)
        await log.drop("s")
        assert await reading == []
        with pytest.raises(UnknownEvent):
            await log.stream_of("s", event)


async def _reserved(log: EventLog, session: str, count: int, *, epoch: int = 0) -> Reserved:
    reserved = await log.reserve(session, count, epoch)
    assert reserved is not None
    return reserved
