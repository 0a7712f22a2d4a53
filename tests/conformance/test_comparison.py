"""What `make conformance` counts as expected."""

import pytest

from tests.conformance.interaction import DIFFERENCES, unexpected
from tests.conformance.official import Check, differences
from tests.conformance.run import EXPECTED, runs
from tests.requirements import requirement

pytestmark = requirement("ext.conformance")

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
def test_a_check_differs_in_either_direction(
    checks: list[Check], passes: int, expected: dict[str, dict[str, dict[str, str]]], found: list[str]
) -> None:
    assert list(differences(checks, passes, expected)) == found


def test_a_test_of_the_sdk_differs_in_either_direction() -> None:
    groups = [{"tests": ["a.py::fails", "a.py::partly[x]", "a.py::gone"]}]
    outcomes = {"a.py::fails[x]": False, "a.py::fails[y]": True, "a.py::partly[x]": False, "a.py::partly[y]": False}
    assert list(unexpected(outcomes, groups)) == [
        "a.py::fails[y]: passed, and is expected to fail",
        "a.py::partly[y]: failed",
        "a.py::gone: expected to fail, and has not run",
    ]


def test_every_expected_difference_has_a_reason_and_a_run() -> None:
    assert EXPECTED.keys() <= {name for name, _ in runs()}
    entries = [entry for run in EXPECTED.values() for scenario in run.values() for entry in scenario.values()]
    assert all(entry["status"] != "SUCCESS" and len(entry["reason"]) > 20 for entry in entries)
    assert all(group["tests"] and len(group["reason"]) > 20 for group in DIFFERENCES)
