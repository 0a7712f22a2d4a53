"""The console in a terminal: lists of sessions and replicas, and the events as they happen. Needs textual."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar, Final

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Input, RichLog, Static, TabbedContent, TabPane

from gateway.admin.formatting import amount, span
from gateway.admin.operators import Only, OperatorError, Operators, SessionQuery
from gateway.admin.reports import ReplicaReport, SessionRow
from gateway.cli.output import missing_from
from gateway.cli.terminal_screens import EVERY_S, READING, Confirm, SessionScreen, event_line, is_reading, plain
from gateway.observability.visible import visible_line

__all__ = ["TerminalConsole"]

Work = Callable[[], Awaitable[str]]

_ROWS: Final = 200
_EVENTS: Final = 1_000
_ONLY: Final[tuple[Only, ...]] = ("all", "failing", "busy")
_SESSION_COLUMNS: Final = (
    *("session", "principal", "client", "endpoint", "age", "idle", "calls", "failed", "last failure"),
)
_REPLICA_COLUMNS: Final = ("replica", "state", "address", "sessions", "processes", "in flight", "memory", "up")


class TerminalConsole(App[None]):
    """Shows what `source` knows, read again every two seconds."""

    TITLE = "MCP Session Gateway"
    CSS = """
    #status { height: 1; padding: 0 1; background: $panel; }
    #find { display: none; }
    #find.open { display: block; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "show('sessions')", "Sessions"),
        Binding("r", "show('replicas')", "Replicas"),
        Binding("e", "show('events')", "Events"),
        Binding("slash", "find", "Find"),
        Binding("f", "only", "All/failing/busy"),
        Binding("x", "end", "End"),
        Binding("d", "drain", "Drain"),
        Binding("a", "admit", "Admit"),
        Binding("escape", "close_find", "Close", show=False),
        Binding("j", "move(1)", "Down", show=False),
        Binding("k", "move(-1)", "Up", show=False),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(self, source: Operators, url: str) -> None:
        super().__init__()
        self._source = source
        self._url = url
        self._query = ""
        self._only: Only = "all"

    def compose(self) -> ComposeResult:
        yield Static(id="status", markup=False)
        yield Input(placeholder="id, principal, client, workspace, server …", id="find")
        with TabbedContent(id="lists"):
            with TabPane("Sessions", id="sessions"):
                yield DataTable[Text](id="sessions-table", cursor_type="row", zebra_stripes=True)
            with TabPane("Replicas", id="replicas"):
                yield DataTable[Text](id="replicas-table", cursor_type="row", zebra_stripes=True)
            with TabPane("Events", id="events"):
                yield RichLog(id="log", max_lines=_EVENTS, wrap=False, markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._table("sessions").add_columns(*_SESSION_COLUMNS)
        self._table("replicas").add_columns(*_REPLICA_COLUMNS)
        self._table("sessions").focus()
        self.look()
        self.set_interval(EVERY_S, self._look_on)
        self.run_worker(self._follow(), group="events")

    def look(self) -> None:
        """Read the lists again. A reading that is under way is given up."""
        self.run_worker(self._look(), group=READING, exclusive=True)

    def _look_on(self) -> None:
        if not is_reading(self):
            self.look()

    async def _look(self) -> None:
        try:
            query = SessionQuery(query=self._query, only=self._only, limit=_ROWS)
            page = await self._source.sessions(query)
            replicas = await self._source.replicas()
        except OperatorError as error:
            self._say(f"{self._url}: {error}", is_bad=True)
            return
        with suppress(NoMatches):  # it was closed while the gateway was asked
            _fill(self._table("sessions"), [(row.session, _session_cells(row)) for row in page.sessions])
            _fill(self._table("replicas"), [(one.replica, _replica_cells(one)) for one in replicas])
        sessions = f"{_ROWS}+ sessions" if page.after else _counted(len(page.sessions), "session")
        found = f' like "{self._query}"' if self._query else ""
        counts = f"{sessions} ({self._only}){found}  {_counted(len(replicas), 'replica')}"
        self._say(f"{self._url}  {counts}{missing_from(page)}")

    async def _follow(self) -> None:
        log = self.query_one("#log", RichLog)
        try:
            for event in reversed(await self._source.events(100)):
                log.write(event_line(event))
            async for event in self._source.follow():
                log.write(event_line(event))
        except OperatorError as error:
            log.write(plain(error, "red"))
        log.write(Text("The stream of events has ended: that gateway drains or stops.", style="red"))

    def _say(self, text: str, *, is_bad: bool = False) -> None:
        with suppress(NoMatches):  # as above
            self.query_one("#status", Static).update(plain(text, "red" if is_bad else ""))

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}-table", DataTable)

    @property
    def _shown(self) -> str:
        return self.query_one("#lists", TabbedContent).active

    def _chosen(self, name: str) -> str:
        """The row of a list on which the cursor is; empty if the list is not shown, or has none."""
        table = self._table(name)
        if self._shown != name or not table.row_count:
            return ""
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value or ""

    # -- keys

    def action_show(self, name: str) -> None:
        lists = self.query_one("#lists", TabbedContent)
        lists.active = name
        (self.query_one("#log", RichLog) if name == "events" else self._table(name)).focus()

    def action_move(self, rows: int) -> None:
        if self._shown != "events":
            table = self._table(self._shown)
            table.move_cursor(row=table.cursor_row + rows)

    def action_only(self) -> None:
        self._only = _ONLY[(_ONLY.index(self._only) + 1) % len(_ONLY)]
        self.look()

    def action_find(self) -> None:
        find = self.query_one("#find", Input)
        find.add_class("open")
        find.focus()

    def action_close_find(self) -> None:
        self.query_one("#find", Input).remove_class("open")
        self.action_show("sessions")

    @on(Input.Submitted, "#find")
    def found(self, event: Input.Submitted) -> None:
        """Search for what was typed."""
        self._query = event.value.strip()
        self.action_close_find()
        self.look()

    @on(DataTable.RowSelected, "#sessions-table")
    def opened(self, event: DataTable.RowSelected) -> None:
        """Look into a session."""
        if event.row_key.value:
            self.push_screen(SessionScreen(self._source, event.row_key.value), lambda _: self.look())

    def action_end(self) -> None:
        if session := self._chosen("sessions"):
            question = f"End session {session}? Its processes stop at once, and its state is deleted."
            self._ask(question, "End it", lambda: self._source.end(session), "ended")

    def action_drain(self) -> None:
        if replica := self._chosen("replicas"):
            question = f"Drain replica {replica}? It hands its sessions to the others and takes no new ones."
            self._ask(question, "Drain it", lambda: self._source.drain(replica), "drained")

    def action_admit(self) -> None:
        if replica := self._chosen("replicas"):
            self.run_worker(self._do(lambda: self._source.admit(replica), "admitted"), group="do")

    def _ask(self, question: str, answer: str, work: Work, done: str) -> None:
        """Do something if the operator is sure."""

        def answered(is_sure: bool | None) -> None:
            if is_sure:
                self.run_worker(self._do(work, done), group="do")

        self.push_screen(Confirm(question, answer), answered)

    async def _do(self, work: Work, done: str) -> None:
        try:
            self.notify(visible_line(f"{done} {await work()}"), markup=False)
        except OperatorError as error:
            self.notify(visible_line(str(error)), severity="error", markup=False)
        self.look()


def _fill(table: DataTable[Text], rows: list[tuple[str, list[Text]]]) -> None:
    """Put rows in the place of those before. The cursor stays on its row, if that is still there."""
    before = None
    if table.row_count:
        before = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
    row, top = table.cursor_row, table.scroll_y
    table.clear()
    for key, cells in rows:
        table.add_row(*cells, key=key)
    if rows:
        keys = [key for key, _ in rows]
        table.move_cursor(row=keys.index(before) if before in keys else min(row, len(rows) - 1), animate=False)
        table.scroll_to(y=top, animate=False)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _session_cells(row: SessionRow) -> list[Text]:
    # The reason has to be seen on a terminal of 120 columns.
    last = "".join(f"{one.name.removeprefix('tools/call ')}: {one.why or one.outcome}" for one in row.failures[:1])
    failed = plain(row.failed, "red" if row.failed else "")
    facts = [plain(value) for value in (row.session, row.principal, row.client, row.endpoint)]
    return [*facts, plain(span(row.age_s)), plain(span(row.idle_s)), plain(row.calls), failed, plain(last)]


def _replica_cells(one: ReplicaReport) -> list[Text]:
    if one.silent:
        return [plain(one.replica), plain("no answer", "red"), plain(one.address), *(plain("") for _ in range(5))]
    state = plain("draining") if one.draining else plain("ready") if one.ready else plain("not ready", "red")
    counts = [plain(value) for value in (one.sessions, one.processes, one.in_flight)]
    name = f"{one.replica}{' *' if one.here else ''}"
    sizes = [plain(amount(one.memory_bytes)), plain(span(one.up_s))]
    return [plain(name), state, plain(one.address or "alone"), *counts, *sizes]
