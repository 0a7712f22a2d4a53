"""The context of a session from credential claims and operator rules."""

import pytest

from gateway.config.context import FieldSettings
from gateway.config.policy import RuleSettings
from gateway.identity.context_rules import ContextRules
from gateway.identity.credential_claims import CredentialClaims
from session_store import ContextField, Principal
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
        RuleSettings(workspaces=("archive",), read_only=True),
        RuleSettings(principals=("api-key:x",), workspace="w"),
    ]
    found = ContextRules(rules, "direct")
    assert found.context(GUEST, CredentialClaims(workspace="archive"), "").read_only
    assert not found.context(GUEST, CredentialClaims(workspace="open"), "").read_only
    assert found.context(GUEST, None, "archive").read_only and found.context(GUEST, None, "open").read_only
    assert not found.context(Principal(issuer="api-key", subject="x"), None, "archive").read_only
    trusted = ContextRules(rules, "direct", trust_announced=True)
    assert trusted.context(GUEST, None, "archive").read_only and not trusted.context(GUEST, None, "open").read_only
    by_trust = ContextRules([], "sandboxed", read_only={"sandboxed"})
    assert by_trust.context(GUEST, None, "").read_only
    assert not by_trust.context(GUEST, CredentialClaims(trust="direct"), "").read_only


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
    assert why(CredentialClaims("direct", "team-a", ("r",), True), "x") == {
        "workspace": ["the credential sets it"],
        "trust": ["the credential sets it, or lacks the claim or header that is named for it"],
        "permissions": [
            "the credential: r",
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
        "own": FieldSettings(announced="own", max_chars=3),
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
    with pytest.raises(Refused, match="own is longer than 3"):
        rules.context(GUEST, None, "", (("own", "long"),))
