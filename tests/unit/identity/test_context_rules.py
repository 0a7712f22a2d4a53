"""The context of a session from credential claims and operator rules."""

from gateway.config.policy import RuleSettings
from gateway.identity.context_rules import ContextRules, CredentialClaims
from session_store import Principal, Provenance
from tests.requirements import requirement

GUEST = Principal(issuer="api-key", subject="guest")
BOSS = "team-boss"


@requirement("wall.provenance")
def test_each_fact_says_where_it_comes_from() -> None:
    rules = [RuleSettings(principals=("api-key:fixed",), workspace="w", permissions=("p",))]
    rules.append(RuleSettings(workspaces=("team-*",), trust="direct", permissions=("q",)))

    def found(
        principal: Principal, granted: CredentialClaims | None, announced: str, *, trusted: bool = False
    ) -> Provenance:
        return (
            ContextRules(rules, "sandboxed", trust_announced=trusted).context(principal, granted, announced).provenance
        )

    announced, configured, authenticated = "announced", "configured", "authenticated"
    fixed = Principal(issuer="api-key", subject="fixed")
    everything = CredentialClaims("direct", "w", ("p",), True)
    for provenance, expected in (
        (found(GUEST, None, BOSS), (announced, configured, configured)),
        (found(GUEST, None, BOSS, trusted=True), (announced, announced, announced)),
        (found(fixed, None, BOSS), (configured, configured, configured)),
        (found(GUEST, everything, BOSS), (authenticated, authenticated, authenticated)),
        (found(GUEST, CredentialClaims(names_workspace=True), BOSS), (authenticated, configured, configured)),
    ):
        assert (provenance.workspace, provenance.trust, provenance.permissions) == expected
