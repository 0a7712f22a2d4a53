"""`make attack`: the tests of every known attack, and what others feel under some of them. 1 when one got through.

`attacks.toml` says which tests try which attack.
"""

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.attack.bystander import experiment
from tests.support.commands import ROOT


def attacks() -> list[dict[str, Any]]:
    """What is tried, and by which tests; `item` is the number in the list of what was found, if it is from there."""
    text = Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["attack"]
    return found


def _tests_hold() -> bool:
    tests = sorted({test for attack in attacks() for test in attack["tests"]})
    # Tests mostly wait for processes of theirs.
    at_once = ["-n", "3", "--dist", "loadfile"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *at_once, *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack a gateway in every way known.")
    parser.add_argument("--only", choices=("tests", "bystander"), help="one part of it")
    only = parser.parse_args().only
    held = [only == "bystander" or _tests_hold(), only == "tests" or experiment(Console(width=200))]
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
