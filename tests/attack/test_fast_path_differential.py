"""Calls on the fast path are, for everybody, those of the general way: a moment of the differential."""

import secrets

import pytest

from tests.attack.fast_path_differential import compare
from tests.requirements import requirement


@requirement("fast.same")
@pytest.mark.timeout(180)
def test_the_fast_path_makes_no_difference_but_speed() -> None:
    found = compare(secrets.randbelow(1_000), 700)
    assert found.differences == 0, f"seed {found.seed}: {found.first}"
    assert found.requests > 1_150 and found.fast > found.requests / 4


@requirement("fast.same", "hot.forwarded")
@pytest.mark.timeout(300)
def test_nor_does_that_of_calls_which_another_replica_forwards() -> None:
    found = compare(secrets.randbelow(1_000), 600, forwarded=True)
    assert found.differences == 0, f"seed {found.seed}: {found.first}"
    assert found.requests > 1_400 and found.fast > found.requests / 4
