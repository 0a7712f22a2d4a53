"""Counted minute by minute, with a bound for names that come from clients."""

import msgspec
import pytest

from gateway.observability.request_outcomes import OK, TOOL_ERROR, EndedCall
from gateway.observability.usage_counts import (
    MOST_CLIENTS_EACH,
    MOST_TOOLS,
    MOST_WHO,
    OTHERS,
    UNLISTED,
    FigureRecord,
    Figures,
    merged,
    read_record,
)
from session_store import MemoryBackend, Principal, Session, StoreUnavailable
from session_store.session import ClientFacts
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement

pytestmark = requirement("ops.history")

SESSION = a_session(FakeClock())


def call(tool: str, took_ms: float = 5.0, *, failed: bool = False, method: str = "tools/call") -> EndedCall:
    outcome = TOOL_ERROR if failed else OK
    return EndedCall(0.0, method, tool, "s", outcome, took_ms / 1_000, SESSION, "")


def of(subject: str, client: str = "") -> Session:
    who = Principal(issuer="i", subject=subject)
    return msgspec.structs.replace(SESSION, principal=who, client=ClientFacts(name=client))


async def test_minutes_and_ten_minutes_are_written_and_merged() -> None:
    backend = MemoryBackend()
    figures, other = Figures(backend.history, "r1"), Figures(backend.history, "r2")
    for minute in range(12):
        at = 6_000.0 + 60 * minute
        for one in (figures, other):
            one.tick(at, 3)
            one.add_calls([call("a"), call("a", 50.0, failed=True), call("", 9e6, method="subscriptions/listen")])
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
    places = [(record.at, record.replica) for record in long]
    assert places == [(6_000, "r1"), (6_000, "r2"), (6_600, "r1"), (6_600, "r2")]
    again = merged(read_record(record.body) for record in long)
    same = next(row for row in again.tools if row.name == "a")
    assert (same.calls, same.failed, same.counts) == (tool.calls, tool.failed, tool.counts)
    assert same.total_s == pytest.approx(tool.total_s) and again.principals == total.principals
    assert read_record(long[0].body).live == 3


class Recorder(Figures):
    """The figures of one replica, which writes them to a store in memory."""

    def __init__(self) -> None:
        self.history = MemoryBackend().history
        super().__init__(self.history, "r1")
        self.tick(6_000.0, 0)

    async def written(self, step_s: int = 60) -> FigureRecord:
        await self.flush()
        return merged(read_record(record.body) for record in await self.history.read(step_s, 0, 10_000))


async def test_names_of_clients_are_bounded() -> None:
    figures = Recorder()
    for more in (50, 0):
        figures.add_calls([call(f"{n}\x1b" * 200) for n in range(MOST_TOOLS + more)])
    for n in range(MOST_WHO + 50):
        figures.count(of(f"u{n}"), calls=1)
    record = await figures.written()
    assert len(record.tools) == MOST_TOOLS + 1 and record.tools[-1].name == OTHERS and record.tools[-1].calls == 50
    assert all(row.calls == 2 for row in record.tools[:-1]), "a name that is cut is known again"
    assert len(record.principals) == MOST_WHO + 1 and record.principals[-1].calls == 50
    assert all("\x1b" not in row.name and len(row.name) <= 128 for row in record.tools)


async def test_names_that_mean_nothing_take_no_room() -> None:
    """Of tools that a server does not list, and of methods that MCP does not define."""
    figures = Recorder()
    figures.add_calls([msgspec.structs.replace(call(f"t{n}"), is_listed=False) for n in range(MOST_TOOLS + 50)])
    figures.add_calls([call("", method=f"x/{n}") for n in range(MOST_TOOLS + 50)])
    figures.add_calls([call("real"), call("", method="tools/list")])
    found = {(row.server, row.name): row.calls for row in (await figures.written()).tools}
    assert found == {("s", UNLISTED): 2 * (MOST_TOOLS + 50), ("s", "real"): 1, ("s", "tools/list"): 1}


async def test_one_principal_has_a_share_of_the_names_of_clients() -> None:
    """In each minute, and in ten minutes together."""
    figures = Recorder()
    for minute in range(5):
        figures.tick(6_000.0 + 60 * minute, 0)
        noisy = [of("noisy", f"client {minute} {n}") for n in range(MOST_WHO + 50)]
        for session in (*noisy, of("quiet", "ide"), of("noisy", "ide")):
            figures.count(session, calls=1)
        await figures.flush()
    for step_s, names in ((60, 5 * MOST_CLIENTS_EACH), (600, MOST_CLIENTS_EACH)):
        clients = {row.name: row.calls for row in (await figures.written(step_s)).clients}
        assert clients.pop("ide") == 10
        assert clients.pop(OTHERS) == 5 * (MOST_WHO + 50) - names and len(clients) == names


async def test_nothing_is_written_of_nothing_and_an_outage_loses_nothing() -> None:
    is_away = True
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
    figures.add_calls([call("a")])
    for minute in range(10, 13):
        figures.tick(6_000.0 + 60 * minute, 0)
        with pytest.raises(StoreUnavailable):
            await figures.flush()
    is_away = False
    await figures.flush()
    assert sorted(written) == [60, 600]
    assert read_record(b"{") == read_record(b"{}")
