"""Control characters are made visible, and JSON keeps its meaning."""

import json

import pytest

from gateway.cli.output import print_event
from gateway.observability.visible import as_json, visible, visible_line
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
