"""What the state of a session may hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_store.ports.tool_state import (
    MAX_INTEGER,
    MAX_KEY_BYTES,
    MAX_STATE_BYTES,
    MAX_VALUE_BYTES,
    InvalidState,
    check_key,
    check_total,
    check_value,
    incremented,
)
from tests.requirements import requirement

pytestmark = requirement("ctx.limits")


@pytest.mark.parametrize("key", ["a", "\u00fc" * 128, "k" * MAX_KEY_BYTES, " ", "\0"])
def test_a_key_is_text_of_a_bounded_size_in_utf_8(key: str) -> None:
    assert check_key(key) == key.encode()


@pytest.mark.parametrize(
    ("key", "why"), [("", "not empty"), (7, "text"), ("\ud800", "surrogate"), ("\u00fc" * 129, "258 bytes")]
)
def test_any_other_key_is_an_error_that_says_why(key: str, why: str) -> None:
    with pytest.raises(InvalidState, match=why):
        check_key(key)


def test_a_value_and_a_state_may_be_as_large_as_their_bounds_and_no_larger() -> None:
    assert check_value("k", b"x" * MAX_VALUE_BYTES)
    with pytest.raises(InvalidState, match="'k' is 65537 bytes"):
        check_value("k", b"x" * (MAX_VALUE_BYTES + 1))
    check_total("k", MAX_STATE_BYTES)
    with pytest.raises(InvalidState, match="would be 1048577 bytes"):
        check_total("k", MAX_STATE_BYTES + 1)


@given(present=st.integers(-MAX_INTEGER - 1, MAX_INTEGER), by=st.integers(-MAX_INTEGER, MAX_INTEGER))
def test_an_increment_is_an_addition_within_64_bits_to_zero_at_first(present: int, by: int) -> None:
    assert incremented("k", None, by) == by
    try:
        assert incremented("k", b"%d" % present, by) == present + by
    except InvalidState as error:
        assert not -MAX_INTEGER - 1 <= present + by <= MAX_INTEGER and "64-bit" in str(error)


@pytest.mark.parametrize("present", [b'"1"', b"1.0", b"01", b"+1", b" 1", b"null", b"", b"1_000"])
def test_what_is_no_json_integer_cannot_be_incremented(present: bytes) -> None:
    with pytest.raises(InvalidState, match="not an integer"):
        incremented("k", present, 1)
