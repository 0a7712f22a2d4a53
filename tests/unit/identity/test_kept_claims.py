"""Claims that leave a session the context it has, whoever its credential was."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.context import FieldSettings
from gateway.config.policy import RuleSettings
from gateway.identity.context_rules import ContextRules
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.kept_claims import kept_claims
from session_store import Principal, Session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement

pytestmark = requirement("ops.try-tools")

ALICE = Principal(issuer="https://issuer.example", subject="alice")
RULES = ContextRules(
    [
        RuleSettings(principals=("*alice",), permissions=("notes:read",)),
        RuleSettings(workspaces=("team-*",), permissions=("team",)),
    ],
    "direct",
)
CLAIMS = st.none() | st.builds(
    CredentialClaims,
    trust=st.none() | st.sampled_from(["direct", "sandboxed"]),
    workspace=st.none() | st.sampled_from(["team-a", "other"]),
    permissions=st.lists(st.sampled_from(["mail", "notes:read", "team"]), unique=True).map(sorted).map(tuple),
    names_workspace=st.booleans(),
)


def a_session_of(claims: CredentialClaims | None, announced: str = "") -> Session:
    context = RULES.context(ALICE, claims, announced)
    return a_session(FakeClock(time.time()), principal=ALICE, context=context)


@given(CLAIMS, st.sampled_from(["", "team-b", "mine"]))
def test_the_context_stays_as_the_credential_has_made_it(claims: CredentialClaims | None, announced: str) -> None:
    session = a_session_of(claims, announced)
    kept = kept_claims(session, RULES)
    assert kept is not None
    assert RULES.renewed(session, kept) == session.context


@requirement("ctx.open")
def test_fields_stay_as_the_credential_has_set_them() -> None:
    rules = ContextRules([], "direct", fields={"team": FieldSettings(claim="team")})
    context = rules.context(ALICE, CredentialClaims(fields=(("team", "red"),)), "")
    kept = kept_claims(a_session(FakeClock(), principal=ALICE, context=context), rules)
    assert kept is not None and kept.fields == (("team", "red"),)


@pytest.mark.parametrize(
    "rule",
    [RuleSettings(trust="sandboxed"), RuleSettings(read_only=True), RuleSettings(workspace="moved")],
    ids=["trust", "read-only", "workspace"],
)
def test_after_a_change_of_the_rules_there_are_none(rule: RuleSettings) -> None:
    assert kept_claims(a_session_of(None), ContextRules([rule], "direct")) is None
