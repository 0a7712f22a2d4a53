"""What a credential says: values of claims and headers that the operator has named, and of no others."""

from typing import Any

import pytest

from gateway.config.auth import ClaimNames, ProxySettings
from gateway.identity.credential_claims import (
    MAX_SUBJECT_CHARS,
    CallerToken,
    CredentialClaims,
    claims_in_headers,
    claims_in_token,
    fields_in_headers,
    normal_trust,
    subject_fault,
)
from tests.requirements import requirement


@requirement("pol.trust")
def test_an_unknown_level_of_trust_is_the_lowest() -> None:
    levels = [" Direct ", "SANDBOXED", "root", None, True]
    assert [normal_trust(level) for level in levels] == ["direct", *["sandboxed"] * 4]


@requirement("wall.provenance")
def test_a_missing_claim_grants_nothing_and_an_unnamed_one_is_not_asked_for() -> None:
    names = ClaimNames(trust="mcp.trust", workspace="team")
    full = claims_in_token({"mcp": {"trust": "direct"}, "team": "a", "scope": "x y x"}, names)
    assert full == CredentialClaims("direct", "a", ("x", "y"), names_workspace=True)
    assert claims_in_token({}, names) == CredentialClaims("sandboxed", None, (), names_workspace=True)
    assert claims_in_token({"trust": "direct", "workspace": "a"}, ClaimNames()).trust is None


CLAIMS: dict[str, list[Any]] = {
    "x": ["x"],
    "7": [7],
    "1.5": [1.5],
    "true": [True],
    "a b": [["a", "b"]],
    "": [[], ["a", 1], {}, None],
}


@requirement("ctx.open")
@pytest.mark.parametrize(("text", "claim"), [(text, claim) for text, claims in CLAIMS.items() for claim in claims])
def test_a_claim_becomes_the_text_of_a_field(text: str, claim: Any) -> None:
    fields = {"team": "org.team", "other": "nowhere"}
    for claims in ({"org": {"team": claim}}, {"org.team": claim}):
        assert claims_in_token(claims, ClaimNames(), fields).fields == ((("team", text),) if text else ())


@requirement("ctx.open")
def test_fields_come_from_headers_in_utf_8() -> None:
    headers = {"x-team": "caf\u00c3\u00a9", "x-empty": ""}
    assert fields_in_headers(headers, {"team": "x-team", "empty": "x-empty", "none": "x-none"}) == (("team", "café"),)
    with pytest.raises(ValueError, match="decode"):
        fields_in_headers({"x-team": "caf\u00e9"}, {"team": "x-team"})


def test_a_header_of_a_proxy_has_permissions() -> None:
    names = ProxySettings(networks=("10.0.0.0/8",), subject_header="X-User", permissions_header="X-May")
    assert claims_in_headers({"x-may": "p, q p"}, names) == CredentialClaims(permissions=("p", "q"))
    assert claims_in_headers({}, names) == CredentialClaims()


@requirement("wall.authority")
def test_a_name_that_people_can_read_is_usable() -> None:
    for subject in ("ada", "CN=ada,O=x", "\u0141ucja", "a b", "x" * MAX_SUBJECT_CHARS, "7", "../x"):
        assert subject_fault(subject) == "", subject


@requirement("wall.authority")
@pytest.mark.parametrize(
    ("why", "subjects"),
    [
        ("empty", ["", " ", None, 7]),
        ("longer than 256", ["x" * (MAX_SUBJECT_CHARS + 1)]),
        ("invisible", ["a\nb", "a\x00", "a\u2028b", "a\u202eb", " ada", "ada\u00a0"]),
    ],
)
def test_a_name_that_deceives_its_reader_is_not(why: str, subjects: list[object]) -> None:
    for subject in subjects:
        assert why in subject_fault(subject), repr(subject)


@requirement("cred.exchange")
def test_tokens_are_equal_if_they_differ_in_times_and_ids_only() -> None:
    claims = {"sub": "ada", "scope": "read", "groups": ["a"], "exp": 100, "iat": 1, "jti": "x"}
    one = CallerToken.of("one", claims)
    assert one.expires == 130.0 and "one" not in repr(one)
    assert one == CallerToken.of("two", {**claims, "exp": 900, "iat": 800, "jti": "y", "sid": "z"})
    assert one == CallerToken.of("one", dict(reversed(claims.items())))
    others: list[dict[str, Any]] = [{"scope": "write"}, {"groups": []}, {"act": {"sub": "bot"}}, {"sub": "ben"}]
    for other in others:
        assert CredentialClaims(token=one) != CredentialClaims(token=CallerToken.of("one", claims | other))
