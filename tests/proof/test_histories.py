"""The checker of histories: each rule accepts what it should, and shows the few events that break it."""

from pathlib import Path

import pytest

from tests.proof.histories import Event, judge, main, write
from tests.requirements import requirement
from tests.support.claims_watch import claimed

pytestmark = requirement("proof.histories")

FIRST, SECOND = 1 << 21 | 1, 9 << 21 | 2
"""Epochs: a count below a nonce."""


def echo(call: str, at: float, *by: str, how: str = "answered", told: str = "", took: float = 0.5) -> list[Event]:
    """A call that these processes execute in its middle, and that ends so."""
    runs = [Event(at=at + took / 2, what="executed", call=call, by=process) for process in by]
    return [*asked(call, at), *runs, *([ended(call, at + took, how, told=told)] if how else [])]


def bump(call: str, at: float, value: int = 0, how: str = "answered", took: float = 0.5) -> list[Event]:
    """A call that counts."""
    return [*asked(call, at, "bump"), ended(call, at + took, how, value)]


def asked(call: str, at: float, how: str = "echo") -> list[Event]:
    return [Event(at=at, what="asked", session="s", call=call, how=how)]


def ended(call: str, at: float, how: str, value: int = 0, told: str = "") -> Event:
    return Event(at=at, what="ended", session="s", call=call, how=how, value=value, told=told)


def claim(at: float, by: str, epoch: int) -> Event:
    return Event(at=at, what="claimed", session="s", by=by, value=epoch)


def broken(history: list[Event]) -> tuple[str, list[str]]:
    """The rule that a history breaks, and the calls or replicas and events that show it."""
    found = judge(history)
    assert found is not None, "it is accepted"
    assert str(found).count("\n") == len(found.events)
    return found.rule, [f"{event.call or event.by} {event.what}" for event in found.events]


GOOD = [
    claim(0, "one", FIRST),
    *echo("a", 1, "p"),
    *bump("b", 2, 1),
    *bump("c", 3, how="unknown"),
    claim(4, "two", SECOND),
    *echo("d", 4.1, "p", how="unknown"),
    *echo("e", 5, "q", told="takeover"),
    *bump("f", 6, 3),
    *echo("g", 7, how="refused"),
    *bump("h", 8, how="refused"),
]
"""A session that moves while a call of either kind has an unknown outcome."""


ACCEPTED: dict[str, list[Event]] = {
    "nothing": [],
    "a session that moves": GOOD,
    "an unknown call that did not count": [*bump("a", 1, how="reset"), *bump("b", 2, 1)],
    "an unknown call that counts late": [*bump("a", 1, how="unknown"), *bump("b", 2, 1), *bump("c", 3, 3)],
    "calls at a time that are counted in either order": [*bump("a", 1, 2, took=2), *bump("b", 2, 1)],
    "an answer that says that it ran twice": echo("a", 1, "p", "p", told="again"),
    "a record written again": [claim(0, "one", FIRST), claim(1, "one", FIRST)],
    "a claim that a failover forgot": [
        claim(0, "one", SECOND),
        Event(at=1, what="failed over"),
        claim(2, "two", SECOND + (1 << 21)),
    ],
    "a former owner that executes, and does not answer": [
        *echo("a", 1, "p"),
        *echo("b", 2, "q", told="takeover"),
        *echo("c", 3, "p", how="unknown"),
    ],
    "a note that was lost with its answer": [
        *echo("a", 1, "p"),
        *echo("b", 2, "q", how="reset"),
        *echo("c", 3, "q"),
    ],
    "a note in the answer that came second": [
        *echo("a", 1, "p"),
        *echo("b", 2, "q", told="takeover", took=2),
        *echo("c", 2.5, "q"),
    ],
    "an execution of another load": [Event(at=1, what="executed", call="x", by="p")] * 2,
}

REFUSED: dict[str, tuple[str, list[Event], list[str]]] = {
    "two owners of one epoch": (
        "two replicas have claimed a session in one epoch",
        [*GOOD, claim(4.2, "three", SECOND)],
        ["two claimed", "three claimed"],
    ),
    "an epoch that goes back": (
        "the epochs of a session do not grow",
        [*GOOD, claim(5, "one", FIRST + (1 << 21))],
        ["two claimed", "one claimed"],
    ),
    "a former process that answers": (
        "a process answered after a later process of the session did",
        [*GOOD, *echo("x", 9, "p")],
        ["a asked", "a executed", "a ended", "e asked", "e executed", "e ended", "x asked", "x executed", "x ended"],
    ),
    "a double execution": (
        "a call was executed twice, and its answer does not say so",
        [*GOOD, *echo("x", 9, "q", "q")],
        ["x asked", "x executed", "x executed", "x ended"],
    ),
    "a double execution behind an error": (
        "a call was executed twice, and its answer does not say so",
        [*GOOD, *echo("x", 9, "q", "r", how="unknown")],
        ["x asked", "x executed", "x executed", "x ended"],
    ),
    "a refused call that was executed": (
        "a call was refused, and executed",
        [*GOOD, *echo("x", 9, "q", how="refused")],
        ["x asked", "x executed", "x ended"],
    ),
    "an answer without an execution": (
        "a call was answered, and not executed",
        [*GOOD, *echo("x", 9)],
        ["x asked", "x ended"],
    ),
    "a lost count": (
        "an acknowledged call is missing in a later count",
        [*GOOD, *bump("x", 9, 2)],
        ["f asked", "f ended", "x asked", "x ended"],
    ),
    "a count given twice": (
        "two calls were counted as one",
        [*GOOD, *bump("x", 9, 3)],
        ["f asked", "f ended", "x asked", "x ended"],
    ),
    "a refused call that counted": (
        "more was counted than was asked",
        [*GOOD, *bump("x", 9, 5)],
        ["b asked", "b ended", "c asked", "c ended", "f asked", "f ended", "x asked", "x ended"],
    ),
    "a count from nowhere": ("more was counted than was asked", bump("x", 9, 2), ["x asked", "x ended"]),
    "a restart that nobody was told of": (
        "nobody was told that a session has a new process",
        [*GOOD, *echo("x", 9, "r"), *echo("y", 10, "r", told="crash")],
        ["e asked", "e executed", "e ended", "x asked", "x executed", "x ended"],
    ),
    "a call without an end": ("a call did not end", [*GOOD, *echo("x", 9, how="")], ["x asked"]),
    "a call that hangs": ("a call did not end", [*GOOD, *echo("x", 9, how="hung")], ["x asked", "x ended"]),
    "a lost session": ("a session was lost", [*GOOD, *echo("x", 9, how="lost")], ["x asked", "x ended"]),
    "a wrong answer": ("a call got a wrong answer", [*GOOD, *echo("x", 9, how="wrong")], ["x asked", "x ended"]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_history_is_accepted(name: str) -> None:
    assert judge(ACCEPTED[name]) is None
    assert judge(reversed(ACCEPTED[name])) is None, "its events come from several places, in any order"


@pytest.mark.parametrize("name", REFUSED)
def test_a_contradiction_is_shown_by_the_events_that_suffice(name: str) -> None:
    rule, history, shown = REFUSED[name]
    assert broken(history) == (rule, shown)
    assert judge(event for event in history if f"{event.call or event.by} {event.what}" in shown), "they suffice"


def test_the_shortest_of_several_contradictions_is_shown() -> None:
    every = [*GOOD, *echo("x", 9, "q", "q"), *bump("y", 10, 3), *echo("z", 11, "q", how="refused")]
    assert broken(every)[1] == ["z asked", "z executed", "z ended"]


def test_a_file_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    write(GOOD, good)
    write([*GOOD, *echo("x", 9, "q", "q")], bad)
    assert main([str(good)]) == 0
    assert main([str(good), str(bad)]) == 1 and main([]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{good}: 21 events: accepted",
        f"{bad}: 25 events: a call was executed twice, and its answer does not say so",
        "    9.000000 session s call x asked echo",
        "    9.250000 call x executed by q",
        "    9.250000 call x executed by q",
        "    9.500000 session s call x ended answered",
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (rb'7.5 [0 lua] "HSET" "mcp:{s}:session" "epoch" "2097154" "owner" "\"one\""', claim(2.5, "one", 2097154)),
        (rb'7.5 [0 lua] "HSET" "mcp:{s}:session" "owner" "\"\""', None),
        (rb'7.5 [0 lua] "HSET" "mcp:{s}:state" "epoch" "1" "owner" "\"one\""', None),
        (rb"+OK", None),
    ],
)
def test_a_claim_is_read_from_what_redis_executes(line: bytes, found: Event | None) -> None:
    assert claimed(line, 5.0) == found
