"""Which refusals of a sandbox stand beside a failure."""

from types import SimpleNamespace
from typing import Any

from gateway.admin.explained_failures import explained
from gateway.observability.observed import Failure
from gateway.sandbox.refusals import RefusedRow
from tests.requirements import requirement


def refused(at: float, what: str, server: str = "files") -> RefusedRow:
    return RefusedRow(at=at, server=server, kind="file", what=what, why="not granted", allows="read", count=1)


@requirement("ops.console-why")
def test_a_failure_has_what_its_server_was_refused_just_before() -> None:
    failures = [
        Failure(at=at, server="files", name="tools/call read", outcome="tool error", why="Error", correlation="c")
        for at in (100.0, 200.0)
    ]
    before, after = refused(99.0, "/a"), refused(100.5, "/b")
    others = [refused(80.0, "/old"), refused(99.9, "/c", server="git")]
    row: Any = SimpleNamespace(failures=failures, refused=[before, after, *others])
    assert explained(row) == [(failures[0], [after, before]), (failures[1], [])]
