"""Test the contract of a `Backend`: its session store, and every other part."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from session_store.ports.audit import AuditEvent
from session_store.ports.backend import Backend
from session_store.ports.replica_directory import count_of
from session_store.ports.tasks import Task
from session_store.ports.timelines import (
    KEPT_S,
    MAX_ENTRIES,
    MAX_TIMELINE_BYTES,
    STEPS,
    HistoryRecord,
    TimelineEntry,
    TimelineHead,
    TimelinePart,
)
from session_store.session import new_session_id
from session_store.testing.samples import FakeClock, a_session, a_task
from session_store.testing.sessions import SessionStoreContract

_LARGE = b'{"data":"%s"}' % (b"x" * 8_192)


@pytest.mark.anyio
class BackendContract(SessionStoreContract):
    """Test any `Backend`. The base class tests its sessions and their state."""

    async def test_the_bus_reaches_those_who_listen(self, backend: Backend) -> None:
        heard: list[bytes | None] = []
        both = asyncio.Event()

        def hear(data: bytes | None) -> None:
            heard.append(data)
            if len(heard) == 2:
                both.set()

        async with backend.bus.subscribed("topic", hear):
            await backend.bus.publish("topic", b"one")
            await backend.bus.publish("other", b"no")
            await backend.bus.publish("topic", b"two")
            async with asyncio.timeout(5):
                await both.wait()
        await backend.bus.publish("topic", b"late")
        assert {*heard} == {b"one", b"two"} and len(heard) == 2

    async def test_one_replica_at_a_time_claims_a_session(self, backend: Backend, clock: FakeClock) -> None:
        session, directory = await backend.sessions.create(a_session(clock)), backend.directory
        epochs = await asyncio.gather(*(directory.claim(session.id, f"r{n}", epoch=0) for n in range(5)))
        ((n, first),) = [(n, epoch) for n, epoch in enumerate(epochs) if epoch is not None]
        owner = f"r{n}"
        found = await backend.sessions.peek(session.id)
        assert found is not None and (found.owner, found.epoch) == (owner, first)
        second = await directory.claim(session.id, "taker", epoch=first)
        assert second is not None and (count_of(first), count_of(second)) == (1, 2)
        assert not await directory.release(session.id, owner, epoch=first)
        assert not await directory.acknowledged(owner, session.id)
        for _ in range(2):
            assert await directory.renew_lease(owner, "here", 5.0) == [session.id], "it is told what it lost"
            assert not await directory.acknowledged(owner, session.id), "the answer may be lost"
        assert await directory.renew_lease(owner, "here", 5.0, [session.id]) == []
        assert await directory.acknowledged(owner, session.id)
        assert await directory.release(session.id, "taker", epoch=second)
        found = await backend.sessions.peek(session.id)
        assert found is not None and (found.owner, found.epoch) == ("", second)
        assert await directory.claim("nobody", "taker", epoch=0) is None

    async def test_no_epoch_is_given_twice(self, backend: Backend, clock: FakeClock) -> None:
        """Test that two sessions with equal records get different epochs, as after a store has lost the last claim.
        Every store represents epochs exactly, and refuses numbers for events to earlier owners."""
        directory, given = backend.directory, []
        for _ in range(2):
            session = await backend.sessions.create(a_session(clock, owner="old", epoch=7))  # of an older release
            epoch = await directory.claim(session.id, "r1", epoch=7)
            assert epoch is not None and count_of(epoch) == 8 and epoch < 1 << 53
            assert await directory.claim(session.id, "r2", epoch=7) is None
            assert (await directory.owners([session.id, "nobody"])) == [("r1", epoch), None]
            assert await backend.events.reserve(session.id, 10, epoch) is not None
            assert await backend.events.reserve(session.id, 10, 7) is None, "an owner that has lost it"
            later = await directory.claim(session.id, "r2", epoch=epoch)
            assert later is not None and await backend.events.reserve(session.id, 10, later) is not None
            assert await backend.events.reserve(session.id, 10, epoch) is None
            given += [epoch, later]
        assert len({*given}) == 4
        assert await directory.owners([]) == []
        assert await directory.copied(session.id), "a store without copies has nothing to wait for"

    async def test_a_replica_is_told_of_a_claim_that_the_store_forgot(self, backend: Backend) -> None:
        await backend.directory.tell_lost("r1", ["some session"])
        assert not await backend.directory.acknowledged("r1", "some session")
        assert await backend.directory.renew_lease("r1", "here", 5.0) == ["some session"]
        await backend.directory.tell_lost("r1", ["other", "some session"])
        assert await backend.directory.renew_lease("r1", "here", 5.0, ["some session"]) == ["other", "some session"]

    async def test_a_replica_lives_until_it_leaves(self, backend: Backend) -> None:
        directory = backend.directory
        await directory.renew_lease("one", "http://one", 5.0)
        await directory.renew_lease("two", "http://two", 5.0)
        assert await directory.replicas() == {"one": "http://one", "two": "http://two"}
        await directory.end_lease("one")
        assert await directory.address("one") is None and await directory.last_address("one") is None
        assert await directory.last_address("two") == "http://two"
        assert await directory.replicas() == {"two": "http://two"}

    async def test_configurations_are_numbered_as_replicas_got_them(self, backend: Backend, clock: FakeClock) -> None:
        had: dict[str, tuple[int, str]] = {}

        async def hold(replica: str, digest: str, hold_s: float = 60.0) -> tuple[int, int, list[str]]:
            number, before = had.get(replica, (0, digest))
            found = await backend.directory.hold_configuration(
                replica, digest, number=number, is_edited=digest != before, hold_s=hold_s
            )
            had[replica] = (found.own, digest)
            return found.own, found.newest, sorted(found.holders)

        assert await hold("one", "a") == (1, 1, ["one"]) and await hold("two", "a") == (1, 1, ["one", "two"])
        assert await hold("one", "b") == (2, 2, ["one"]) and await hold("two", "a") == (1, 2, ["one"])
        del had["two"]
        assert await hold("two", "a") == (1, 2, ["one"]), "a replica that starts again with the older file"
        assert await hold("two", "b") == (2, 2, ["one", "two"])
        assert await hold("one", "a") == (3, 3, ["one"]), "an edit of the newest to what was before"
        assert await hold("two", "b") == (2, 3, ["one"]) and await hold("two", "a") == (3, 3, ["one", "two"])
        assert await hold("two", "c") == (4, 4, ["two"])
        assert await hold("two", "c", 0.0) == (4, 3, ["one"])
        assert await hold("one", "a") == (3, 3, ["one"]), "no replica holds the newer one"
        del had["two"]
        assert await hold("two", "c") == (4, 4, ["two"]), "a replica that starts again with the newer file"
        had |= {"three": (9, "d"), "four": (9, "e")}
        assert await hold("three", "d") == (9, 9, ["three"]), "the store had lost it"
        assert await hold("four", "e") == (10, 10, ["four"]), "another one has got its number since"
        clock.pass_time(59.0)
        assert await hold("one", "a") == (3, 10, ["four"])
        clock.pass_time(2.0)
        assert await hold("two", "c") == (4, 4, ["two"]), "the newer ones have been silent for a minute"
        assert await hold("one", "a") == (3, 4, ["two"])

    async def test_a_rate_lets_so_many_through_at_once_and_then_one_by_one(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        assert [await backend.rates.take("one", 2.0, 3) for _ in range(3)] == [0.0] * 3
        assert await backend.rates.take("one", 2.0, 3) == pytest.approx(0.5, abs=0.01)
        assert await backend.rates.take("two", 2.0, 3) == 0.0, "nobody else pays"
        clock.pass_time(0.51)
        assert await backend.rates.take("one", 2.0, 3) == 0.0 < await backend.rates.take("one", 2.0, 3)
        assert [await backend.rates.take("two", 2.0, 3, 2) for _ in range(2)] == [0.0, pytest.approx(0.5, abs=0.02)]

    async def test_what_a_rate_lets_through_later_has_its_turn(self, backend: Backend, clock: FakeClock) -> None:
        async def take(times: int, within_s: float) -> float:
            return await backend.rates.take("turns", 2.0, 3, times, within_s)

        assert await take(3, 1.0) == 0.0
        assert [await take(1, 1.0) for _ in range(2)] == [pytest.approx(0.5, abs=0.02), pytest.approx(1.0, abs=0.02)]
        assert [await take(1, 1.0) for _ in range(2)] == [pytest.approx(1.5, abs=0.04)] * 2, "nothing is counted"
        clock.pass_time(1.1)
        assert 0.0 < await take(1, 0.0) < 0.5 and await take(1, 1.0) == pytest.approx(0.4, abs=0.05)
        assert await backend.rates.take("others", 2.0, 3, 3, 1.0) == 0.0, "nobody else waits"

    async def test_no_more_are_held_than_there_may_be(self, backend: Backend) -> None:
        async def hold(name: str) -> list[str]:
            return await backend.quotas.hold("some", name, 3, for_s=60)

        held = await asyncio.gather(*(hold(f"n{n}") for n in range(5)))
        assert held.count([]) == 3
        mine = next(names for names in held if names)
        assert len(mine) == 3 and await hold(mine[0]) == [], "what is held stays"
        await backend.quotas.give_back("some", [mine[0], "unknown"])
        assert await hold("another") == [] and await hold(mine[0]) == sorted(["another", *mine[1:]])
        assert await backend.quotas.hold("others", "n0", 1, for_s=60) == []

    async def test_names_are_held_as_long_as_any_call_has_asked(self, backend: Backend, clock: FakeClock) -> None:
        quotas = backend.quotas
        for key, times in (("long", (60.0, 0.1)), ("short", (0.1,)), ("again", (0.1, 60.0))):
            for for_s in times:
                assert await quotas.hold(key, "first", 1, for_s=for_s) == []
        clock.pass_time(0.3)
        await asyncio.sleep(0.3)  # some stores have clocks of their own
        assert await quotas.hold("long", "second", 1, for_s=0.1) == ["first"]
        assert await quotas.hold("again", "second", 1, for_s=0.1) == ["first"]
        assert await quotas.hold("short", "second", 1, for_s=0.1) == []

    async def test_a_flag_is_set_until_its_time_has_passed_or_it_is_dropped(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        flags = backend.flags
        for name, times in (("long", (60.0,)), ("short", (0.1,)), ("longer", (0.1, 60.0)), ("shorter", (60.0, 0.1))):
            for for_s in times:
                await flags.set(name, for_s)
        assert await flags.has("long") and not await flags.has("unknown")
        clock.pass_time(0.3)
        await asyncio.sleep(0.3)  # some stores have clocks of their own
        found = [await flags.has(name) for name in ("long", "longer", "short", "shorter")]
        assert found == [True, True, False, False], "the last time that was set counts"
        for name in ("long", "long", "short", "unknown"):
            await flags.drop(name)
        assert not await flags.has("long") and await flags.has("longer")

    async def test_a_sealed_value_is_replaced_only_by_the_first_that_has_read_it(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        sealed, binary = backend.sealed, bytes(range(256))
        made = await asyncio.gather(*(sealed.replace("one", None, b"%d" % n, 60.0) for n in range(5)))
        assert made.count(True) == 1 and await sealed.get("one") == b"%d" % made.index(True)
        assert not await sealed.replace("one", b"another", binary, 60.0)
        assert not await sealed.replace("one", None, None)
        assert await sealed.replace("one", b"%d" % made.index(True), binary, 60.0)
        assert await sealed.get("one") == binary and await sealed.get("two") is None
        taken = await asyncio.gather(*(sealed.replace("one", binary, None) for _ in range(5)))
        assert taken.count(True) == 1 and await sealed.get("one") is None
        assert await sealed.replace("one", None, b"again", 60.0)

    async def test_a_sealed_value_is_there_until_its_time_has_passed(self, backend: Backend, clock: FakeClock) -> None:
        sealed = backend.sealed
        assert await sealed.replace("short", None, b"x", 0.1) and await sealed.replace("long", None, b"x", 60.0)
        assert await sealed.replace("shorter", None, b"x", 60.0) and await sealed.replace("shorter", b"x", b"y", 0.1)
        assert {"short", "shorter", "long"} <= {*await sealed.names()}
        clock.pass_time(0.3)
        await asyncio.sleep(0.3)  # some stores have clocks of their own
        assert [await sealed.get(name) for name in ("short", "shorter", "long")] == [None, None, b"x"]
        assert "long" in await sealed.names()
        assert await sealed.replace("long", b"x", None) and await sealed.get("long") is None
        assert await sealed.replace("short", None, b"z", 60.0)

    async def test_a_sealed_value_that_is_set_while_it_is_removed_is_listed(self, backend: Backend) -> None:
        sealed = backend.sealed
        for name in map(str, range(20)):
            assert await sealed.replace(name, None, b"x", 60.0)
            setting = sealed.replace(name, None, b"next", 60.0)
            is_set, is_removed = await asyncio.gather(setting, sealed.replace(name, b"x", None))
            assert is_removed and (is_set or await sealed.replace(name, None, b"next", 60.0))
            assert await sealed.get(name) == b"next" and name in await sealed.names()

    async def test_the_audit_trail_gives_the_newest_first(self, backend: Backend) -> None:
        events = [AuditEvent(at=float(n), event="created", session=f"s{n}", reason="\u00fc") for n in range(5)]
        await backend.audit.record(events[:3])
        await backend.audit.record(events[3:])
        assert await backend.audit.recent(2) == [events[4], events[3]]
        assert len(await backend.audit.recent()) == 5

    # -- tasks

    async def test_a_task_is_what_was_stored(self, backend: Backend, clock: FakeClock) -> None:
        task = a_task(clock)
        assert await backend.tasks.get(task.session_id, task.id) is None
        await backend.tasks.create(task)
        assert await backend.tasks.get(task.session_id, task.id) == task
        assert await backend.tasks.get(new_session_id(), task.id) is None
        assert await backend.tasks.get(task.session_id, new_session_id()) is None

    async def test_a_task_is_replaced_only_in_the_version_that_was_read(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        task = a_task(clock)
        assert not await backend.tasks.replace(task)
        await backend.tasks.create(task)
        changes = [replace(task, message=str(number)) for number in range(20)]
        won = await asyncio.gather(*(backend.tasks.replace(change) for change in changes))
        assert sum(won) == 1
        stored = await backend.tasks.get(task.session_id, task.id)
        assert stored == replace(changes[won.index(True)], version=2)
        assert await backend.tasks.replace(replace(stored, status="completed"))
        assert not await backend.tasks.replace(replace(stored, status="failed"))

    async def test_a_task_expires(self, backend: Backend, clock: FakeClock) -> None:
        short, long = a_task(clock), a_task(clock, ttl_s=200.0)
        for task in (short, long):
            await backend.tasks.create(task)
        clock.pass_time(99.0)
        assert await backend.tasks.get(short.session_id, short.id) == short
        clock.pass_time(1.0)
        assert await backend.tasks.get(short.session_id, short.id) is None
        assert not await backend.tasks.replace(short)
        assert await backend.tasks.of_session(short.session_id) == []
        assert await backend.tasks.get(long.session_id, long.id) == long
        assert [task.id for task in await backend.tasks.page()] == [long.id]

    async def test_a_task_may_be_given_more_time(self, backend: Backend, clock: FakeClock) -> None:
        task = a_task(clock)
        await backend.tasks.create(task)
        assert await backend.tasks.replace(replace(task, ttl_s=300.0))
        clock.pass_time(200.0)
        stored = await backend.tasks.get(task.session_id, task.id)
        assert stored is not None and stored.ttl_s == 300.0
        assert [found.id for found in await backend.tasks.of_session(task.session_id)] == [task.id]

    async def test_the_tasks_of_a_session_are_listed_and_dropped_together(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        other, session_id = a_task(clock), new_session_id()
        await backend.tasks.create(other)
        tasks = []
        for _ in range(3):
            clock.pass_time(1.0)
            tasks.append(a_task(clock, session_id=session_id))
            await backend.tasks.create(tasks[-1])
        assert await backend.tasks.of_session(session_id) == [_head(task) for task in tasks]
        await backend.tasks.drop_session(session_id)
        await backend.tasks.drop_session(session_id)
        assert await backend.tasks.of_session(session_id) == []
        assert [await backend.tasks.get(session_id, task.id) for task in tasks] == [None, None, None]
        assert await backend.tasks.of_session(other.session_id) == [_head(other)]

    async def test_a_session_has_its_tasks_page_by_page(self, backend: Backend, clock: FakeClock) -> None:
        session_id, tasks = new_session_id(), list[Task]()
        for number in range(7):
            clock.pass_time(float(number % 2))  # some are of one age
            ttl_s = 5.0 if number == 2 else 100.0
            tasks.append(a_task(clock, session_id=session_id, id=f"t{9 - number}", ttl_s=ttl_s))
            await backend.tasks.create(tasks[-1])
        tasks.sort(key=lambda task: task.place)
        first = await backend.tasks.of_session(session_id, limit=3)
        assert first == [_head(task) for task in tasks[:3]]
        expired = next(task for task in tasks if task.ttl_s == 5.0)
        clock.pass_time(5.0)
        rest = [_head(task) for task in tasks if task.place > expired.place]
        assert await backend.tasks.of_session(session_id, after=expired.place) == rest, "its place is still known"
        seen: list[Task] = []
        while page := await backend.tasks.of_session(session_id, after=seen[-1].place if seen else (0.0, ""), limit=2):
            assert len(page) <= 2
            seen += page
        assert seen == [_head(task) for task in tasks if task != expired]

    async def test_heads_are_read_by_name_and_are_small(self, backend: Backend, clock: FakeClock) -> None:
        assert await backend.tasks.heads([]) == []
        small, other = a_task(clock, error=b'{"code":1}', reason="why", is_tool_error=True), a_task(clock)
        large, short = a_task(clock, error=_LARGE), a_task(clock, ttl_s=5.0)
        for task in (small, other, large, short):
            await backend.tasks.create(task)
        clock.pass_time(5.0)
        unknown = [f"{small.session_id}/{other.id}", "unknown/task", short.name]
        heads = await backend.tasks.heads([large.name, *unknown, other.name, small.name])
        assert heads == [_head(large), _head(other), _head(small)]
        assert (heads[0].error, heads[2].error, heads[2].reason) == (b"", small.error, "why")
        assert await backend.tasks.get(large.session_id, large.id) == large
        assert await backend.tasks.of_session(large.session_id) == [_head(large)]

    async def test_operators_page_through_all_tasks_newest_first(self, backend: Backend, clock: FakeClock) -> None:
        assert await backend.tasks.page() == []
        tasks = []
        for number in range(7):
            clock.pass_time(1.0)
            # Some go before the others, and leave their names behind.
            tasks.append(a_task(clock, ttl_s=5.0 if number % 3 == 1 else 100.0))
            await backend.tasks.create(tasks[-1])
        clock.pass_time(10.0)
        expected = [task.id for task in reversed(tasks) if task.ttl_s > 5.0]
        listed = await backend.tasks.page()
        assert [task.id for task in listed] == expected
        assert (listed[0].tool, listed[0].request, listed[0].questions, listed[0].result) == ("search", b"", b"", b"")
        seen: list[Task] = []
        while page := await backend.tasks.page(before=seen[-1] if seen else None, limit=2):
            assert len(page) <= 2
            seen += page
        assert [task.id for task in seen] == expected
        expired = next(task for task in reversed(tasks) if task.ttl_s == 5.0)
        older = [task.id for task in await backend.tasks.page(before=expired)]
        assert older == [task.id for task in reversed(tasks[: tasks.index(expired)]) if task.ttl_s > 5.0]

    # -- what operators look at

    async def test_operators_are_told_of_the_store(self, backend: Backend) -> None:
        first, *_ = await backend.inspect()
        assert (first.subject, first.state, first.advice) == ("store", "ok", "") and first.text

    async def test_a_timeline_is_put_together_from_its_parts(self, backend: Backend, clock: FakeClock) -> None:
        one = TimelineEntry(2.0, "call", "files", "read", "ok", 0.25, correlation="c1", replica="r1")
        two = TimelineEntry(1.0, "refusal", why="\u00fc not allowed", replica="r2")
        await backend.timelines.add([_part("aaaaaaaa", one, principal="ann", client="ide", calls=1, created_at=1.0)])
        await backend.timelines.add([_part("aaaaaaaa", two, ended="expired", ended_at=9.0, calls=2, failed=1)])
        found = await backend.timelines.read("aaaaaaaa")
        assert found is not None and found.entries == [two, one]
        assert found.head == TimelineHead(
            session="aaaaaaaa",
            principal="ann",
            client="ide",
            created_at=1.0,
            updated_at=clock(),
            ended="expired",
            ended_at=9.0,
            calls=3,
            failed=1,
        )
        assert await backend.timelines.read("bbbbbbbb") is None

    async def test_a_timeline_has_its_newest_entries(self, backend: Backend) -> None:
        for at in range(0, MAX_ENTRIES + 40, 20):
            await backend.timelines.add([_part("a" * 8, *(TimelineEntry(float(at + n), "call") for n in range(20)))])
        found = await backend.timelines.read("a" * 8)
        assert found is not None
        assert [entry.at for entry in found.entries] == [float(n) for n in range(40, MAX_ENTRIES + 40)]

    async def test_a_timeline_is_bounded_in_bytes(self, backend: Backend) -> None:
        """Test that the newest entries that fit are kept, and that room is free again when large entries are
        dropped."""
        why = "\u00fc" * 900
        for at in range(0, 80, 20):
            large = (TimelineEntry(float(at + n), "refusal", why=why) for n in range(20))
            await backend.timelines.add([_part("a" * 8, *large)])
        found = await backend.timelines.read("a" * 8)
        assert found is not None
        size = len(msgspec.json.encode(found.entries[-1]))
        kept = MAX_TIMELINE_BYTES // size
        assert 20 < kept < 80 and [entry.at for entry in found.entries] == [float(n) for n in range(80 - kept, 80)]
        for at in range(80, 80 + MAX_ENTRIES, 20):
            await backend.timelines.add([_part("a" * 8, *(TimelineEntry(float(at + n), "call") for n in range(20)))])
        found = await backend.timelines.read("a" * 8)
        assert found is not None and [entry.at for entry in found.entries[:2]] == [80.0, 81.0]
        assert len(found.entries) == MAX_ENTRIES

    async def test_timelines_are_found_and_expire(self, backend: Backend, clock: FakeClock) -> None:
        await backend.timelines.add([_part("aab_-aaa", TimelineEntry(1.0, "session"))])
        clock.pass_time(KEPT_S / 2)
        await backend.timelines.add([_part("aabxxxxx"), _part("abcccccc", principal="bob")])
        assert await backend.timelines.names("aab_") == ["aab_-aaa"]
        assert await backend.timelines.names("aab") == ["aab_-aaa", "aabxxxxx"]
        assert {head.session for head in await backend.timelines.newest(2)} == {"aabxxxxx", "abcccccc"}
        clock.pass_time(KEPT_S / 2 + 1)
        await backend.timelines.add([_part("abcccccc")])
        assert await backend.timelines.names("a") == ["aabxxxxx", "abcccccc"]
        heads = await backend.timelines.newest(10)
        assert [(head.session, head.principal) for head in heads] == [("abcccccc", "bob"), ("aabxxxxx", "")]
        assert await backend.timelines.newest(10, skip=1) == heads[1:]
        assert await backend.timelines.newest(10, skip=2) == []
        await backend.timelines.add([])

    async def test_the_history_has_records_of_all_replicas(self, backend: Backend) -> None:
        for at in (1_200, 1_260, 1_320):
            await backend.history.write(60, HistoryRecord(at, "r1", b"one"))
        await backend.history.write(60, HistoryRecord(1_260, "r2", b"two"))
        await backend.history.write(60, HistoryRecord(1_260, "r1", b"\x00anew"))
        await backend.history.write(600, HistoryRecord(1_200, "r1", b"long"))
        assert await backend.history.read(60, 1_260, 1_320) == [
            HistoryRecord(1_260, "r1", b"\x00anew"),
            HistoryRecord(1_260, "r2", b"two"),
        ]
        assert await backend.history.read(600, 0, 7_200) == [HistoryRecord(1_200, "r1", b"long")]
        assert len(await backend.history.read(60, 0, 100_000)) == 4

    async def test_the_history_is_bounded_by_time(self, backend: Backend) -> None:
        if backend.is_shared:
            return  # its deadlines are those of the store's own clock
        for step_s, kept_s in STEPS.items():
            for n in range(5):
                await backend.history.write(step_s, HistoryRecord(int(n * kept_s / 2) // step_s * step_s, "r", b"x"))
            assert len(await backend.history.read(step_s, 0, 10 * int(kept_s))) == 3


def _head(task: Task) -> Task:
    error = b"" if task.error == _LARGE else task.error
    return replace(task, request=b"", questions=b"", answers=b"", result=b"", error=error)


def _part(session: str, *entries: TimelineEntry, **facts: str | float | int) -> TimelinePart:
    return TimelinePart(head=TimelineHead(session=session, **facts), entries=list(entries))  # type: ignore[arg-type]  # tests
