"""Session keys: where they stand, how hard they are to guess, and what the store sees of them."""

import base64
import random
import secrets
import string
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions.client_chosen_keys import (
    ANONYMOUS_BITS,
    KEY_META,
    _share,
    estimated_bits,
    key_alias,
    session_key,
)
from session_store import ANONYMOUS
from session_store.testing import ALICE, BOB
from tests.requirements import requirement
from tests.unit.sessions.parts import request
from transports.inbound_port import Refused

HEADERS = ("mcp-gateway-session-key", "x-conversation")


@requirement("cli.session-key")
def test_a_key_is_in_the_first_header_that_has_one_else_in_meta() -> None:
    both = request(meta={KEY_META: "meta"}, mcp_gateway_session_key="own", x_conversation="hosts")
    assert session_key(both, HEADERS) == "own"
    assert session_key(both, HEADERS[::-1]) == "hosts"
    assert session_key(both, ()) == session_key(request(meta={KEY_META: "meta"}), HEADERS) == "meta"
    assert session_key(request(), HEADERS) is None


@requirement("cli.session-key")
def test_a_key_is_the_same_in_a_header_and_in_meta() -> None:
    in_header = "b\u00fcro".encode().decode("latin-1")  # as a wire reads the bytes of a header
    assert session_key(request(mcp_gateway_session_key=in_header), HEADERS) == "b\u00fcro"
    assert session_key(request(mcp_gateway_session_key="\xfc"), HEADERS) == "\xfc", "not UTF-8: taken as it is"


@requirement("cli.session-key-refused")
@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("k" * 257, "longer than 256"),
        ("${AGENT_KEY}", "placeholder"),
        ("{{conversation}}", "placeholder"),
        ("KEY", "placeholder"),
        (7, "must be a string"),
        (["a"], "must be a string"),
    ],
)
def test_what_cannot_be_a_key_is_refused_by_name(key: Any, why: str) -> None:
    with pytest.raises(Refused, match=why) as refusal:
        session_key(request(meta={KEY_META: key}), HEADERS)
    assert refusal.value.status == 400 and refusal.value.data == {"reason": "invalid_session_key"}


@requirement("cli.session-key-bound")
def test_a_key_is_bound_to_its_principal_and_endpoint_and_not_revealed() -> None:
    aliases = {key_alias("agent-1", who, where) for who in (ALICE, BOB) for where in ("/mcp", "/servers/a/mcp")}
    assert len(aliases | {key_alias("agent-2", ALICE, "/mcp")}) == 5
    assert not any("agent-" in alias for alias in aliases)


POOR = {
    "agent-1": "short",
    "f" * 32: "one character",
    "0123456789abcdef0123456789abcdef": "a sequence, twice",
    "a1b2c3d4" * 8: "a repetition",
    "abcdefghijklmnopqrstuvwxyz0123456789": "a sequence",
    "1f0e8a52-93c7-1d1b-a06e-5b7c2d984f31": "a UUID made of a time",
    "0192f0c1-93c7-7d1b-a06e-5b7c2d984f31": "a UUID made of a time",
    secrets.token_hex(15): "120 bits",
    "user-alice@example.com-2024-01-01": "an address and a date",
    "correct horse battery staple": "a phrase",
    "the-nightly-report-of-the-sales-team-7": "a name",
    "49027351846209573186402957318": "29 decimal digits",
    "ThisIsMyVeryLongSessionName": "words",
    "MyAgentSessionForTests": "words",
    "mysessionforthenightlybuildofthesite": "words in small letters",
    "MY-SESSION-FOR-THE-NIGHTLY-BUILD": "words in capitals",
    "CustomerSupportAgent0001": "words and a number",
    "Session-Of-Alice-2024-01-01": "words and a date",
    "aaaaBBBBccccDDDDeeeeFFFF": "repeated characters",
    "AbcdefghijklmnopqrstuvwxyZ12": "a sequence in both cases",
}


@requirement("cli.session-key-anonymous")
def test_an_anonymous_key_must_look_like_128_random_bits() -> None:
    good = secrets.token_hex(16)
    assert estimated_bits(good) == ANONYMOUS_BITS, "4 bits for a hex digit"
    key_alias(good, ANONYMOUS, "/mcp")
    for key, what in POOR.items():
        with pytest.raises(Refused, match="openssl rand -hex 16") as refused:
            key_alias(key, ANONYMOUS, "/mcp")
        assert refused.value.status == 400 and key not in str(refused.value), what
        key_alias(key, ALICE, "/mcp")


@requirement("cli.session-key-anonymous")
@pytest.mark.parametrize(
    "written",
    [
        lambda data: base64.urlsafe_b64encode(data).rstrip(b"=").decode(),
        lambda data: base64.b32encode(data).decode(),
        lambda data: base64.b32encode(data).decode().lower().rstrip("="),
        lambda data: str(uuid.UUID(bytes=data, version=4)),
        lambda data: uuid.UUID(bytes=data, version=4).hex,
        bytes.hex,
        lambda data: data.hex().upper(),
    ],
    ids=["token_urlsafe", "base32", "base32-small", "uuid4", "uuid4-hex", "token_hex", "token_hex-capitals"],
)
def test_hardly_any_random_key_is_refused(written: Callable[[bytes], str]) -> None:
    """One in a million by calculation: 2^-21 for words (see the shares below), 2 * 2^-22 for a text of base64url that
    has the alphabet of base32 only, and less than 10^-7 for too few characters and for sequences."""
    seeded = random.Random(20_260_728)
    keys = [written(seeded.randbytes(16)) for _ in range(10_000)]
    assert not [key for key in keys if estimated_bits(key) < ANONYMOUS_BITS]


@requirement("cli.session-key-anonymous")
@given(st.text(max_size=300))
def test_every_text_has_an_estimate(text: str) -> None:
    assert 0.0 <= estimated_bits(text) <= 6.0 * len(text)


CHARACTERS = string.ascii_letters + string.digits + "-_+/="


@requirement("cli.session-key-anonymous")
def test_the_shares_of_all_characters_are_one_at_most_so_that_few_random_keys_look_written() -> None:
    # Markov's inequality needs nothing else: at most one random key in 2^b is 2^b times likelier as written text. Texts
    # without small letters have the shares of small ones: with them it is one in 2^(b-1).
    for before in CHARACTERS:
        assert sum(_share(before, after) for after in CHARACTERS) <= 1 + 1e-9, before
