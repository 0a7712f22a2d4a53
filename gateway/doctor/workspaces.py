"""Whether a client's own word on its workspace grants it something, or is all there is where something else is needed.

Pure: looks at the configuration only.
"""

from collections.abc import Iterator

from gateway.config.settings import Settings
from gateway.doctor.findings import Finding, doubtful, good
from gateway.identity.context_rules import is_catch_all, is_for_all

__all__ = ["check_workspaces"]

_DO = (
    "take the workspace from a claim (auth.jwt[].claims.workspace), a proxy's header (auth.proxies.workspace_header) "
    "or a rule (policy.rules[].workspace)"
)


def check_workspaces(settings: Settings) -> Iterator[Finding]:
    """Who says which workspace a session is in, where that makes a difference."""
    auth, policy = settings.gateway.auth, settings.gateway.policy
    if policy.trust_announced_workspace:
        yield doubtful(
            "workspaces",
            "policy.trust_announced_workspace is on: any client may take any workspace, and what it grants",
            f"{_DO}, and switch it off, unless all clients are yours",
        )
        return
    named = [f"policy.rules[{n}].workspaces" for n, rule in enumerate(policy.rules) if not is_for_all(rule)]
    named += [f"policy.workspaces.{pattern}" for pattern in policy.workspaces if not is_catch_all(pattern)]
    said = (
        any(entry.claims.workspace for entry in auth.jwt)
        or (auth.proxies is not None and auth.proxies.workspace_header)
        or any(rule.workspace is not None for rule in policy.rules)
    )
    if named and not said:
        yield doubtful(
            "workspaces",
            f"{', '.join(named)}: only clients say which workspace is theirs, and their word grants nothing",
            f"{_DO}; or set policy.trust_announced_workspace, if all clients are yours",
        )
    else:
        yield good("workspaces", "what clients announce grants nothing")
