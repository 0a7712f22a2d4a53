"""`make attack`: every attack, what came back, what others felt meanwhile. 1 when one got through."""

import argparse
import sys
import time
from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.attack.attack_table import attacks, outcomes
from tests.attack.bystander import experiment
from tests.attack.live.rows import Outcome
from tests.attack.live.run import Tried, live_rows

_WIDTH: Final = 220


def live_table(rows: Iterable[Tried]) -> tuple[Table, int]:
    """What was sent to a gateway that ran, and how many got through."""
    table = Table("#", "sent", "direct", "behind nginx", "behind HAProxy", "others, p50 / p99 in ms", show_lines=True)
    open_ones = 0
    for row in rows:
        open_ones += row.is_open
        nginx = [(name, row.outcomes[name]) for name in ("nginx", "nginx+ws") if name in row.outcomes]
        table.add_row(
            str(row.attack.item),
            row.attack.sent,
            _cell([("", row.outcomes["direct"])] if "direct" in row.outcomes else []),
            _cell([("with the WebSocket map: " if name != "nginx" else "", outcome) for name, outcome in nginx]),
            _cell([("", row.outcomes["haproxy"])] if "haproxy" in row.outcomes else []),
            _felt(row),
        )
    return table, open_ones


def _cell(outcomes: list[tuple[str, Outcome]]) -> Text:
    """What came back at a door; a dash where the door makes no difference."""
    lines = [
        Text(f"{'held' if outcome.held else 'OPEN'}  {name}{outcome.came_back}", "" if outcome.held else "bold red")
        for name, outcome in outcomes
    ]
    return Text("\n").join(lines) if lines else Text("-")


def _felt(row: Tried) -> Text:
    lines = [f"{name}: {felt}" for name, felt in row.felt.items()]
    return Text("\n".join(lines), "bold red" if row.stalled else "")


def tests_table() -> tuple[Table, int]:
    """What tests try, and how many of the attacks got through or were not tried."""
    rows = attacks()
    found = outcomes([test for row in rows for test in row["tests"]])
    table = Table("#", "attack", "outcome", "test", box=None)
    open_ones = 0
    for row in sorted(rows, key=lambda row: row.get("item", 0)):
        came = [found.get(test, "not tried") for test in row["tests"]]
        # A machine that cannot run containers says so; then the row's other tests have to hold.
        open_ones += any(outcome not in ("refused", "not here") for outcome in came) or "refused" not in came
        for number, (test, outcome) in enumerate(zip(row["tests"], came, strict=True)):
            first = (str(row.get("item", "")), row["what"]) if number == 0 else ("", "")
            table.add_row(
                *first, outcome if outcome == "refused" else f"[bold red]{outcome}[/]", test.partition("::")[2]
            )
    return table, open_ones


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack a gateway in every way known.")
    parser.add_argument("--only", choices=("live", "tests", "bystander"), help="one part of it")
    parser.add_argument(
        "--live", default="", metavar="TEXT", help="live attacks with that in their name, or that number"
    )
    arguments = parser.parse_args()
    console = Console(width=_WIDTH)
    began, found, open_ones = time.monotonic(), 0, 0
    if arguments.only in (None, "tests") and not arguments.live:
        table, count = tests_table()
        console.print(table)
        found, open_ones = found + table.row_count, open_ones + count
    if arguments.only in (None, "live") or arguments.live:
        rows = []
        quiet = ""
        for world, row in live_rows(arguments.live):
            rows.append(row)
            quiet = ", ".join(f"{name} {felt}" for name, felt in world.quiet.items())
        table, count = live_table(rows)
        console.print(table)
        console.print(f"Others in quiet times, p50 / p99 in ms: {quiet}.")
        found, open_ones = found + table.row_count, open_ones + count
    if arguments.only in (None, "bystander") and not arguments.live:
        open_ones += not experiment(console)
    took = time.monotonic() - began
    console.print(f"{found} rows in {took:.0f} s, [bold]{open_ones} open[/].", highlight=False)
    return int(open_ones > 0)


if __name__ == "__main__":
    sys.exit(main())
