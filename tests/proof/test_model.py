"""The ownership of sessions and the numbers of configurations, checked by SPIN: every order of the steps of replicas
within the bounds of the models."""

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
MODELS = Path(__file__).parent
CUT, OUTAGE, LOST_ANSWER, JUMP = 4, 8, 64, 128
ALL = 127
SECOND_OWNER, SECOND_RUN, SENT_TO_SILENT = "began>=latest", "executed==1", "faults_when_sent"
MUTANTS = {
    "BELIEVES_ASKER OLDER=1": (2, 1, ALL, SECOND_OWNER),
    "EPOCH_REUSED": (1, 2, ALL, "epoch>given"),
    "HELD_TOO_LATE": (2, 2, CUT | OUTAGE, SECOND_OWNER),
    "HOLD_IGNORED": (2, 2, CUT | OUTAGE, SECOND_OWNER),
    "LEASE_IGNORED": (2, 1, ALL, SECOND_OWNER),
    "LEASE_READ_ONCE": (2, 1, ALL, SECOND_OWNER),
    "NOT_ACKNOWLEDGED": (2, 1, ALL, SECOND_OWNER),
    "NOT_TOLD": (2, 1, ALL, SECOND_OWNER),
    "NOT_TOLD_AGAIN": (2, 2, CUT | LOST_ANSWER, SECOND_OWNER),
    "NO_AGREEMENT": (2, 1, ALL, SECOND_RUN),
    "NO_COMPARE": (2, 1, ALL, SECOND_OWNER),
    "NO_FENCE": (2, 1, ALL, SECOND_OWNER),
    "NO_PROBE": (2, 1, ALL, SENT_TO_SILENT),
    "OLD_PROCESS": (2, 1, ALL, SECOND_OWNER),
    "OTHERS_SERVE": (2, 2, CUT | LOST_ANSWER, SECOND_OWNER),
    "RELEASED_FIRST": (2, 1, ALL, SECOND_OWNER),
    "RESENT": (2, 1, ALL, SECOND_RUN),
    "TRUSTED_TOO_LONG": (2, 1, ALL, SECOND_OWNER),
    "WAITS_FOR_EVER": (2, 1, ALL, "invalid end state"),
}
"""The bounds in which a mutant of the protocol is found: calls at the same time, faults, and their kinds. And what it
violates."""

MUTANTS_OF_NUMBERS = {
    "NOT_ASKED": "overtaken",
    "LEAVES_UNASKED": "overtaken",
    "EDITS_FORGOTTEN": "number>others",
}
"""What a mutant of configuration numbers violates."""

MUTANTS_OF_LOSSES = ("READ_IS_HANDLED", "RENEWED_FIRST", "HANDLED_TWICE")


def checked(folder: Path, model: str, *flags: str, optimize: str = "-O2") -> str:
    """What SPIN says of a model. `-O0` is faster where few states are visited. With the flag LIVENESS, also orders
    without an end are searched in which every replica that can go on does so (weak fairness)."""
    is_endless = "LIVENESS" in flags
    kind, search = (["-DNFAIR=3"], ["-a", "-f"]) if is_endless else (["-DSAFETY"], [])
    for command in (
        ["spin", "-a", *(f"-D{flag}" for flag in flags), str(MODELS / model)],
        ["gcc", optimize, "-w", *kind, "-DCOLLAPSE", "-DMEMLIM=4000", "-o", "pan", "pan.c"],
    ):
        subprocess.run(command, cwd=folder, check=True, timeout=120)
    pan = ["./pan", "-m1000000", *search]
    return subprocess.run(pan, cwd=folder, check=True, timeout=500, capture_output=True, text=True).stdout


def assert_complete(said: str, least: int) -> None:
    assert "errors: 0" in said and "not completed" not in said, said
    states = re.search(r"(\d+) states, stored", said)
    assert states is not None and int(states[1]) > least, "it was not checked in these bounds"


def test_the_protocol_keeps_its_invariants_in_every_order(tmp_path: Path) -> None:
    assert_complete(checked(tmp_path, "ownership.pml", "CALLS=2", "FAULTS=1"), 500_000)


def test_every_call_ends(tmp_path: Path) -> None:
    assert_complete(checked(tmp_path, "ownership.pml", "CALLS=1", "FAULTS=1", "LIVENESS"), 5_000)


@pytest.mark.parametrize(
    ("flags", "least"),
    [(("CALLS=2", "FAULTS=1"), 500_000), (("CALLS=1", "FAULTS=1", "LIVENESS"), 5_000)],
    ids=["invariants", "every call ends"],
)
def test_a_replica_that_has_others_claim_breaks_nothing(flags: tuple[str, ...], least: int, tmp_path: Path) -> None:
    assert_complete(checked(tmp_path, "ownership.pml", "OLDER=1", *flags), least)


@pytest.mark.parametrize("flags", [(), ("LIVENESS",)], ids=["invariants", "every call ends"])
def test_a_call_with_two_faults(flags: tuple[str, ...], tmp_path: Path) -> None:
    assert_complete(checked(tmp_path, "ownership.pml", "CALLS=1", "FAULTS=2", *flags), 400_000)


def test_a_mutant_in_which_a_call_does_not_end_is_found(tmp_path: Path) -> None:
    said = checked(tmp_path, "ownership.pml", "CALLS=1", "FAULTS=1", "LIVENESS", "WAITS_FOR_EVER", optimize="-O0")
    assert "acceptance cycle" in said, said


def test_a_jump_of_the_stores_clock_beside_a_cut_gives_a_session_two_owners(tmp_path: Path) -> None:
    """docs/proof.md says that the protocol does not withstand it."""
    said = checked(tmp_path, "ownership.pml", "CALLS=2", "FAULTS=2", f"KINDS={CUT | JUMP}", optimize="-O0")
    assert "errors: 1" in said and SECOND_OWNER in said, said


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_the_protocol_is_found(mutant: str, tmp_path: Path) -> None:
    calls, faults, kinds, violated = MUTANTS[mutant]
    bounds = (f"CALLS={calls}", f"FAULTS={faults}", f"KINDS={kinds}")
    said = checked(tmp_path, "ownership.pml", *bounds, *mutant.split(), optimize="-O0")
    assert "errors: 1" in said and violated in said, said


@pytest.mark.parametrize(("changes", "faults"), [(1, 1), (2, 0)])
def test_no_replica_claims_a_session_while_another_has_a_newer_file(changes: int, faults: int, tmp_path: Path) -> None:
    bounds = (f"CHANGES={changes}", f"FAULTS={faults}")
    assert_complete(checked(tmp_path, "configuration_numbers.pml", *bounds), 500_000)


@pytest.mark.parametrize("mutant", MUTANTS_OF_NUMBERS)
def test_a_mutant_of_configuration_numbers_is_found(mutant: str, tmp_path: Path) -> None:
    said = checked(tmp_path, "configuration_numbers.pml", "CHANGES=3", "FAULTS=0", mutant, optimize="-O0")
    assert "errors: 1" in said and MUTANTS_OF_NUMBERS[mutant] in said, said


def test_no_session_of_two_is_served_by_its_former_owner_too(tmp_path: Path) -> None:
    assert_complete(checked(tmp_path, "losses.pml", "CLAIMS=6", "FAULTS=4"), 50_000)


@pytest.mark.parametrize("mutant", MUTANTS_OF_LOSSES)
def test_a_mutant_of_how_losses_are_told_is_found(mutant: str, tmp_path: Path) -> None:
    said = checked(tmp_path, "losses.pml", mutant, optimize="-O0")
    assert "errors: 1" in said and "is_live[0])&&serves[0]" in said, said
