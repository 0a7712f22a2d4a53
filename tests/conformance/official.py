"""The official suite: how it is run, what it reports, and how that differs from what is expected.

The suite's own totals would not do: they leave out warnings and skipped checks, so a check that gets worse only makes
them smaller.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.obtain import node, node_environment, npm_packages

SUITE = {"@modelcontextprotocol/conformance": "0.2.0-alpha.12"}
TIMEOUT_S = 300
FOLDER = re.compile(r"(?:server-)?(.+)-\d{4}-\d\d-\d\dT[\dZ-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run comes to. `expected`: what does not pass, and why that is right. `found`: what is not as expected."""

    summary: str
    expected: tuple[str, ...]
    found: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check as the suite reports it; an id may occur several times in a scenario."""

    scenario: str
    id: str
    status: str
    message: str


def suite(arguments: Sequence[str]) -> str:
    """What the suite prints, run with these arguments."""
    command = [str(node()), str(npm_packages(SUITE) / "node_modules/.bin/conformance"), *arguments]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT_S, "check": False}
    finished = subprocess.run(command, env=node_environment(), **options)
    return str(finished.stdout + finished.stderr)


def checks_in(folder: Path) -> Iterator[Check]:
    """What the suite has written to its output folder."""
    for path in sorted(folder.rglob("checks.json")):
        name = FOLDER.fullmatch(str(path.parent.relative_to(folder)))
        scenario = name[1] if name else path.parent.name
        for check in json.loads(path.read_text(encoding="utf-8")):
            # INFO is what the suite saw on the way, or an option of the specification that was not taken.
            if check["status"] != "INFO":
                message = check.get("errorMessage") or check["description"]
                yield Check(scenario=scenario, id=check["id"], status=check["status"], message=message)


def reasons(expected: Mapping[str, Any]) -> tuple[str, ...]:
    """Why checks need not pass, a line each. `expected`: scenario → check → its status and the reason."""
    return tuple(
        f"{scenario}: {name}: {entry['status']}: {entry['reason']}"
        for scenario, group in expected.items()
        for name, entry in group.items()
    )


def passed(checks: Sequence[Check]) -> int:
    return sum(check.status == "SUCCESS" for check in checks)


def differences(checks: Sequence[Check], passes: int, expected: Mapping[str, Any]) -> Iterator[str]:
    """What is not as expected, a line each. `expected`: scenario → check → its status and the reason for that."""
    unmet = {
        (scenario, check): entry["status"] for scenario, group in expected.items() for check, entry in group.items()
    }
    for check in checks:
        wanted = unmet.get((check.scenario, check.id), "SUCCESS")
        if check.status != wanted:
            yield f"{check.scenario}: {check.id}: {check.status}, {wanted} expected: {check.message}"
    for scenario, name in sorted(unmet.keys() - {(check.scenario, check.id) for check in checks}):
        yield f"{scenario}: {name}: not reported"
    if passed(checks) != passes:
        yield f"{passed(checks)} checks passed, {passes} expected"
