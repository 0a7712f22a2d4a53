"""The ownership of a session, checked by SPIN: every order of the steps of three replicas within the model's bounds."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.requirements import requirement

pytestmark = [
    pytest.mark.skipif(not (shutil.which("spin") and shutil.which("gcc")), reason="SPIN is not installed"),
    requirement("proof.model"),
]
MODEL = Path(__file__).parent / "ownership.pml"
MUTANTS = {
    "EPOCH_REUSED": (1, 2, "epoch>given"),
    "NOT_ACKNOWLEDGED": (2, 1, "began>=latest"),
    "NOT_TOLD": (2, 1, "began>=latest"),
    "NO_PROBE": (1, 2, "faults_when_sent"),
    "OLD_PROCESS": (2, 1, "began>=latest"),
    "RESENT": (2, 1, "executed==1"),
}
"""The bounds in which a mutant of the protocol is found: calls at the same time, and faults. And what it violates."""


def checked(folder: Path, calls: int, faults: int, *mutant: str) -> str:
    """What SPIN says of the model."""
    flags = [f"-DCALLS={calls}", f"-DFAULTS={faults}", *(f"-D{name}" for name in mutant)]
    for command in (
        ["spin", "-a", *flags, str(MODEL)],
        ["gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=4000", "-o", "pan", "pan.c"],
    ):
        subprocess.run(command, cwd=folder, check=True, timeout=120)
    done = subprocess.run(["./pan", "-m1000000"], cwd=folder, check=True, timeout=500, capture_output=True, text=True)
    return done.stdout


def test_the_protocol_keeps_its_invariants_in_every_order(tmp_path: Path) -> None:
    said = checked(tmp_path, 2, 1)
    assert "errors: 0" in said and "not completed" not in said, said
    states = re.search(r"(\d+) states, stored", said)
    assert states is not None and int(states[1]) > 500_000, "it was not checked in these bounds"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_the_protocol_is_found(mutant: str, tmp_path: Path) -> None:
    calls, faults, violated = MUTANTS[mutant]
    said = checked(tmp_path, calls, faults, mutant)
    assert "assertion violated" in said and violated in said, said
