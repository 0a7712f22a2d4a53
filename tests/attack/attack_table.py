"""The attacks that tests try: which tests, and what became of them."""

import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

__all__ = ["ROOT", "attacks", "outcomes"]

ROOT = Path(__file__).parents[2]

_AT_ONCE: Final = 3
"""Tests mostly wait for processes of theirs."""


def attacks() -> list[dict[str, Any]]:
    """What is tried, and by which tests; `item` is the number in the list of what was found, if it is from there."""
    text = Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["attack"]
    return found


def outcomes(tests: list[str]) -> dict[str, str]:
    """Test → refused, OPEN, `not here` where it was skipped, or nothing where it was not run."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in dict.fromkeys(tests):
        by_file[test.partition("::")[0]].append(test)
    parts: list[list[str]] = [[] for _ in range(_AT_ONCE)]
    for names in sorted(by_file.values(), key=len, reverse=True):
        min(parts, key=len).extend(names)
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder, f"{number}.xml") for number in range(_AT_ONCE)]
        running = [_pytest(part, report) for part, report in zip(parts, reports, strict=True) if part]
        for process in running:
            process.wait()
        for report in reports:
            if report.exists():
                _read(report, found)
    return found


def _pytest(tests: list[str], report: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *tests]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def _read(report: Path, found: dict[str, str]) -> None:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        name = f"{file}::{case.attrib['name'].partition('[')[0]}"
        kinds = {child.tag for child in case}
        bad = "OPEN" if kinds & {"failure", "error"} else "not here" if "skipped" in kinds else "refused"
        found[name] = max(bad, found.get(name, ""), key=("", "refused", "not here", "OPEN").index)
