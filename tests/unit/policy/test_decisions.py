"""What a context allows: a decision grants nothing for what a client announced."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.policy import PolicySettings, RuleSettings, WorkspaceSettings
from gateway.identity.context_rules import ContextRules
from gateway.policy.decisions import Policy, ServerPolicy
from session_store import Principal
from tests.requirements import requirement

GUEST = Principal(issuer="api-key", subject="guest")
NAMES = st.sampled_from(["", "a", "b", "team-a", "team-b", "c"])
PATTERNS = st.lists(st.sampled_from(["", "a", "team-*", "?*", "*", "**", "c"]), max_size=2).map(tuple)
RULE = st.builds(
    RuleSettings,
    workspaces=PATTERNS,
    trust=st.sampled_from([None, "direct", "sandboxed"]),
    permissions=st.lists(st.sampled_from(["p", "q"]), max_size=2).map(tuple),
)


ENTRIES = st.dictionaries(
    st.sampled_from(["a", "team-*", "?*", "*", "b"]),
    st.builds(
        WorkspaceSettings,
        servers=st.lists(st.sampled_from(["x", "y", "*"]), max_size=2).map(tuple),
        tools=st.lists(st.sampled_from(["x__t", "y__*", "*"]), max_size=2).map(tuple),
    ),
    max_size=4,
)


TOOLS = [(server, tool) for server in ("x", "y") for tool in ("t", "u")]


@requirement("wall.provenance")
@given(st.lists(RULE, max_size=5), st.sampled_from(["direct", "sandboxed"]), ENTRIES, NAMES, NAMES)
def test_no_name_that_is_announced_gives_more_than_any_other(
    rules: list[RuleSettings], default: str, entries: dict[str, WorkspaceSettings], one: str, other: str
) -> None:
    """Neither by naming a workspace that is granted something, nor by not naming one that is restricted."""

    def may(announced: str, *, trusted: bool) -> set[Any]:
        context = ContextRules(rules, default, trust_announced=trusted).context(GUEST, None, announced)
        policy = PolicySettings(workspaces=entries, trust_announced_workspace=trusted)
        decide = Policy(policy, {"x": ServerPolicy(), "y": ServerPolicy()}).decide
        tools = {pair for pair in TOOLS if decide(context, *pair).allowed}
        return {*context.permissions, *tools, *({"direct"} if context.trust == "direct" else ())}

    mine = may(one, trusted=False)
    assert mine == may(other, trusted=False), "the name makes no difference"
    assert mine <= may(one, trusted=True) & may(other, trusted=True), "and none of them would give less"
