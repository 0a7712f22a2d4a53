"""Counted minute by minute, with a bound for names that come from clients."""

import msgspec
import pytest

from gateway.observability.ended_call import EndedCall
from gateway.observability.figures import MOST_TOOLS, MOST_WHO, OTHERS, Figures, merged, read_record
from gateway.observability.outcome import OK, TOOL_ERROR
from session_store import MemoryBackend, Principal, Session, StoreUnavailable
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement

SESSION = a_session(FakeClock())


def call(tool: str, took_ms: float = 5.0, *, failed: bool = False, method: str = "tools/call") -> EndedCall:
    outcome = TOOL_ERROR if failed else OK
    return EndedCall(0.0, method, tool, "s", outcome, took_ms / 1_000, SESSION, "")


def of(subject: str) -> Session:
    return msgspec.structs.replace(SESSION, principal=Principal(issuer="i", subject=subject))


@requirement("ops.history")
@pytest.mark.anyio
async def test_minutes_and_ten_minutes_are_written_and_merged() -> None:
    backend = MemoryBackend()
    figures, other = Figures(backend.history, "r1"), Figures(backend.history, "r2")
    for minute in range(12):
        at = 6_000.0 + 60 * minute
        for one in (figures, other):
            one.tick(at, 3)
            one.take_calls([call("a"), call("a", 50.0, failed=True), call("", 9e6, method="subscriptions/listen")])
            one.count(SESSION, calls=3, failed=1, opened=1)
            await one.flush()
            await one.flush()
    short = await backend.history.read(60, 6_000, 6_720)
    assert len(short) == 24
    total = merged(read_record(record.body) for record in short)
    tool = next(row for row in total.tools if row.name == "a")
    assert (tool.server, tool.calls, tool.failed, sum(tool.counts)) == ("s", 48, 24, 48)
    listened = next(row for row in total.tools if row.name != "a")
    assert (listened.calls, listened.total_s, listened.counts) == (24, 0.0, [])
    [who] = total.principals
    assert (who.calls, who.failed, who.sessions) == (72, 24, 24)
    long = await backend.history.read(600, 6_000, 7_200)
    assert [(record.at, record.replica) for record in long] == [
        (6_000, "r1"),
        (6_000, "r2"),
        (6_600, "r1"),
        (6_600, "r2"),
    ]
    again = merged(read_record(record.body) for record in long)
    same = next(row for row in again.tools if row.name == "a")
    assert (same.calls, same.failed, same.counts) == (tool.calls, tool.failed, tool.counts)
    assert same.total_s == pytest.approx(tool.total_s) and again.principals == total.principals
    assert read_record(long[0].body).live == 3


@requirement("ops.history")
def test_names_of_clients_are_bounded() -> None:
    figures = Figures(MemoryBackend().history, "r1")
    figures.tick(6_000.0, 0)
    figures.take_calls([call(f"{n}\x1b" * 200) for n in range(MOST_TOOLS + 50)])
    for n in range(MOST_WHO + 50):
        figures.count(of(f"u{n}"), calls=1)
    record = figures.present()
    assert len(record.tools) == MOST_TOOLS + 1 and record.tools[-1].name == OTHERS and record.tools[-1].calls == 50
    assert len(record.principals) == MOST_WHO + 1 and record.principals[-1].calls == 50
    assert all("\x1b" not in row.name and len(row.name) < 600 for row in record.tools)


@requirement("ops.history")
@pytest.mark.anyio
async def test_nothing_is_written_of_nothing_and_an_outage_loses_nothing() -> None:
    backend, is_away = MemoryBackend(), True
    written: list[int] = []

    class Store:
        async def write(self, step_s: int, record: object) -> None:
            if is_away:
                raise StoreUnavailable("away")
            written.append(step_s)

    figures = Figures(Store(), "r1")  # type: ignore[arg-type]  # a fake
    for minute in range(10):
        figures.tick(6_000.0 + 60 * minute, 0)
        await figures.flush()
    assert not written and await backend.history.read(60, 0, 10_000) == []
    figures.take_calls([call("a")])
    for minute in range(10, 13):
        figures.tick(6_000.0 + 60 * minute, 0)
        with pytest.raises(StoreUnavailable):
            await figures.flush()
    is_away = False
    await figures.flush()
    assert sorted(written) == [60, 600]
    assert read_record(b"{") == read_record(b"{}")
