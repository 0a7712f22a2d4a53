"""The context of a session from credential claims and operator rules."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.policy import RuleSettings
from gateway.config.sessions import FieldSettings
from gateway.identity.context_rules import ContextRules, announced_fields_of, is_catch_all, is_for_all, kept_claims
from gateway.identity.credential_claims import CallerToken, CredentialClaims
from session_store import ContextField, Principal, Session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused

GUEST = Principal(issuer="api-key", subject="guest")
BOSS = "team-boss"


@requirement("wall.provenance")
def test_each_fact_says_where_it_comes_from() -> None:
    rules = [RuleSettings(principals=("api-key:fixed",), workspace="w", permissions=("p",))]
    rules.append(RuleSettings(workspaces=("team-*",), trust="direct", permissions=("q",)))

    fixed = Principal(issuer="api-key", subject="fixed")
    everything, a_name = CredentialClaims("direct", "w", ("p",), True), CredentialClaims(names_workspace=True)
    announced, configured, authenticated = "announced", "configured", "authenticated"
    for principal, granted, trusted, expected in (
        (GUEST, None, False, (announced, configured, configured)),
        (GUEST, None, True, (announced, announced, announced)),
        (fixed, None, False, (configured, configured, configured)),
        (GUEST, everything, False, (authenticated, authenticated, authenticated)),
        (GUEST, a_name, False, (authenticated, configured, configured)),
    ):
        found = ContextRules(rules, "sandboxed", trust_announced=trusted).context(principal, granted, BOSS).provenance
        assert (found.workspace, found.trust, found.permissions) == expected


@requirement("pol.read-only", "wall.provenance")
def test_a_rule_makes_sessions_read_only_and_no_announced_name_escapes_it() -> None:
    rules = [
        RuleSettings(workspaces=("archive",), read_only=True, trust="sandboxed"),
        RuleSettings(principals=("api-key:x",), workspace="w"),
    ]
    found = ContextRules(rules, "direct")
    levels = [found.context(GUEST, CredentialClaims(workspace=name), "").trust for name in ("archive", "open")]
    assert levels == ["sandboxed", "direct"] and found.context(GUEST, None, "open").trust == "sandboxed"
    assert found.context(GUEST, CredentialClaims(workspace="archive"), "").read_only
    assert not found.context(GUEST, CredentialClaims(workspace="open"), "").read_only
    assert found.context(GUEST, None, "archive").read_only and found.context(GUEST, None, "open").read_only
    assert not found.context(Principal(issuer="api-key", subject="x"), None, "archive").read_only
    trusted = ContextRules(rules, "direct", trust_announced=True)
    assert trusted.context(GUEST, None, "archive").read_only and not trusted.context(GUEST, None, "open").read_only
    by_trust = ContextRules([], "sandboxed", read_only={"sandboxed"})
    assert by_trust.context(GUEST, None, "").read_only
    assert not by_trust.context(GUEST, CredentialClaims(trust="direct"), "").read_only


def test_only_stars_match_every_name() -> None:
    patterns = ("*", "**", "", " ", "a*", "?*")
    assert [pattern for pattern in patterns if is_catch_all(pattern)] == ["*", "**"]
    assert [pattern for pattern in patterns if is_for_all(RuleSettings(workspaces=("x", pattern)))] == ["*", "**"]


@requirement("wall.provenance")
def test_variables_of_a_rule_are_for_its_principals_and_the_announced_fields_are_those_of_the_client() -> None:
    fields = {"team": FieldSettings(announced="team"), "site": FieldSettings(value="north")}
    rules = ContextRules([RuleSettings(principals=("api-key:guest",), env={"A": "1"})], "direct", fields=fields)
    context = rules.context(GUEST, None, "", (("team", "blue"),))
    assert rules.variables(GUEST, context, "files", {}) == {"A": ("1", "gateway.policy.rules[0].env")}
    assert not rules.variables(Principal(issuer="api-key", subject="x"), context, "files", {})
    assert announced_fields_of(context) == (("team", "blue"),)


@requirement("life.ttl")
def test_the_first_rule_that_applies_and_sets_a_lifetime_decides_it() -> None:
    rules = ContextRules(
        [
            RuleSettings(principals=("api-key:x",), idle_ttl_s=5),
            RuleSettings(workspaces=("w",), idle_ttl_s=60),
            RuleSettings(idle_ttl_s=90, max_age_s=900),
        ],
        "direct",
    )
    of_all = {"idle_ttl_s": (90, "gateway.policy.rules[2].idle_ttl_s")}
    aged = {"max_age_s": (900, "gateway.policy.rules[2].max_age_s")}
    assert rules.lifetimes(GUEST, rules.context(GUEST, None, "")) == of_all | aged
    in_w = rules.context(GUEST, CredentialClaims(workspace="w"), "")
    assert rules.lifetimes(GUEST, in_w) == aged | {"idle_ttl_s": (60, "gateway.policy.rules[1].idle_ttl_s")}
    key = Principal(issuer="api-key", subject="x")
    assert rules.lifetimes(key, in_w)["idle_ttl_s"] == (5, "gateway.policy.rules[0].idle_ttl_s")
    assert ContextRules([RuleSettings(trust="direct")], "direct").lifetimes(GUEST, in_w) == {}


@requirement("pol.explain")
def test_each_fact_has_the_setting_that_decides_it_as_its_reason() -> None:
    rules = [
        RuleSettings(principals=("api-key:guest",), trust="sandboxed", permissions=("p",)),
        RuleSettings(workspaces=("team-*",), permissions=("q",), read_only=True),
        RuleSettings(workspace="w"),
    ]

    def why(granted: CredentialClaims | None, announced: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for reason in ContextRules(rules[:2], "direct").derive(GUEST, granted, announced).reasons:
            found.setdefault(reason.fact, []).append(reason.text)
        return found

    assert why(None, "")["workspace"] == ["nothing sets it"]
    assert why(None, "team-a") == {
        "workspace": ["the client announces it"],
        "trust": ["gateway.policy.rules[0].trust"],
        "permissions": ["gateway.policy.rules[0].permissions: p"],
        "rules": ["gateway.policy.rules[1] grants nothing: the workspace is only announced"],
        "read_only": ["gateway.policy.rules[1].read_only"],
    }
    assert why(CredentialClaims("direct", "team-a", ("r", "s"), True), "x") == {
        "workspace": ["the credential sets it"],
        "trust": ["the credential sets it, or lacks the claim that is named for it"],
        "permissions": [
            "the credential: r, s",
            "gateway.policy.rules[0].permissions: p",
            "gateway.policy.rules[1].permissions: q",
        ],
        "read_only": ["gateway.policy.rules[1].read_only"],
    }
    fixed = ContextRules(rules[2:], "direct", read_only={"direct"}).derive(GUEST, None, "x").reasons
    assert {r.fact: r.text for r in fixed} == {
        "workspace": "gateway.policy.rules[0].workspace",
        "trust": "gateway.session.trust, because neither a credential nor a rule sets it",
        "read_only": "gateway.policy.read_only has the trust direct",
    }


@requirement("ctx.open", "wall.provenance")
def test_a_field_has_the_value_of_its_one_source_and_says_which() -> None:
    fields = {
        "fixed": FieldSettings(value="f"),
        "team": FieldSettings(claim="team", value="nobody"),
        "desk": FieldSettings(header="X-Desk"),
        "own": FieldSettings(announced="own"),
    }
    rules = ContextRules([], "direct", fields=fields)
    announced = tuple((name, "a") for name in fields)
    found = rules.derive(GUEST, CredentialClaims(fields=(("team", "red"), ("desk", "7"), ("own", "x"))), "", announced)
    assert {field.name: (field.value, field.source) for field in found.context.fields} == {
        "fixed": ("f", "configured"),
        "team": ("red", "authenticated"),
        "desk": ("7", "authenticated"),
        "own": ("a", "announced"),
    }
    assert {r.fact: r.text for r in found.reasons if r.fact.startswith("fields.")} == {
        "fields.fixed": "gateway.context.fields.fixed.value",
        "fields.team": "the claim team",
        "fields.desk": "the header X-Desk of the proxy",
        "fields.own": "the client announces it",
    }
    plain = rules.context(GUEST, None, "").fields
    assert plain == (ContextField("fixed", "f", "configured"), ContextField("team", "nobody", "configured"))
    with pytest.raises(Refused, match="own is longer than 1024"):
        rules.context(GUEST, None, "", (("own", "x" * 1_025),))


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


@requirement("ops.try-tools")
@given(CLAIMS, st.sampled_from(["", "team-b", "mine"]))
def test_the_context_stays_as_the_credential_has_made_it(claims: CredentialClaims | None, announced: str) -> None:
    session = a_session_of(claims, announced)
    kept = kept_claims(session, RULES)
    assert kept is not None
    assert RULES.renewed(session, kept) == session.context


@requirement("ops.try-tools", "ctx.open")
def test_fields_stay_as_the_credential_has_set_them() -> None:
    rules = ContextRules([], "direct", fields={"team": FieldSettings(claim="team")})
    context = rules.context(ALICE, CredentialClaims(fields=(("team", "red"),)), "")
    kept = kept_claims(a_session(FakeClock(), principal=ALICE, context=context), rules)
    assert kept is not None and kept.fields == (("team", "red"),)


@requirement("ops.try-tools", "cred.exchange")
def test_an_operator_has_the_rights_of_the_sessions_token_without_the_token() -> None:
    token = CallerToken("hers", 9e9, "all")
    session = a_session(FakeClock(), principal=ALICE, context=RULES.context(ALICE, CredentialClaims(token=token), ""))
    kept = kept_claims(session, RULES)
    assert kept is not None and RULES.renewed(session, kept) == session.context
    assert kept.token == token and kept.token.token == ""


@requirement("ops.try-tools")
@pytest.mark.parametrize(
    "rule",
    [RuleSettings(trust="sandboxed"), RuleSettings(read_only=True), RuleSettings(workspace="moved")],
    ids=["trust", "read-only", "workspace"],
)
def test_after_a_change_of_the_rules_there_are_none(rule: RuleSettings) -> None:
    assert kept_claims(a_session_of(None), ContextRules([rule], "direct")) is None
