"""Control characters are made visible, and JSON keeps its meaning."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.cli.output import print_event
from gateway.observability.escaped_text import (
    MOST_INDENTED,
    as_json,
    revealed,
    revealed_json,
    revealed_lines,
    visible,
    visible_line,
)
from tests.requirements import requirement
from tests.support.hostile_text import HOSTILE, shows_only_text


@requirement("wall.decoded")
def test_json_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(as_json([HOSTILE])) == [HOSTILE] and shows_only_text(as_json([HOSTILE]))
    event = {"at": 0.0, "event": "refused", "reason": HOSTILE + "\nforged line", "tool": HOSTILE}
    print_event(event, in_json=True)
    words = capsys.readouterr().out
    assert shows_only_text(words) and json.loads(words) == event
    for event["event"], took in (("task", ""), ("called", "  0.0 ms")):  # a task has an outcome, and no time of a call
        print_event(event | {"outcome": "completed", "reason": ""}, in_json=False)
        assert capsys.readouterr().out.endswith(f"completed{took}\n")
    assert visible("a\tb\nc\x1b") == "a\tb\nc\\x1b" and visible_line("a\nb") == "a\\x0ab"


@requirement("wall.decoded")
def test_half_a_character_can_be_written() -> None:
    for text in ("a\ud800b", "\udcff"):
        assert visible(text).encode() and visible_line(text) == visible(text)
        assert json.loads(as_json([text]).encode()) == [text]


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"k": inner}], ids=["arrays", "objects"])
def test_what_is_nested_deeper_than_people_read_is_not_indented(wrap: Callable[[Any], Any]) -> None:
    value: Any = "x"
    for _ in range(MOST_INDENTED):
        value = wrap(value)
    assert "\n" in as_json(value, indent=2) and "\n" not in as_json(wrap(value), indent=2)
    assert json.loads(as_json(wrap(value), indent=2)) == wrap(value)


@requirement("live.tools-lock")
@pytest.mark.parametrize(
    "unseen",
    [
        *("\u200b", "\u200d", "\u202e", "\u2066", "\U000e0041", "\x1b", "\x85", "\ufe0f", "\U000e0100", "\u3164"),
        *("\u115f", "\u2800", "\u034f", "\u2028", "\ue000", "\ufeff"),
    ],
)
def test_what_a_reader_does_not_see_is_a_number(unseen: str) -> None:
    value = {"name": f"a{unseen}b"}
    assert revealed(f"a{unseen}b") == f"a\\u{{{ord(unseen):x}}}b"
    for text in (revealed_json(value), "\n".join(revealed_lines(value))):
        assert unseen not in text and "\n" in text
    assert json.loads(revealed_json(value)) == value
    assert revealed("Größe 読む 😀 a b") == "Größe 読む 😀 a b" and revealed("a\u00a0b\t") == "a\\u{a0}b\\u{9}"
