"""What errors quote of a server's output."""

from gateway.calls.last_words import with_last_words
from tests.requirements import requirement


@requirement("proc.last-words")
def test_the_last_line_with_text_is_quoted_and_cut() -> None:
    assert with_last_words("it exited", []) == with_last_words("it exited", ["", "  "]) == "it exited"
    lines = ["Traceback (most recent call last):", "ValueError: no such index", ""]
    assert with_last_words("it exited", lines) == "it exited; its last output: 'ValueError: no such index'"
    assert len(with_last_words("it exited", ["x" * 5_000])) < 250
    assert "\n" not in with_last_words("it exited", ["a\rb\x1b[31m\n"]), "control characters are escaped"
