"""What a credential says: values of claims and headers that the operator has named, and of no others."""

from typing import Any

import pytest

from gateway.config.auth import ClaimNames, ProxySettings
from gateway.identity.credential_claims import (
    CredentialClaims,
    fields_in_headers,
    granted_by,
    granted_in_headers,
    normal_trust,
)
from tests.requirements import requirement


@requirement("pol.trust")
@pytest.mark.parametrize(
    ("level", "trust"), [(" Direct ", "direct"), ("SANDBOXED", "sandboxed"), ("root", "sandboxed")]
)
def test_an_unknown_level_of_trust_is_the_lowest(level: str, trust: str) -> None:
    assert normal_trust(level) == trust and normal_trust(None) == normal_trust(True) == "sandboxed"


@requirement("wall.provenance")
def test_a_missing_claim_grants_nothing_and_an_unnamed_one_is_not_asked_for() -> None:
    names = ClaimNames(trust="mcp.trust", workspace="team")
    full = granted_by({"mcp": {"trust": "direct"}, "team": "a", "scope": "x y x"}, names)
    assert (full.trust, full.workspace, full.permissions, full.names_workspace) == ("direct", "a", ("x", "y"), True)
    none = granted_by({}, names)
    assert (none.trust, none.workspace, none.permissions, none.names_workspace) == ("sandboxed", None, (), True)
    assert granted_by({"trust": "direct", "workspace": "a"}, ClaimNames()).trust is None


@requirement("ctx.open")
@pytest.mark.parametrize(
    ("claim", "text"),
    [
        ("x", "x"),
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        (["a", "b"], "a b"),
        ([], ""),
        (["a", 1], ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_claim_becomes_the_text_of_a_field(claim: Any, text: str) -> None:
    fields = {"team": "org.team", "other": "nowhere"}
    for claims in ({"org": {"team": claim}}, {"org.team": claim}):
        assert granted_by(claims, ClaimNames(), fields).fields == ((("team", text),) if text else ())


@requirement("ctx.open")
def test_fields_come_from_headers_in_utf_8() -> None:
    headers = {"x-team": "caf\u00c3\u00a9", "x-empty": ""}
    assert fields_in_headers(headers, {"team": "x-team", "empty": "x-empty", "none": "x-none"}) == (("team", "café"),)
    with pytest.raises(ValueError, match="decode"):
        fields_in_headers({"x-team": "caf\u00e9"}, {"team": "x-team"})


def test_headers_of_a_proxy_say_what_claims_say() -> None:
    names = ProxySettings(
        networks=("10.0.0.0/8",),
        subject_header="X-User",
        trust_header="X-Trust",
        workspace_header="X-Team",
        permissions_header="X-May",
    )
    found = granted_in_headers({"x-trust": "direct", "x-team": "a", "x-may": "p, q p"}, names)
    assert (found.trust, found.workspace, found.permissions) == ("direct", "a", ("p", "q"))
    assert granted_in_headers({}, names) == CredentialClaims(trust="sandboxed", names_workspace=True)
