"""What `make conformance` counts as expected."""

import asyncio
import json
import sys
from typing import Any

import pytest

from tests.conformance import run as conformance
from tests.conformance import servers
from tests.conformance.interaction import DIFFERENCES, unexpected
from tests.conformance.official import Check, differences
from tests.conformance.result import Result
from tests.conformance.run import EXPECTED, runs
from tests.conformance.servers import TASKS_SERVER, Run
from tests.requirements import requirement

pytestmark = pytest.mark.anyio

PASSES = Check(scenario="tools-list", id="listed", status="SUCCESS", message="")
FAILS = Check(scenario="tools-list", id="listed", status="FAILURE", message="nothing listed")
ENTRY = {"tools-list": {"listed": {"status": "FAILURE", "reason": "why"}}}


@pytest.mark.parametrize(
    ("checks", "passes", "expected", "found"),
    [
        ([PASSES], 1, {}, []),
        ([FAILS], 0, ENTRY, []),
        ([FAILS], 0, {}, ["tools-list: listed: FAILURE, SUCCESS expected: nothing listed"]),
        ([PASSES], 1, ENTRY, ["tools-list: listed: SUCCESS, FAILURE expected: "]),
        ([], 0, ENTRY, ["tools-list: listed: not reported"]),
        ([PASSES], 2, {}, ["1 checks passed, 2 expected"]),
    ],
)
@requirement("ext.conformance")
def test_a_check_differs_in_either_direction(
    checks: list[Check], passes: int, expected: dict[str, dict[str, dict[str, str]]], found: list[str]
) -> None:
    assert list(differences(checks, passes, expected)) == found


@requirement("ext.conformance")
def test_a_test_of_the_sdk_differs_in_either_direction() -> None:
    groups = [{"tests": ["a.py::fails", "a.py::partly[x]", "a.py::gone"]}]
    outcomes = {"a.py::fails[x]": False, "a.py::fails[y]": True, "a.py::partly[x]": False, "a.py::partly[y]": False}
    assert list(unexpected(outcomes, groups)) == [
        "a.py::fails[y]: passed, and is expected to fail",
        "a.py::partly[y]: failed",
        "a.py::gone: expected to fail, and has not run",
    ]


@requirement("ext.conformance")
def test_every_expected_difference_has_a_reason_and_a_run() -> None:
    assert EXPECTED.keys() <= {name for name, _ in runs()}
    entries = [entry for run in EXPECTED.values() for scenario in run.values() for entry in scenario.values()]
    assert all(entry["status"] != "SUCCESS" and len(entry["reason"]) > 20 for entry in entries)
    assert all(group["tests"] and len(group["reason"]) > 20 for group in DIFFERENCES)


async def test_the_server_of_the_tasks_scenarios_answers_while_a_call_runs() -> None:
    """A stdio server that reads the next request only after its answer could not be cancelled."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(TASKS_SERVER), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    try:
        for number, name in enumerate(("slow_compute", "greet")):
            params = {"name": name, "arguments": {"seconds": 60}, "_meta": meta}
            call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            process.stdin.write(json.dumps(call).encode() + b"\n")
        async with asyncio.timeout(30):
            assert json.loads(await process.stdout.readline())["id"] == 1
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(("busy", "attempts", "found"), [(False, 1, ("x differs",)), (True, 2, ())])
def test_only_a_run_on_a_busy_machine_has_a_second_attempt(
    monkeypatch: pytest.MonkeyPatch, busy: bool, attempts: int, found: tuple[str, ...]
) -> None:
    results = [Result(summary="", expected=(), found=each, output="") for each in (("x differs",), ())]
    made = iter(results)
    monkeypatch.setattr(conformance, "_attempt", lambda *_: next(made))
    result = conformance._server_run(Run(revision="2025-11-25", shared=False, passes=1, busy=busy), {})
    assert result.found == found and len([*made]) == 2 - attempts
    assert result.expected == (("only at a first attempt: x differs",) if busy else ())


def test_a_busy_run_in_which_nothing_comes_is_not_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Check(scenario="server-stateless", id="sent", status="FAILURE", message="Failed to receive frames")
    monkeypatch.setattr(servers, "run_suite", lambda _: ([PASSES, *[late] * (conformance.MOST_LATE + 1)], ""))
    run = Run(revision="2026-07-28", shared=False, passes=2 + conformance.MOST_LATE, busy=True)
    assert len(conformance._server_run(run, {}).found) == conformance.MOST_LATE + 2


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize(
    ("message", "is_late"),
    [
        ("Mutated the tool list but no notifications/tools/list_changed arrived on the open stream.", True),
        ("Failed to receive progressive stream chunk execution frames", True),
        ("Failed to open or receive frames from the endpoint", True),
        ("Failed to send initialize request: The operation was aborted due to timeout", True),
        ("Server leaked a tools/list-changed notification over a filtered stream", False),
    ],
)
def test_what_came_too_late_for_the_suite_counts_unless_the_machine_is_busy(
    monkeypatch: pytest.MonkeyPatch, busy: bool, message: str, is_late: bool
) -> None:
    check = Check(scenario="server-stateless", id="notified", status="WARNING", message=message)
    monkeypatch.setattr(servers, "run_suite", lambda _: ([PASSES, check], ""))
    result = conformance._server_run(Run(revision="2026-07-28", shared=False, passes=2, busy=busy), {})
    assert bool(result.found) != (busy and is_late)
    assert any(line.startswith("late: server-stateless: notified") for line in result.expected) == (busy and is_late)
