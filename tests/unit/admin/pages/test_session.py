"""What stands above the stderr of a session."""

from gateway.admin.pages.session import exceptions_in
from tests.requirements import requirement

pytestmark = requirement("ops.console-why")


def test_the_cause_in_the_middle_of_a_traceback_is_found() -> None:
    cause = "PermissionError: [Errno 13] Permission denied: '/srv/secret'"
    lines = ["Traceback (most recent call last):", *(["  File x"] * 60), cause, "", *(["  File y"] * 60)]
    told = "mcp.server.fastmcp.exceptions.ToolError: Error executing tool read_secret"
    assert exceptions_in([*lines, f"  | {told}", "INFO done"]) == [cause, told]
    assert exceptions_in([cause, told, cause]) == [told, cause], "each once, where it was last"
    assert exceptions_in(["socket.gaierror: [Errno -3] no name"]) == ["socket.gaierror: [Errno -3] no name"]
    assert exceptions_in(["no Error here", "Error", "x" * 100_000 + "Error: y"]) == []
    assert len(exceptions_in([f"E{number}Error: x" for number in range(50)])) == 4


def test_an_exception_that_is_broken_into_lines_is_told_whole() -> None:
    column = " " * 29
    lines = [
        f"{column}╰──────────────────╯",
        f"{column}PermissionError: [Errno 13]",
        f"{column}Permission denied:",
        f"{column}'/srv/secret'",
        "",
        f"{column}The above exception was the direct cause",
        f"{column}UnexpectedToolError: Error executing",
        f"{column}tool read_secret",
        f"{column}╭─ Traceback ─╮",
    ]
    assert exceptions_in(lines) == [
        "PermissionError: [Errno 13] Permission denied: '/srv/secret'",
        "UnexpectedToolError: Error executing tool read_secret",
    ]
    assert exceptions_in(["ValueError: x", "INFO what comes next"]) == ["ValueError: x"]
