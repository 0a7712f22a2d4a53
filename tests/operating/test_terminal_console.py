"""The terminal console at a real gateway, driven by its keys."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, RichLog, Static

from gateway.admin.operators import Page, SessionQuery
from gateway.cli import terminal_console, terminal_screens
from gateway.cli.rest_client import RestClient
from gateway.cli.terminal_console import TerminalConsole
from gateway.cli.terminal_screens import Confirm, SessionScreen
from tests.operating.conftest import ONLY_DEMO, OPERATOR, Cli, replica
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway
from tests.support.hostile_text import HOSTILE, STEERING
from tests.support.mcp_clients import Legacy
from tests.support.redis_server import RunningRedis

pytestmark = pytest.mark.anyio

Pair = tuple[RunningGateway, RunningGateway]
WITHIN_S = 15.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def console(url: str) -> AsyncIterator[Pilot[None]]:
    """The console at that gateway, on a screen of 160 by 40."""
    async with RestClient(url, OPERATOR).open() as source:
        app = TerminalConsole(source, url)
        async with app.run_test(size=(160, 40)) as pilot:
            yield pilot


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await pilot.pause(0.05)


def keys(pilot: Pilot[None], name: str) -> list[str]:
    table = pilot.app.query_one(f"#{name}-table", DataTable)
    return [str(key.value) for key in table.rows]


def session_text(pilot: Pilot[None]) -> str:
    return str(pilot.app.screen.query_one("#session", Static).content)


async def find(pilot: Pilot[None], words: str, session: str) -> None:
    """Search, until only that session is listed."""
    await pilot.press("slash", *words, "enter")
    await until(pilot, lambda: keys(pilot, "sessions") == [session])


@requirement("ops.ui")
async def test_a_failing_session_is_found_looked_into_and_ended(pair: Pair, http: httpx.Client) -> None:
    client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name="terminal")
    client.tool("fail")
    session = client.session[:8]
    async with console(pair[1].base) as pilot:
        await pilot.press("f")
        await find(pilot, "terminal", session)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, SessionScreen))
        await until(pilot, lambda: "no route to the database" in session_text(pilot))
        assert "tools/call fail" in session_text(pilot) and "abcdefgh12345678" not in session_text(pilot)
        await pilot.press("x")
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
        await pilot.press("n")
        assert client.tool("pid").status_code == 200, "nothing ends before the question is answered"
        await pilot.press("x")
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: not isinstance(pilot.app.screen, SessionScreen | Confirm))
        await until(pilot, lambda: keys(pilot, "sessions") == [])
    assert client.tool("pid").status_code == 404


@requirement("ops.ui")
async def test_what_strangers_say_is_text(pair: Pair, http: httpx.Client) -> None:
    client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name=f"[red]markup[/] {HOSTILE}")
    session = client.session[:8]
    async with console(pair[0].base) as pilot:
        await find(pilot, session, session)
        row = pilot.app.query_one("#sessions-table", DataTable).get_row(session)
        assert "[red]markup[/]" in row[2].plain
        assert not any(character in cell.plain for cell in row for character in STEERING)
        await pilot.press("x")
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: keys(pilot, "sessions") == [])


@requirement("ops.ui")
async def test_events_come_as_they_happen(pair: Pair, http: httpx.Client) -> None:
    async with console(pair[0].base) as pilot:
        await pilot.press("e")
        client = Legacy(f"{pair[1].base}/servers/demo/mcp", http).open(name="tailed")
        log = pilot.app.query_one("#log", RichLog)
        await until(pilot, lambda: any(client.session[:8] in line.text for line in log.lines))
    client.delete()


@requirement("ops.ui")
async def test_a_replica_is_drained_and_admitted(pair: Pair, own_redis: RunningRedis) -> None:
    one = pair[0]
    with replica(own_redis, servers=ONLY_DEMO) as other:
        async with RestClient(one.base, OPERATOR).open() as source:
            [name] = [report.replica for report in await source.replicas() if report.pid == other.pid]
        async with console(one.base) as pilot:
            await pilot.press("r")
            await until(pilot, lambda: name in keys(pilot, "replicas"))
            table = pilot.app.query_one("#replicas-table", DataTable)
            while table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value != name:
                await pilot.press("j")
            await pilot.press("d")
            await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
            await pilot.press("y")
            await until(pilot, lambda: table.get_row(name)[1].plain == "draining")
            await pilot.press("a")
            await until(pilot, lambda: table.get_row(name)[1].plain == "ready")


@requirement("ops.ui")
async def test_a_gateway_that_goes_away_is_said_and_the_console_stays(own_redis: RunningRedis) -> None:
    with replica(own_redis, servers=ONLY_DEMO) as gateway:
        async with console(gateway.base) as pilot:
            await until(pilot, lambda: bool(keys(pilot, "replicas")))
            gateway.kill()
            status = pilot.app.query_one("#status", Static)
            await until(pilot, lambda: "cannot be reached" in str(status.content))


@requirement("ops.ui")
async def test_a_wrong_key_is_said_before_the_screen_is_taken(pair: Pair, cli: Cli) -> None:
    refused = cli("ui", url=pair[0].base, key="wrong")
    assert refused.returncode == 2 and "MCP_GATEWAY_ADMIN_KEY is not a key" in refused.stderr
    assert cli("ui").returncode == 2


@requirement("ops.ui")
async def test_a_list_that_comes_when_the_console_has_been_closed_is_dropped(pair: Pair) -> None:
    async with console(pair[0].base) as pilot:
        assert isinstance(pilot.app, TerminalConsole)
        await pilot.app.query("#lists, #status").remove()
        pilot.app.look()
        *_, reading = (worker for worker in pilot.app.workers if worker.group == terminal_screens.READING)
        await reading.wait()


class Partial(RestClient):
    """A gateway that does not know all sessions yet."""

    async def sessions(self, query: SessionQuery) -> Page:
        return Page(sessions=[], unanswered=1, is_reading=True)


@requirement("ops.ui")
async def test_a_list_that_is_not_complete_says_so(pair: Pair) -> None:
    async with Partial(pair[0].base, OPERATOR).open() as source:
        async with TerminalConsole(source, pair[0].base).run_test(size=(200, 40)) as pilot:
            status = pilot.app.query_one("#status", Static)
            await until(pilot, lambda: "0 sessions" in str(status.content))
            assert "1 replica did not answer; still reading" in str(status.content)


class Slow(RestClient):
    """Answers later than the console asks again."""

    async def sessions(self, query: SessionQuery) -> Page:
        await asyncio.sleep(0.5)
        return await super().sessions(query)


@requirement("ops.ui")
async def test_a_reading_that_takes_longer_than_the_time_between_two_is_shown(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_console, "EVERY_S", 0.05)
    async with Slow(pair[0].base, OPERATOR).open() as source:
        async with TerminalConsole(source, pair[0].base).run_test(size=(160, 40)) as pilot:
            await until(pilot, lambda: bool(keys(pilot, "replicas")))


@requirement("ops.ui")
async def test_control_c_ends_it(pair: Pair) -> None:
    async with console(pair[0].base) as pilot:
        await pilot.press("ctrl+c")
        await until(pilot, lambda: not pilot.app.is_running)
