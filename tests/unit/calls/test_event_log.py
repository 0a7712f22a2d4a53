"""Events that the store gets behind their clients."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from gateway.calls import event_log
from gateway.calls.event_log import MAX_WAITING_BYTES, EventWriter, LoggedFrame
from session_store import Entry, MemoryEventLog, Reserved, StoreUnavailable, UnknownEvent
from session_store.ports.events import MAX_LOG_BYTES, MAX_LOG_EVENTS
from tests.requirements import requirement
from tests.unit.calls.parts import turns

pytestmark = [pytest.mark.timeout(30), requirement("spec.stream-log")]

A: LoggedFrame = (b"a", False)
LAST: LoggedFrame = (b"last", True)


class Log(MemoryEventLog):
    """Each write waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Mapping[str, Sequence[Entry]]] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.has_begun = asyncio.Event()
        self.fails = False
        self.refused: str | None = None  # the session whose events cannot be written
        self.failures: dict[str, Exception] = {}  # why events of which sessions are not taken
        self.away: dict[str, asyncio.Event] = {}  # the sessions of which part do not get an answer yet

    def hold(self) -> None:
        """Let the next write begin, and wait."""
        self.may_write.clear()
        self.has_begun.clear()

    async def reserve(self, session_id: str, count: int, epoch: int = 0) -> Reserved | None:
        await asyncio.sleep(0)
        if self.fails:
            raise StoreUnavailable("it is gone")
        return await super().reserve(session_id, count, epoch)

    async def write(self, entries: Mapping[str, Sequence[Entry]]) -> Mapping[str, Exception]:
        self.batches.append(entries)
        self.has_begun.set()
        await self.may_write.wait()
        if self.fails:
            raise StoreUnavailable("it is gone")
        if self.refused in entries:
            raise TypeError("not a frame")
        for part in {self.part_of(session_id) for session_id in entries} & self.away.keys():
            await self.away[part].wait()
        await super().write({name: events for name, events in entries.items() if name not in self.failures})
        return {name: failure for name, failure in self.failures.items() if name in entries}

    def part_of(self, session_id: str) -> str:
        return session_id.rpartition("/")[0]

    async def frames_after(self, event_id: str, session_id: str = "s") -> list[bytes]:
        return [event.frame for event in await self.kept(session_id, "one", event_id)]


class Writer(EventWriter):
    """Writes to a log in memory. `epochs`: in which sessions are served here; 0 if a test says nothing, None once a
    session is released."""

    def __init__(self) -> None:
        self.log = Log()
        self.epochs: dict[str, int | None] = {}
        super().__init__(self.log, lambda session_id: self.epochs.get(session_id, 0))

    async def recorded(self, session_id: str, *frames: LoggedFrame) -> list[str]:
        ids = await self.record(session_id, "one", frames)
        assert None not in ids
        return cast("list[str]", ids)

    async def stored(self, *sessions: str) -> dict[str, str]:
        """The ids of events of these sessions that the store has."""
        ids = {name: (await self.recorded(name, A))[0] for name in sessions}
        for name in sessions:
            await self.settle(name)
        return ids


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setattr(event_log, "_RETRY_S", 0.01)
    return Writer()


async def test_ids_are_there_before_the_events_are_stored_together_and_who_reads_waits(writer: Writer) -> None:
    writer.log.may_write.clear()
    (first,) = await writer.recorded("s", A)
    await writer.recorded("t", A)
    assert writer.is_ready("s", 2), "once numbers are reserved, nothing is waited for"
    writer.record_now("s", "one", [(b"b", False), LAST])
    reading = asyncio.create_task(writer.stream_of("s", first))
    await asyncio.sleep(0)
    with pytest.raises(UnknownEvent):
        await writer.log.stream_of("s", first)
    writer.log.may_write.set()
    assert await reading == await writer.log.stream_of("s", first) == "one"
    assert [event.frame async for event in writer.follow("s", "one", first)] == [b"b", b"last"]
    assert await writer.unfinished("s") == {} and await writer.unfinished("t") == {"one": False}
    assert sum(len(batch) for batch in writer.log.batches) <= 3
    finished = await writer.append("s", "two", b"c")
    await writer.finish("s", "two")
    assert [event.frame async for event in writer.follow("s", "two", finished)] == []


async def test_what_the_store_did_not_take_is_written_later_and_once(writer: Writer) -> None:
    first = (await writer.stored("s"))["s"]
    writer.log.fails = True
    await writer.recorded("s", (b"b", False))
    with pytest.raises(StoreUnavailable):
        await writer.settle("s")
    with pytest.raises(StoreUnavailable):
        await writer.append("s", "one", b"not this: who has failed to append it does that again")
    assert await writer.record("new", "one", [A]) == [None], "without a number there is no id"
    writer.log.fails = False
    await writer.recorded("s", LAST)
    await writer.settle("s")
    assert await writer.log.frames_after(first) == [b"b", b"last"]


async def test_what_waits_is_bounded(writer: Writer) -> None:
    first = (await writer.stored("s"))["s"]
    writer.log.hold()
    await writer.recorded("s", A)
    await writer.log.has_begun.wait()
    await writer.recorded("s", *[(b"%d" % number, False) for number in range(2 * MAX_LOG_EVENTS)])
    large = bytes(MAX_LOG_BYTES)
    taken = 0
    while (await writer.record(f"t{taken}", "one", [(large, False)]))[0] is not None:
        taken += 1
        assert taken <= MAX_WAITING_BYTES // len(large) + 1
    assert taken > 1
    writer.log.may_write.set()
    for name in ("s", *(f"t{number}" for number in range(taken))):
        await writer.settle(name)
    kept = [len(batch["s"]) for batch in writer.log.batches if "s" in batch]
    assert max(kept) == MAX_LOG_EVENTS, "the log would drop the others at once"
    not_kept, kept_again = await writer.record("s", "one", [(None, False), A])
    assert not_kept is None and kept_again is not None, "there is room again"
    with pytest.raises(UnknownEvent):
        await writer.stream_of("s", first)


async def test_numbers_of_a_session_that_has_used_its_own_are_reserved_again(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "_RESERVED", 2)
    ids = {event_id for (event_id,) in await asyncio.gather(*(writer.recorded("s", A) for _ in range(5)))}
    await writer.settle("s")
    assert [await writer.log.stream_of("s", event_id) for event_id in ids] == ["one"] * 5


async def test_a_session_that_has_ended_leaves_nothing(writer: Writer) -> None:
    await writer.recorded("s", A)
    writer.log.may_write.clear()
    await writer.log.has_begun.wait()
    await writer.recorded("s", A)
    dropping = asyncio.create_task(writer.drop("s"))
    await asyncio.sleep(0)
    writer.log.may_write.set()
    await dropping
    await writer.settle("s")
    assert await writer.log.unfinished("s") == {} and len(writer.log.batches) == 1, "the rest is not written"


async def test_a_session_that_is_released_is_in_the_store_and_has_no_more_ids(writer: Writer) -> None:
    recording = asyncio.ensure_future(writer.record("s", "one", [A]))
    await asyncio.sleep(0)
    writer.epochs["s"] = None
    assert await recording == [None], "it was released while its numbers were reserved"
    writer.epochs["s"] = 0
    (first,) = await writer.recorded("s", A)
    writer.epochs["s"] = None  # before its last events are in the store
    await writer.recorded("s", LAST)
    await writer.release("s")
    assert await writer.log.frames_after(first) == [b"last"]
    assert await writer.record("s", "one", [A]) == [None]
    with pytest.raises(StoreUnavailable):
        await writer.append("s", "one", b"of a server that has not ended yet")
    writer.epochs["s"] = 0  # it comes back
    (later,) = await writer.recorded("s", A)
    writer.epochs["s"] = None
    writer.log.fails = True
    await writer.recorded("s", A)
    await writer.release("s")
    writer.log.fails = False
    writer.epochs["s"] = 0
    (afterwards,) = await writer.recorded("s", LAST)
    await writer.settle("s")
    assert await writer.log.frames_after(later) == [b"last"], "what the store did not take until then was given up"
    assert await writer.log.stream_of("s", afterwards) == "one"


async def test_whoever_waits_does_not_wait_for_the_pause(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_PAUSE_S", 60.0)
    for number in range(5):
        await writer.append("s", "one", b"%d" % number)
    before = len(writer.log.batches)
    await writer.recorded("t", A)
    await writer.recorded("u", A)
    writer.log.hold()
    first = asyncio.create_task(writer.settle("t"))
    await writer.log.has_begun.wait()
    second = asyncio.create_task(writer.append("v", "one", b"v"))
    await turns(20)  # until it waits for the next write
    writer.log.may_write.set()
    await asyncio.gather(first, second)
    batches = [sorted(batch) for batch in writer.log.batches[before:]]
    assert batches == [["t", "u"], ["v"]], "what has gathered goes along"


async def test_whoever_waits_does_not_wait_for_what_came_later(writer: Writer) -> None:
    first = (await writer.stored("s"))["s"]
    writer.log.hold()
    await writer.recorded("s", A)
    reading = asyncio.create_task(writer.stream_of("s", first))
    await writer.log.has_begun.wait()
    await writer.recorded("s", A)
    writer.log.has_begun.clear()
    writer.log.may_write.set()
    await asyncio.sleep(0)
    writer.log.may_write.clear()
    assert await reading == "one"
    await writer.log.has_begun.wait()
    writer.log.may_write.set()
    await writer.settle("s")


@pytest.mark.parametrize("cannot_be_written", [True, False])
async def test_events_that_the_store_does_not_take_for_good_are_given_up_and_cost_other_sessions_nothing(
    writer: Writer, caplog: pytest.LogCaptureFixture, cannot_be_written: bool
) -> None:
    ids = await writer.stored("s", "t", "u")
    if cannot_be_written:
        writer.log.refused = "t"
    else:
        writer.log.failures["t"] = ValueError("not a stream")
    writer.log.may_write.clear()
    for name in ids:
        await writer.recorded(name, LAST)
    outcomes = asyncio.gather(*(writer.settle(name) for name in ids), return_exceptions=True)
    await asyncio.sleep(0)
    writer.log.may_write.set()
    assert [type(outcome) for outcome in await outcomes] == [type(None), StoreUnavailable, type(None)]
    traces = [record.exc_info is not None for record in caplog.records]
    assert traces.count(True) == 1 if cannot_be_written else traces == [False], "one line, for a person"
    writer.log.refused = None
    writer.log.failures.clear()
    await writer.recorded("t", (b"later", False))
    await writer.settle("t")
    for name, frames in (("s", [b"last"]), ("t", [b"later"]), ("u", [b"last"])):
        assert await writer.log.frames_after(ids[name], name) == frames


async def test_a_former_owner_that_wakes_up_costs_the_next_one_nothing(writer: Writer) -> None:
    writer.epochs["s"] = 1
    (first,) = await writer.recorded("s", A)
    sleeper = EventWriter(writer.log, {"s": 1}.get)  # as the first one, without a number
    writer.epochs["s"] = 2  # the numbers of the former epoch are used no more
    await writer.recorded("s", (b"b", False))
    assert await sleeper.record("s", "one", [(b"late", False)]) == [None]
    with pytest.raises(StoreUnavailable):
        await sleeper.append("s", "one", b"late")
    await writer.recorded("s", LAST)
    await writer.settle("s")
    assert await writer.log.frames_after(first) == [b"b", b"last"]


async def test_a_part_of_the_store_that_is_away_keeps_back_only_its_own_sessions(writer: Writer) -> None:
    await writer.stored("bad/s", "good/s", "good/t")
    writer.log.away["bad"] = asyncio.Event()
    (lost,) = await writer.recorded("bad/s", (b"b", False))
    waiting = asyncio.create_task(writer.settle("bad/s"))
    for name in ("good/s", "good/t"):
        event_id = await writer.append(name, "one", b"b")
        assert await writer.stream_of(name, event_id) == "one"
    assert not waiting.done()
    writer.log.away["bad"].set()
    await waiting
    assert await writer.log.stream_of("bad/s", lost) == "one"


async def test_a_session_that_fails_alone_is_tried_again_alone(writer: Writer) -> None:
    ids = await writer.stored("s", "t", "u")
    writer.log.batches.clear()
    writer.log.may_write.clear()
    writer.log.failures["t"] = StoreUnavailable("its slot moves")
    for name in ids:
        await writer.recorded(name, (b"b", False))
    outcomes = asyncio.gather(*(writer.append(name, "one", b"c") for name in ids), return_exceptions=True)
    await asyncio.sleep(0)
    writer.log.may_write.set()
    assert [type(outcome) for outcome in await outcomes] == [str, StoreUnavailable, str]
    await writer.recorded("t", LAST)
    await writer.append("s", "one", b"d")
    with pytest.raises(StoreUnavailable):
        await writer.settle("t")
    writer.log.failures.clear()
    await writer.settle("t")
    await writer.append("t", "one", b"e")
    for name, frames in (("s", [b"b", b"c", b"d"]), ("t", [b"b", b"last", b"e"]), ("u", [b"b", b"c"])):
        assert await writer.log.frames_after(ids[name], name) == frames
    written = [entry.number for batch in writer.log.batches for entry in batch.get("s", ())]
    assert len(written) == len(set(written)), "what is written is not written again"
    with_t = [batch for batch in writer.log.batches if "t" in batch]
    assert all(batch.keys() == {"t"} for batch in with_t[1:])


async def test_nothing_is_kept_of_a_batch_that_is_cancelled(writer: Writer) -> None:
    await writer.stored("s")
    writer.log.hold()
    await writer.recorded("s", A)
    waiting = asyncio.create_task(writer.settle("s"))
    await writer.log.has_begun.wait()
    for task in asyncio.all_tasks() - {waiting, asyncio.current_task()}:
        if task.get_name() == "EventBatches._write":
            task.cancel()
    with pytest.raises(StoreUnavailable, match="stops"):
        await waiting
    writer.log.may_write.set()
    await writer.append("s", "one", b"b")


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_said_to_be_stored_while_its_session_leaves_is_stored(writer: Writer, *, fails: bool) -> None:
    await writer.stored("s")
    writer.epochs["s"] = None
    writer.log.hold()
    before = asyncio.create_task(writer.append("s", "one", b"before"))
    await writer.log.has_begun.wait()
    behind = asyncio.create_task(writer.append("s", "one", b"behind"))
    releasing = asyncio.create_task(writer.release("s"))
    late = asyncio.create_task(writer.append("s", "one", b"late"))
    await asyncio.sleep(0)
    writer.log.fails = fails
    writer.log.may_write.set()
    await releasing
    *ids, late_id = await asyncio.gather(before, behind, late, return_exceptions=True)
    for appended in ids:
        is_stored = isinstance(appended, str) and await writer.log.stream_of("s", appended) == "one"
        assert is_stored or isinstance(appended, StoreUnavailable)
    assert isinstance(late_id, StoreUnavailable), "what comes later has no id"


@requirement("rep.honest")
async def test_a_request_is_written_with_the_first_event_that_can_be_kept_and_not_without(writer: Writer) -> None:
    writer.log.may_write.clear()
    assert await writer.record("t", "one", [(None, False)], b"not this") == [None]
    ids = await writer.record("s", "one", [(None, False), A, A], b"call")
    await writer.log.has_begun.wait()
    assert ids[0] is None and [sorted(batch) for batch in writer.log.batches] == [["s"]]
    assert [entry.request for entry in writer.log.batches[0]["s"]] == [b"call", b""]
    await writer.recorded("s", A)
    writer.log.may_write.set()
    assert await writer.unfinished("s") == {"one": True}
    assert await writer.take_request("s", "one") == b"call" and await writer.unfinished("s") == {"one": False}
