"""`make hostile`: every hostile server under every profile, and what became of it. 1 when one got through.

Under `off` it is the other way round: an attack that fails there shows nothing, and is counted.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.hostile.home import Home
from tests.hostile.kernel_features import missing_feature
from tests.hostile.namespaces import enter, is_inside, missing
from tests.hostile.outside import Outside
from tests.hostile.rows import ALL, QUICK, Row
from tests.hostile.rows.row import Outcome
from tests.hostile.stage import NOBODY, Local, Stage

_USERS: Final = {"nobody": NOBODY, "root": 0}
_WIDTH: Final = 230


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one row did under one profile, as one user.

    `verdict` is one of `held`, `open` (got through, and may), `OPEN` (got through, and must not), `works`, `BROKEN`
    (refused, and must not be), `unseen` (held, but the console does not show it), `shows nothing` (fails without walls
    too), `not here` (this machine lacks what refuses it).
    """

    row: str
    profile: str
    user: str
    verdict: str
    told: str
    seen: bool
    broken: list[str]
    p99_ms: float
    failed: int
    calls: int
    took_s: float

    @property
    def is_bad(self) -> bool:
        return self.verdict in ("OPEN", "BROKEN", "shows nothing", "unseen")


def tried(stage: Stage, user: str, rows: Sequence[Row]) -> Iterator[Tried]:
    """Try these rows, one after the other. Each begins with a whole world. What the console shows is looked at when all
    are through: an event may come a second after what it tells of."""
    shown: list[tuple[Tried, Callable[[], bool]]] = []
    for row in rows:
        stage.outside.forget()
        stage.local.heard.clear()
        facts = {**stage.facts(), **row.facts_on(stage)}
        began = time.monotonic()
        with stage.watched() as felt:
            called = stage.attack(row.server, row.attack, facts, row.way)
            outcome = row.refused(stage, called, facts)
        took = time.monotonic() - began
        fatal = stage.gateway.process.poll() is not None
        broken = stage.mend(facts["before"])
        harmed = stage.profile != "off" and (felt.failed > 0 or felt.p99() > row.p99_s or bool(broken))
        one = Tried(
            row=row.name,
            profile=stage.profile,
            user=user,
            verdict=_verdict(row, stage.profile, user, outcome, harmed),
            seen=True,
            told=outcome.told,
            broken=broken,
            p99_ms=felt.p99() * 1000,
            failed=0 if fatal else felt.failed,
            calls=len(felt.times),
            took_s=took,
        )
        if row.seen and stage.profile != "off" and not fatal:
            shown.append((one, _shows(stage, row, facts)))
        else:
            yield one
    for one, is_shown in shown:
        seen = stage.eventually(is_shown, 3.0)
        yield one if seen else replace(one, seen=False, verdict="unseen" if one.verdict == "held" else one.verdict)


def _shows(stage: Stage, row: Row, facts: Mapping[str, Any]) -> Callable[[], bool]:
    """Whether the console shows of the attacker's session what it must show of the row."""
    session = stage.attacker
    what = row.seen.partition(" ")[2].format_map(facts)
    # Under `strict` the name is refused, so no address is tried.
    words = (what, *([facts["name"]] if "name" in facts and stage.profile == "strict" else ()))
    return lambda: any(word in reason for reason in stage.blocked(session) for word in words)


def _verdict(row: Row, profile: str, user: str, outcome: Outcome, harmed: bool) -> str:
    held, told = outcome.held, outcome.told
    lacking = missing_feature(row.needs)
    if profile == "off":
        if "not implemented" in told:
            return "not here"
        if held and not row.already and not (row.root and user != "root"):
            return "shows nothing"
        return "held" if held else "OPEN" if row.already and user != "root" else "open"
    if harmed:
        return "OPEN"
    if profile in row.works:
        return "works" if not held else "not here" if lacking else "BROKEN"
    if held:
        return "held"
    if lacking:
        return "not here"
    return "OPEN" if row.must_refuse(profile) else "open"


def _table(found: Sequence[Tried], rows: Sequence[Row]) -> Table:
    columns = list(dict.fromkeys((each.profile, each.user) for each in found))
    table = Table(
        "behaviour", "server", *(f"{profile}\n{user}" for profile, user in columns), "seen", "needs", show_lines=True
    )
    by_place = {(each.row, each.profile, each.user): each for each in found}
    for row in rows:
        cells = [_cell(by_place.get((row.name, *column))) for column in columns]
        what = Text(f"{row.name}: {row.what}")
        if row.already:
            what.append(f" (without walls: {row.already})", "dim")
        if row.root:
            what.append(f" (root only: {row.root})", "dim")
        table.add_row(what, row.server, *cells, row.seen or "-", missing_feature(row.needs) or row.needs or "-")
    return table


def _cell(tried: Tried | None) -> Text:
    if tried is None:
        return Text("-")
    style = "bold red" if tried.is_bad else "yellow" if tried.verdict == "open" and tried.profile != "off" else ""
    text = Text(f"{tried.verdict}  {tried.told}", style)
    if tried.broken:
        text.append(f"\nbroke: {', '.join(tried.broken)}")
    text.append(f"\nothers p99 {tried.p99_ms:.0f} ms" + (f", {tried.failed} failed" if tried.failed else ""), "dim")
    return text


def _inside(arguments: argparse.Namespace) -> int:
    rows = [row for row in ALL if arguments.only in row.name and (row.name in QUICK or not arguments.quick)]
    found: list[Tried] = []
    began = time.monotonic()
    Home.cover()
    outside, local = Outside(), Local()
    outside.start()
    for profile in arguments.profile:
        for user in arguments.user:
            stage = Stage(profile, _USERS[user], Home(_USERS[user]), outside, local)
            stage.start()
            try:
                for each in tried(stage, user, rows):
                    found.append(each)
                    print(f"{profile} {user} {each.verdict:14} {each.row}: {each.told}", file=sys.stderr)
            finally:
                stage.stop()
    if arguments.json:
        print(json.dumps([asdict(each) for each in found]))
    else:
        console = Console(width=_WIDTH)
        console.print(_table(found, rows))
        bad = [each for each in found if each.is_bad]
        for each in bad:
            console.print(
                f"{each.verdict}: {each.row}, {each.profile}, {each.user}: {each.told}", highlight=False, markup=False
            )
        console.print(
            f"{len(rows)} rows in {time.monotonic() - began:.0f} s, [bold]{len(bad)} bad[/].", highlight=False
        )
    return int(any(each.is_bad for each in found))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run hostile servers in the sandbox.")
    parser.add_argument("--profile", action="append", choices=("off", "standard", "strict"))
    parser.add_argument("--user", action="append", choices=tuple(_USERS), help="of the gateway (both)")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with that in their name")
    parser.add_argument("--quick", action="store_true", help="the rows of `make test`")
    parser.add_argument("--json", action="store_true", help="one JSON list on standard output")
    if not is_inside():
        parser.parse_args()
        if reason := missing():
            print(f"hostile servers cannot run here: {reason}", file=sys.stderr)
            return 2
        return enter(sys.argv[1:])
    arguments = parser.parse_args()
    arguments.profile = arguments.profile or ["off", "standard", "strict"]
    arguments.user = arguments.user or list(_USERS)
    return _inside(arguments)


if __name__ == "__main__":
    sys.exit(main())
