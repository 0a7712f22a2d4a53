"""What a principal that is not here may still do: decided from the present configuration alone."""

from typing import Any

from gateway.config.auth import AuthSettings
from gateway.config.policy import RuleSettings
from gateway.identity.context_rules import ContextRules
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.offline_rights import OfflineRights
from session_store import ANONYMOUS, Principal
from tests.requirements import requirement

pytestmark = requirement("task.rights")

ALICE = Principal(issuer="api-key", subject="alice")
ADA = Principal(issuer="https://id.example", subject="ada")
RULE = RuleSettings(principals=("api-key:alice",), workspace="red", trust="direct", permissions=("deploy", "read"))


def jwt(**claims: str) -> AuthSettings:
    entry: Any = {"issuer": ADA.issuer, "audience": "mcp", "jwks_url": "https://id.example/keys", "claims": claims}
    return AuthSettings(jwt=(entry,), resource="https://mcp.example/mcp")


def why(
    principal: Principal,
    now: list[RuleSettings],
    *,
    before: tuple[RuleSettings, ...] = (RULE,),
    claims: CredentialClaims | None = None,
    keys: tuple[str, ...] = ("alice",),
    auth: AuthSettings | None = None,
    read_only: tuple[str, ...] = (),
) -> str:
    granted = ContextRules(before, "sandboxed").context(principal, claims, "announced")
    rules = ContextRules(now, "sandboxed", read_only=read_only)
    rights = OfflineRights(rules, api_keys=keys, auth=auth or AuthSettings(), allow_anonymous=not keys)
    return rights.why_lost(principal, granted)


def test_rights_stand_if_the_rules_give_all_of_them_today() -> None:
    assert why(ALICE, [RULE]) == ""
    assert why(ALICE, [RULE, RuleSettings(permissions=("more",))]) == ""
    assert why(ANONYMOUS, [], keys=()) == "", "with the workspace that it has announced"
    assert why(ADA, [], auth=jwt()) == "", "no claim has granted anything"


def test_rules_that_grant_less_today_take_the_rights() -> None:
    for change in ({"trust": "sandboxed"}, {"permissions": ("read",)}, {"workspace": "blue"}, {"read_only": True}):
        assert "fewer or other rights" in why(ALICE, [RULE.model_copy(update=change)]), change
    place = RuleSettings(principals=("api-key:alice",), workspace="red")
    assert "fewer or other rights" in why(ALICE, [])
    assert "fewer or other rights" in why(ALICE, [], before=(place,)), "a rule's workspace counts as no announced one"
    assert "fewer or other rights" in why(ALICE, [RULE], read_only=("direct",))


def test_a_principal_that_is_gone_has_no_rights() -> None:
    for principal in (ALICE, ADA, ANONYMOUS):
        assert "no longer configured" in why(principal, [RULE], keys=("bob",)), principal


def test_what_a_credential_has_granted_counts_as_not_granted() -> None:
    assert "not at hand" in why(ADA, [], auth=jwt(trust="trust"))
    assert "not at hand" in why(ADA, [], auth=jwt(workspace="team"))
    claimed = CredentialClaims(permissions=("deploy",))
    assert "fewer or other rights" in why(ADA, [], auth=jwt(), claims=claimed), "the claim of permissions"
    claimed = CredentialClaims(fields=(("desk", "7"),))
    assert why(ADA, [], auth=jwt(), claims=claimed) == "", "a field that is not configured is none"


@requirement("task.followed")
def test_what_a_credential_has_granted_counts_for_what_was_begun_with_it() -> None:
    rules, auth = ContextRules([RULE], "sandboxed"), jwt(trust="level")
    granted = rules.context(ALICE, None, "")
    for principal, keys, expected in ((ADA, (), ""), (ALICE, ("alice",), ""), (ALICE, (), "no longer configured")):
        rights = OfflineRights(rules, api_keys=keys, auth=auth, allow_anonymous=False)
        assert expected in rights.why_ended(principal, granted)
        assert rights.why_lost(ADA, granted) != ""
