"""The interaction tests of the `mcp` SDK, with a gateway between their client and their server (sdk_interaction.py).

They come with the source distribution of the version that is installed, and run from there in a process of their own,
because both projects call their tests `tests`. What differs through the gateway is in interaction.toml, with reasons.
"""

import json
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.conformance.official import Result
from tests.tools.obtain import python_with, sdk_source

NAME = "sdk interaction tests"
HERE = Path(__file__).parent
TESTS = "tests/interaction"
PACKAGES = {
    "blockbuster": ">=1.5.27",
    "coverage": ">=7.10.7",
    "dirty-equals": ">=0.9.0",
    "inline-snapshot": ">=0.23.0",
    "logfire": ">=3.0.0",
    "trio": ">=0.26.2",
}
"""What the tests of the SDK import beyond the packages of this project's tests."""
TIMEOUT_S = 1_800
DIFFERENCES: Sequence[Mapping[str, Any]] = tomllib.loads((HERE / "interaction.toml").read_text(encoding="utf-8"))[
    "difference"
]


def compared() -> Result:
    """The tests that fail with a gateway, compared with those that are expected to."""
    source = sdk_source(version("mcp"))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        command = [str(python_with(PACKAGES, beside=True)), "-m", "pytest", TESTS, "-q", "--tb=short"]
        command += ["-p", "sdk_interaction", "-p", "no:cacheprovider", "-o", "addopts=-p anyio", "-o", "log_cli=false"]
        command += ["-n", "2", "--timeout", "60"]
        path = os.pathsep.join((str(HERE), str(HERE.parents[1])))
        env = {**os.environ, "PYTHONPATH": path, "SDK_INTERACTION_REPORT": str(report)}
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT_S, "check": False}
        finished = subprocess.run(command, cwd=source, env=env, **options)
        output = finished.stdout + finished.stderr
        if not report.exists():
            return Result(summary="no test has run", expected=(), found=("no test has run",), output=output)
        outcomes = dict(_outcome(line) for line in report.read_text(encoding="utf-8").splitlines())
    met = sum(outcomes.values())
    return Result(
        summary=f"{met} of {len(outcomes)} tests as without a gateway",
        expected=tuple(f"{len(one['tests'])} tests: {' '.join(one['reason'].split())}" for one in DIFFERENCES),
        found=tuple(unexpected(outcomes, DIFFERENCES)),
        output=output,
    )


def _outcome(line: str) -> tuple[str, bool]:
    seen = json.loads(line)
    return seen["test"].removeprefix(f"{TESTS}/"), seen["passed"]


def unexpected(outcomes: Mapping[str, bool], groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is not as expected, a line each.

    Args:
        outcomes: for the id of each test that has run, whether it passed.
        groups: each with `tests`. One names a test with its parameters in brackets, or all of a function's without.
    """
    expected = {test: False for group in groups for test in group["tests"]}
    for test, passed in outcomes.items():
        entry = next((name for name in (test, test.partition("[")[0]) if name in expected), None)
        if entry is not None:
            expected[entry] = True
        if passed != (entry is None):
            yield f"{test}: {'passed, and is expected to fail' if passed else 'failed'}"
    for name, has_run in expected.items():
        if not has_run:
            yield f"{name}: expected to fail, and has not run"
