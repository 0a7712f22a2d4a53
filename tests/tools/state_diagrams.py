"""Print the tables of states as Mermaid: `python -m tests.tools.state_diagrams [exchange] [link] [session]`."""

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from gateway.calls.exchange_state import EXCHANGE, OVER, ExchangeState
from gateway.calls.link_lifecycle import LINK, LinkState
from gateway.calls.live_state import GONE, LIVE, LiveState

__all__ = ["DIAGRAMS", "diagram"]


def diagram(table: Mapping[StrEnum, Mapping[StrEnum, StrEnum]], first: StrEnum, last: frozenset[StrEnum]) -> str:
    """A `stateDiagram-v2`. Steps between the same two states share an arrow; a step that changes nothing has none."""
    lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
    for state, row in table.items():
        events: dict[StrEnum, list[str]] = {}
        for event, after in row.items():
            if after is not state:
                events.setdefault(after, []).append(event.value)
        lines += [f"    {state.value} --> {after.value}: {', '.join(names)}" for after, names in events.items()]
        if state in last:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join(lines) + "\n"


DIAGRAMS: Final = {
    "exchange": diagram(EXCHANGE, ExchangeState.QUEUED, frozenset(OVER)),  # type: ignore[arg-type]
    "link": diagram(LINK, LinkState.ABSENT, frozenset({LinkState.ENDED})),  # type: ignore[arg-type]
    "session": diagram(LIVE, LiveState.OPENING, frozenset(GONE)),  # type: ignore[arg-type]
}

if __name__ == "__main__":
    for name in sys.argv[1:] or DIAGRAMS:
        print(DIAGRAMS[name], end="")
