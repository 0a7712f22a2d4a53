"""What errors quote of a server's output."""

from gateway.calls.output_tail import MOST_LINES, newest, with_output_tail
from tests.requirements import requirement

pytestmark = requirement("proc.last-words")


def test_the_last_line_with_text_is_quoted_and_cut() -> None:
    assert with_output_tail("it exited", []) == with_output_tail("it exited", ["", "  "]) == "it exited"
    lines = ["Traceback (most recent call last):", "ValueError: no such index", ""]
    assert with_output_tail("it exited", lines) == "it exited; its last output: 'ValueError: no such index'"
    assert len(with_output_tail("it exited", ["x" * 5_000])) < 250
    assert "\n" not in with_output_tail("it exited", ["a\rb\x1b[31m\n"]), "control characters are escaped"


def test_what_is_kept_has_the_cause_of_a_traceback_and_a_bound() -> None:
    cause = "PermissionError: [Errno 13] Permission denied: '/srv/secret'"
    lines = ["an early line", *(["older"] * 30), cause, *(f"  at frame {number}" for number in range(30)), "ToolError"]
    assert cause in newest(lines) and newest(lines)[-1] == "ToolError" and len(newest(lines)) == MOST_LINES
    long = ["x" * 500] * 100
    assert sum(map(len, newest(long))) <= 8 << 10 and newest(["y" * 20_000]) == ["y" * 20_000]
    assert newest([]) == [] and newest(["a", "b", "c"], 2) == ["b", "c"]
