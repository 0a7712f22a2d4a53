"""`python -m tests.tools.state_diagrams`: draws the lifecycles in docs/architecture.md from their tables.

Each diagram stands below a line `<!-- lifecycle: NAME -->`, as a Mermaid state diagram.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gateway.calls.lifecycles import EXCHANGE, GONE, LINK, LIVE, OVER, ExchangeState, LinkState, LiveState
from gateway.tasks.gateway_tasks.task_maker import REPLY, ReplyState
from gateway.tasks.gateway_tasks.task_states import TASK
from gateway.tasks.relayed_tasks import KNOWN, KnownState

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "architecture.md"
_BLOCK: Final = re.compile(r"(<!-- lifecycle: (\w+) -->\n)```mermaid\n.*?```\n", re.DOTALL)


def diagram(table: Mapping[Any, Mapping[Any, str]], first: str, last: frozenset[str]) -> str:
    """A `stateDiagram-v2`. Steps between the same two states share an arrow; a step that changes nothing has none."""
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    for state, row in table.items():
        events: dict[str, list[str]] = {}
        for event, after in row.items():
            if after != state:
                events.setdefault(after, []).append(event.value)
        lines += [f"    {state} --> {after}: {', '.join(names)}" for after, names in events.items()]
        if state in last:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines) + "\n"


DIAGRAMS: Final = {
    "exchange": diagram(EXCHANGE, ExchangeState.QUEUED, frozenset(OVER)),
    "link": diagram(LINK, LinkState.ABSENT, frozenset({LinkState.ENDED})),
    "task": diagram(TASK, "working", frozenset(state for state in TASK if not TASK[state])),
    "reply": diagram(REPLY, ReplyState.SENDING, frozenset(REPLY) - {ReplyState.SENDING}),
    "known": diagram(KNOWN, KnownState.FOUND, frozenset({KnownState.FORGOTTEN})),
    "session": diagram(LIVE, LiveState.OPENING, frozenset(GONE)),
}


def drawn(text: str) -> str:
    """The document with each of its diagrams drawn anew. Raises `KeyError` for a lifecycle that has no table."""
    return _BLOCK.sub(lambda found: f"{found[1]}```mermaid\n{DIAGRAMS[found[2]]}```\n", text)


def main() -> None:
    DOCUMENT.write_text(drawn(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
