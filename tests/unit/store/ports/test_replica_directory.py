"""Epochs: no two claims have one, and those of older releases go on."""

from hypothesis import given
from hypothesis import strategies as st

from session_store.ports.events import NUMBERS_OF_AN_EPOCH, numbers_of
from session_store.ports.replica_directory import count_of, next_epoch, nonce_of
from tests.requirements import requirement

pytestmark = requirement("rep.failover")


@given(st.integers(0, 2**20))
def test_each_claim_counts_one_more_under_a_nonce_of_its_own(count: int) -> None:
    first, second = next_epoch(count), next_epoch(count)  # the store has forgotten one of them
    assert count_of(first) == count_of(second) == count + 1
    assert nonce_of(first) and nonce_of(second) and first < 2**53, "exact in Lua"
    assert count_of(next_epoch(first)) == count + 2


def test_a_thousand_forgotten_claims_have_a_thousand_epochs() -> None:
    assert len({next_epoch(7) for _ in range(1_000)}) == 1_000


@given(st.integers(0, 2**20))
def test_the_numbers_of_a_later_claim_are_above_those_of_an_earlier_one(count: int) -> None:
    earlier, later = numbers_of(next_epoch(count)), numbers_of(next_epoch(count + 1))
    assert earlier[0] < earlier[1] <= later[0] < later[1] < 2**53
    assert numbers_of(count) == (count * NUMBERS_OF_AN_EPOCH, (count + 1) * NUMBERS_OF_AN_EPOCH), "an older release's"
