"""Ids are random, tokens are signed, purposes are apart, keys can be rotated."""

import base64
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_store import InvalidKeyRing, KeyRing, Purpose, TokenCodec
from session_store.session import new_session_id
from session_store.token_signing import generate_key
from tests.requirements import requirement

OLD, NEW = "old-" * 10, "new-" * 10
ALPHABET = string.ascii_letters + string.digits + "-_"


def codec(*keys: str, purpose: Purpose = Purpose.TOKEN) -> TokenCodec:
    return TokenCodec(KeyRing(keys), purpose)


@requirement("id.random")
def test_ids_carry_at_least_128_random_bits_and_never_repeat() -> None:
    ids = {new_session_id() for _ in range(10_000)}
    assert len(ids) == 10_000
    raw = [base64.urlsafe_b64decode(i + "=" * (-len(i) % 4)) for i in ids]
    assert all(len(r) * 8 >= 128 for r in raw)
    ones = sum(bin(int.from_bytes(r, "big")).count("1") for r in raw)
    assert abs(ones / (len(raw) * len(raw[0]) * 8) - 0.5) < 0.01


@requirement("id.rotate")
def test_a_key_added_in_front_signs_and_the_old_one_still_verifies_until_it_leaves() -> None:
    session_id = new_session_id()
    old, new = codec(OLD).sign(session_id), codec(NEW, OLD).sign(session_id)
    assert codec(NEW, OLD).verify(old) == codec(NEW).verify(new) == session_id
    assert codec(NEW).verify(old) is None


@requirement("id.purpose")
def test_a_value_of_one_purpose_never_verifies_as_another() -> None:
    for made in (Purpose.TOKEN, Purpose.COOKIE):
        signed = codec(OLD, purpose=made).sign(new_session_id())
        assert [read for read in Purpose if codec(OLD, purpose=read).verify(signed)] == [made]


@requirement("id.forged")
@given(st.data())
def test_a_token_that_differs_in_one_character_does_not_verify(data: st.DataObject) -> None:
    token = codec(OLD).sign(new_session_id())
    place = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda c: c != token[place]))
    assert codec(OLD).verify(token[:place] + other + token[place + 1 :]) is None


@requirement("id.forged", "wall.memory")
@pytest.mark.parametrize("purpose", [Purpose.TOKEN, Purpose.COOKIE])
def test_a_token_has_one_last_character(purpose: Purpose) -> None:
    token = codec(OLD, purpose=purpose).sign(new_session_id())
    verify = codec(OLD, purpose=purpose).verify
    assert [last for last in ALPHABET if verify(token[:-1] + last)] == [token[-1]]


@given(st.text())
def test_any_text_is_a_token_or_none(text: str) -> None:
    assert codec(OLD).verify(text) is None


@pytest.mark.parametrize("keys", [[], ["short"], [OLD, "short"], [OLD, OLD]])
def test_bad_rings_say_what_is_wrong_and_show_no_key(keys: list[str]) -> None:
    with pytest.raises(InvalidKeyRing) as caught:
        KeyRing(keys)
    assert "short" not in str(caught.value) and OLD not in str(caught.value)


def test_a_ring_is_read_from_a_comma_separated_list() -> None:
    token = codec(NEW).sign("x" * 24)
    assert TokenCodec(KeyRing.parse(f" {NEW} , {generate_key()},"), Purpose.TOKEN).verify(token) == "x" * 24


def test_what_an_ephemeral_ring_signs_verifies_with_it_only() -> None:
    one, other = (TokenCodec(KeyRing.ephemeral(), Purpose.TOKEN) for _ in range(2))
    token = one.sign("x" * 24)
    assert one.verify(token) == "x" * 24 and other.verify(token) is None
