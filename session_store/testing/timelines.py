"""The contract of what a backend keeps for operators: timelines of sessions, and the history of the figures."""

import msgspec
import pytest

from session_store.ports.accounting import STEPS, HistoryRecord
from session_store.ports.backend import Backend
from session_store.ports.timelines import (
    KEPT_S,
    MAX_ENTRIES,
    MAX_TIMELINE_BYTES,
    TimelineEntry,
    TimelineHead,
    TimelinePart,
)
from session_store.testing.samples import FakeClock

__all__ = ["HistoryContract"]


def _part(session: str, *entries: TimelineEntry, **facts: str | float | int) -> TimelinePart:
    return TimelinePart(head=TimelineHead(session=session, **facts), entries=list(entries))  # type: ignore[arg-type]  # tests


@pytest.mark.anyio
class HistoryContract:
    """Inherited by `BackendContract`."""

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
        """The newest entries, and no more than fit. Room comes back with large entries that have gone."""
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
