"""Whole gateways on a simulated network and clock, in a process of their own."""

import re
import subprocess
import sys
from typing import Final

import pytest

from tests.rings import ROOT

SEEDS: Final = 100


def _simulated(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation.run", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.timeout(960)
@pytest.mark.requirement("proof.simulation")
def test_no_seed_finds_a_contradiction() -> None:
    ran = _simulated("--seeds", str(SEEDS))
    assert ran.returncode == 0 and ran.stdout.startswith(f"{SEEDS} seeds, "), ran.stdout[-4_000:] + ran.stderr[-2_000:]


@pytest.mark.requirement("proof.simulation")
def test_a_seed_does_the_same_again() -> None:
    _simulated("--seeds", "1")  # compiles the modules: what does that itself has other addresses
    first, again = (_simulated("--seeds", "6", "--digests").stdout for _ in range(2))
    digests = re.findall(r"^\d+ ([0-9a-f]{16})$", first, re.MULTILINE)
    assert len(set(digests)) == 6, first
    assert digests == re.findall(r"^\d+ ([0-9a-f]{16})$", again, re.MULTILINE)


@pytest.mark.parametrize("mutant", ["RESENT", "NO_COMPARE", "NOT_ACKNOWLEDGED"])
@pytest.mark.requirement("proof.simulation")
def test_a_missing_rule_is_found_and_its_seed_is_named(mutant: str) -> None:
    ran = _simulated("--seeds", "400", "--mutant", mutant, "--until-found")
    assert ran.returncode == 1 and re.search(r"^seed \d+: ", ran.stdout, re.MULTILINE), ran.stdout[-2_000:]
