"""Check whether the policy depends on workspaces that clients announce. Pure: reads the configuration only."""

from collections.abc import Iterator

from gateway.config.settings import Settings
from gateway.doctor.findings import Finding, ok, warning
from gateway.identity.context_rules import is_catch_all, is_for_all

_DO = "take the workspace from a claim (auth.jwt[].claims.workspace) or a rule (policy.rules[].workspace)"


def check_workspaces(settings: Settings) -> Iterator[Finding]:
    """Warn if workspaces that clients announce grant something, or if the policy names workspaces but only clients
    announce them."""
    auth, policy = settings.gateway.auth, settings.gateway.policy
    if policy.trust_announced_workspace:
        yield warning(
            "workspaces",
            "policy.trust_announced_workspace is on: any client may take any workspace, with all that it grants",
            f"{_DO}, and switch the setting off, unless you trust all clients",
        )
        return
    named = [f"policy.rules[{n}].workspaces" for n, rule in enumerate(policy.rules) if not is_for_all(rule)]
    named += [f"policy.workspaces.{pattern}" for pattern in policy.workspaces if not is_catch_all(pattern)]
    said = any(entry.claims.workspace for entry in auth.jwt) or any(rule.workspace is not None for rule in policy.rules)
    if named and not said:
        yield warning(
            "workspaces",
            f"{', '.join(named)}: workspaces come only from what clients announce, and that grants nothing",
            f"{_DO}; or set policy.trust_announced_workspace if you trust all clients",
        )
    else:
        yield ok("workspaces", "no setting depends on the workspace that a client announces")
