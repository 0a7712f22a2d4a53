"""`make attack`: a table of attacks and what became of them. 1 when one got through."""

import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["attacks"]

ROOT = Path(__file__).parents[2]


def attacks() -> list[dict[str, Any]]:
    """What is tried, and by which tests."""
    text = Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["attack"]
    return found


def outcomes(tests: list[str]) -> dict[str, str]:
    """Test → refused, SUCCEEDED or not tried."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *tests]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        found: dict[str, str] = {}
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            file = case.attrib["classname"].replace(".", "/") + ".py"
            name = f"{file}::{case.attrib['name'].partition('[')[0]}"
            kinds = {child.tag for child in case}
            bad = "SUCCEEDED" if kinds & {"failure", "error"} else "not tried" if "skipped" in kinds else "refused"
            found[name] = max(bad, found.get(name, ""), key=("", "refused", "not tried", "SUCCEEDED").index)
        return found


def main() -> int:
    tried = attacks()
    found = outcomes([test for attack in tried for test in attack["tests"]])
    table = Table("attack", "outcome", "test", box=None)
    worst = 0
    for attack in tried:
        for number, test in enumerate(attack["tests"]):
            outcome = found.get(test, "not tried")
            worst = max(worst, int(outcome != "refused"))
            table.add_row(attack["what"] if number == 0 else "", outcome, test.partition("::")[2])
    Console(width=200).print(table)
    return worst


if __name__ == "__main__":
    sys.exit(main())
