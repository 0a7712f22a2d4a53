"""Events that are alike share a row."""

from typing import Any

from gateway.admin.pages.events import folded
from tests.requirements import requirement

pytestmark = requirement("ops.console")


def called(at: float, tool: str = "a/sleep", **facts: Any) -> dict[str, Any]:
    return {"at": at, "event": "called", "session": "abcd", "tool": tool, "outcome": "ok", "count": 1, **facts}


def test_neighbours_that_are_alike_share_a_row() -> None:
    alike = [
        called(9.0, took_s=0.2, correlation="c9"),
        called(8.0, took_s=0.7, correlation="c8", count=3),
        called(7.0),
    ]
    others = [called(6.0, "a/fail"), called(5.0, took_s=0.1)]
    row = called(9.0, took_s=0.7, correlation="c9", count=5, since=7.0)
    assert folded(alike + others) == [row, *others]


def test_events_that_say_different_things_have_rows_of_their_own() -> None:
    events = [
        called(9.0),
        called(8.0, session="efgh"),
        called(7.0, outcome="tool error"),
        called(6.0, outcome="tool error", reason="it failed"),
        called(5.0, event="refused"),
        called(4.0, event="ended", calls=3),
        called(3.0, event="ended", calls=4),
    ]
    assert folded(events) == events
