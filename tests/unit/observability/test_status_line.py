"""The line of status under a log."""

import io

from gateway.observability.status_line import StatusLine
from tests.requirements import requirement

CLEAR = "\r\x1b[2K"


@requirement("first.greeting")
def test_lines_of_the_log_stay_above_the_status() -> None:
    terminal = io.StringIO()
    line = StatusLine(terminal)
    line.write("one\n")
    line.show("waiting")
    line.show("waiting")
    line.write("two\n")
    line.show("")
    line.write("three\n")
    assert terminal.getvalue() == f"one\nwaiting{CLEAR}two\nwaiting{CLEAR}three\n"
