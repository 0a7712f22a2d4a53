"""Screens of the terminal console that lie above its lists: one session, and a question before something ends.

All texts are those of strangers: they are shown as plain text on one line each, and never as markup.
"""

from contextlib import suppress
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.css.query import NoMatches
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen
from textual.widgets import Button, Footer, Label, Static

from gateway.admin.formatting import amount, clock, span
from gateway.admin.operators import OperatorError, Operators
from gateway.admin.reports import SessionRow
from gateway.observability.visible import visible_line

__all__ = ["EVERY_S", "READING", "Confirm", "SessionScreen", "event_line", "is_reading", "plain"]

EVERY_S: Final = 2.0
READING: Final = "reading"
"""The workers that read what is shown."""

_LATEST_EVENTS: Final = 30


def plain(value: object, style: str = "") -> Text:
    """A text of strangers as a cell or a line."""
    return Text(visible_line(str(value)), style=style, no_wrap=True, overflow="ellipsis")


def is_reading(screen: DOMNode) -> bool:
    """True if a reading of that screen is under way. Begun anew every two seconds, none that takes longer would end."""
    return any(each.node is screen and each.group == READING and not each.is_finished for each in screen.workers)


def event_line(event: dict[str, Any]) -> Text:
    """An audit event on one line."""
    names = ("session", "principal", "tool", "outcome", "reason")
    parts = [clock(event["at"]), event["event"], *(event.get(name, "") for name in names)]
    bad = event["event"] == "refused" or event.get("outcome", "ok") not in ("ok", "")
    return plain("  ".join(str(part) for part in parts if part), "red" if bad else "")


class Confirm(ModalScreen[bool]):
    """Asks before something is done that cannot be taken back."""

    CSS = """
    Confirm { align: center middle; }
    #question { width: 64; height: auto; padding: 1 2; border: round $warning; background: $surface; }
    #question Horizontal { height: auto; margin-top: 1; }
    #question Button { margin-right: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "no", "No"), ("n", "no", "No"), ("y", "yes", "Yes")]

    def __init__(self, question: str, answer: str) -> None:
        super().__init__()
        self._question = question
        self._answer = answer

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="question"):
            yield Label(Text(visible_line(self._question)))
            with Horizontal():
                yield Button("No (n)", id="no")
                yield Button(f"{self._answer} (y)", id="yes", variant="error")

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_yes(self) -> None:
        self.dismiss(True)

    def action_no(self) -> None:
        self.dismiss(False)


class SessionScreen(Screen[bool]):
    """One session, read again every two seconds. Its result: whether the session was ended here."""

    CSS = "SessionScreen Static { padding: 0 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("q", "back", "Back", show=False),
        Binding("x", "end", "End session"),
    ]

    def __init__(self, source: Operators, session: str) -> None:
        super().__init__()
        self._source = source
        self.session = session

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="session")
        yield Footer()

    def on_mount(self) -> None:
        self.look()
        self.set_interval(EVERY_S, self.look)

    def look(self) -> None:
        """Read the session again, unless that is under way."""
        if not is_reading(self):
            self.run_worker(self._look(), group=READING)

    async def _look(self) -> None:
        try:
            row = await self._source.session(self.session)
            events = await self._source.events(_LATEST_EVENTS, self.session)
        except OperatorError as error:
            self._show(Text(f"{visible_line(str(error))}\n\nEsc goes back.", style="red"))
            return
        self._show(_told(row, events))

    def _show(self, text: Text) -> None:
        with suppress(NoMatches):  # it was closed while the gateway was asked
            self.query_one("#session", Static).update(text)

    def action_back(self) -> None:
        self.dismiss(False)

    def action_end(self) -> None:
        question = f"End session {self.session}? Its processes stop at once, and its state is deleted."
        self.app.push_screen(Confirm(question, "End it"), self._answered)

    def _answered(self, is_sure: bool | None) -> None:
        if is_sure:
            self.run_worker(self._end(), group="end")

    async def _end(self) -> None:
        try:
            await self._source.end(self.session)
        except OperatorError as error:
            self.notify(visible_line(str(error)), severity="error", markup=False)
            return
        self.dismiss(True)


def _told(row: SessionRow, events: list[dict[str, Any]]) -> Text:
    """All that is known of a session."""
    lines = [Text(f"Session {row.session}", style="bold"), Text()]
    facts = {
        "principal": row.principal,
        "client": row.client or "unnamed",
        "endpoint": f"{row.endpoint} ({row.era})",
        "workspace": row.workspace or "none",
        "trust": row.trust,
        "replica": row.owner or "this one",
        "age": f"{span(row.age_s)}, idle {span(row.idle_s)}, ends in {span(row.expires_in_s)}",
        "calls": f"{row.calls}, failed {row.failed}, in flight {row.in_flight}",
        "state": amount(row.state_bytes),
    }
    lines += [Text.assemble((f"{name:>10}  ", "dim"), plain(value)) for name, value in facts.items()]
    if row.failures:
        lines += [Text(), Text("Failures", style="bold")]
        lines += [
            plain(f"{clock(one.at)}  {one.server}  {one.name}  {one.outcome}  {one.why}", "red") for one in row.failures
        ]
    if row.refused:
        lines += [Text(), Text("Refused by sandboxes", style="bold")]
        lines += [plain(f"{one.server}  {one.kind} {one.what}  {one.why}  {one.count} times") for one in row.refused]
    for process in row.processes:
        pid = f"process {process.pid}" if process.pid else "no process"
        head = f"{process.server}: {pid}, {amount(process.memory_bytes)}, {process.restarts} restarts"
        lines += [Text(), plain(head, "bold"), *(plain(f"  {line}") for line in process.stderr)]
    lines += [Text(), Text("Events", style="bold"), *(event_line(event) for event in events)]
    return Text("\n").join(lines)
