"""What a context allows: a decision grants nothing for what a client announced."""

from typing import Any, Final

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.policy import PolicySettings, RuleSettings, WorkspaceSettings
from gateway.config.upstreams import ItemSettings, MethodSettings, ToolSettings
from gateway.identity.context_rules import ContextRules
from gateway.policy.access_policy import Policy
from session_store import Context, ContextField, Principal, Provenance
from tests.requirements import requirement
from tests.support.paged_server import ruled

GUEST = Principal(issuer="api-key", subject="guest")
NAMES = st.sampled_from(["", "a", "b", "team-a", "team-b", "c"])
PATTERNS = st.lists(st.sampled_from(["", "a", "team-*", "?*", "*", "**", "c"]), max_size=2).map(tuple)
RULE = st.builds(
    RuleSettings,
    workspaces=PATTERNS,
    trust=st.sampled_from([None, "direct", "sandboxed"]),
    permissions=st.lists(st.sampled_from(["p", "q"]), max_size=2).map(tuple),
    read_only=st.booleans(),
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
        decide = Policy(policy, {"x": ruled(), "y": ruled()}).decide
        tools = {pair for pair in TOOLS if decide(context, *pair).allowed}
        more = {"direct": context.trust == "direct", "writes": not context.read_only}
        return {*context.permissions, *tools, *(name for name, has in more.items() if has)}

    mine = may(one, trusted=False)
    assert mine == may(other, trusted=False), "the name makes no difference"
    assert mine <= may(one, trusted=True) & may(other, trusted=True), "and none of them would give less"


READING, WRITING = "read", "write"
DIRECT, SANDBOXED = Context(trust="direct"), Context(trust="sandboxed")
READER: Final = Context(trust="direct", read_only=True)
OPEN: Final = PolicySettings()


def policy_of(settings: PolicySettings = OPEN, **rules: Any) -> Policy:
    """Of one server, which has these rules."""
    return Policy(settings, {"s": ruled(**rules)})


def in_workspace(name: str, **fields: Any) -> Context:
    """A context whose workspace counts: it was not announced."""
    return Context(workspace=name, provenance=Provenance(workspace="configured"), **fields)


@requirement("pol.operation", "pol.read-only")
def test_an_operation_is_what_is_configured_and_else_what_the_annotations_say() -> None:
    tools: dict[str, Any] = {"forget": "read", "look": "write", "run*": "eval"}
    policy = policy_of(tools={name: ToolSettings(operation=operation) for name, operation in tools.items()})
    found = {
        tool: [policy.decide(Context(), "s", tool, annotated).operation for annotated in (READING, WRITING)]
        for tool in ("forget", "look", "run_it", "other")
    }
    assert found == {
        "forget": ["read", "read"],
        "look": ["write", "write"],
        "run_it": ["eval", "eval"],
        "other": ["read", "write"],
    }
    allowed = {tool for tool in found if policy.decide(READER, "s", tool, READING).allowed}
    assert allowed == {"forget", "other"}
    assert not policy.decide(READER, "s", "other").allowed, "a tool without annotations may write"


@requirement("pol.read-only")
def test_a_read_only_session_has_no_tool_that_evaluates_even_where_others_have() -> None:
    policy = policy_of(PolicySettings(eval_tools=True), tools={"run": ToolSettings(operation="eval")})
    assert policy.decide(Context(), "s", "run").allowed and not policy.decide(READER, "s", "run").allowed


@requirement("pol.read-only")
def test_names_matter_wherever_a_session_can_be_read_only() -> None:
    """An unlisted tool has no annotations: in a read-only session it has to be unknown."""
    reads = RuleSettings(workspaces=("archive",), read_only=True)
    for settings in (PolicySettings(read_only=frozenset({"sandboxed"})), PolicySettings(rules=(reads,))):
        assert "tools" in policy_of(settings).restricts("s")
    assert policy_of().restricts("s") == frozenset()


@requirement("pol.explain")
def test_what_is_hidden_is_hidden_by_a_setting_that_the_reason_names() -> None:
    tools = {"drop*": ToolSettings(direct_only=True), "pay": ToolSettings(permissions=("paid", "seen"))}
    items = {"p": ItemSettings(permissions=("paid",)), "file:///*": ItemSettings(direct_only=True)}
    policy = Policy(
        PolicySettings(workspaces={"team-*": WorkspaceSettings(servers=("s", "d", "p"), tools=("s__[!o]*",))}),
        {
            "s": ruled(tools=tools | {"run": ToolSettings(operation="eval")}, prompts=items, resource_uris=items),
            "d": ruled(direct_only=True),
            "p": ruled(permissions=("paid", "more")),
            "out": ruled(),
        },
    )
    context = in_workspace("team-a", trust="sandboxed", permissions=("seen",), read_only=True)
    assert policy.why_hidden(context, "s") == ""
    assert "mcpServers.d.direct_only" in policy.why_hidden(context, "d")
    assert policy.why_hidden(msgspec.structs.replace(context, trust="direct"), "d") == ""
    assert "it needs more, paid (mcpServers.p.permissions)" in policy.why_hidden(context, "p")
    assert "gateway.policy.workspaces.team-*.servers" in policy.why_hidden(context, "out")
    assert "no entry of gateway.policy.workspaces" in policy.why_hidden(in_workspace("elsewhere"), "s")
    reasons = {tool: policy.decide(context, "s", tool, READING).reason for tool in ("drop_it", "run", "pay", "other")}
    assert "mcpServers.s.tools.drop*.direct_only" in reasons["drop_it"]
    assert policy.decide(msgspec.structs.replace(context, trust="direct"), "s", "drop_it", READING).allowed
    assert "gateway.policy.eval_tools; mcpServers.s.tools.run.operation" in reasons["run"]
    assert "it needs paid (mcpServers.s.tools.pay.permissions)" in reasons["pay"]
    assert "gateway.policy.workspaces.team-*.tools" in reasons["other"]
    writes = policy.decide(context, "s", "write_it", WRITING).reason
    assert "read-only" in writes and "the tool's annotations" in writes
    assert "mcpServers.s.prompts.p.permissions" in policy.why_prompt_hidden(context, "s", "p")
    assert "mcpServers.s.resource_uris.file:///*.direct_only" in policy.why_listed_uri_hidden(context, "s", "file:///a")
    assert "d.direct_only" in policy.decide(context, "d", "any", READING).reason
    assert "d.direct_only" in policy.why_method_hidden(context, "d", "com.acme/do")


@requirement("pol.explain", "pol.trust")
def test_a_workspace_has_the_prompts_and_resources_of_its_entry_in_every_form_of_their_names() -> None:
    entry = WorkspaceSettings(prompts=("s__open*",), resources=("s__file:///open/*",))
    direct = {"file:///open/direct*": ItemSettings(direct_only=True)}
    policy = policy_of(PolicySettings(workspaces={"a": entry}), resource_uris=direct)
    inside = in_workspace("a", trust="sandboxed")
    assert not policy.why_hidden(inside, "s") and policy.why_hidden(in_workspace("b", trust="sandboxed"), "s")
    assert not policy.why_prompt_hidden(inside, "s", "open_one")
    assert "gateway.policy.workspaces.a.prompts" in policy.why_prompt_hidden(inside, "s", "other")
    for uri, is_allowed in (
        ("file:///open/x", True),
        ("file:///other", False),
        ("file:///open/../other", False),
        ("file:///open/direct", False),
        ("file:///open/%64irect", False),
        ("file:///open/%0a", False),
    ):
        assert policy.allows_uri(inside, "s", uri) is is_allowed, uri
        assert (not policy.why_listed_uri_hidden(inside, "s", uri)) is is_allowed, uri
    assert "gateway.policy.workspaces.a.resources" in policy.why_listed_uri_hidden(inside, "s", "file:///other")
    uris = frozenset({"file:///open/x", "file:///open/direct", "file:///other"})
    assert policy.permitted_uris(inside, "s", uris) == {"file:///open/x"}


@requirement("wall.memory", "ctx.open")
def test_decisions_are_cached_neither_by_fields_nor_by_what_a_client_announces() -> None:
    policy = policy_of(PolicySettings(workspaces={"*": WorkspaceSettings()}))
    plain = policy.cache_key_context(Context(fields=(ContextField("team", "a"),)))
    assert plain == policy.cache_key_context(Context(fields=(ContextField("team", "b"),))) == Context()
    for announced in ("/" + "x" * 4_000, "short"):
        assert policy.cache_key_context(Context(workspace=announced)) == Context()
    vouched = Context(workspace="/" + "x" * 4_000, provenance=Provenance(workspace="authenticated"))
    assert policy.cache_key_context(vouched) == vouched, "its name decides"
    trusting = policy_of(PolicySettings(trust_announced_workspace=True))
    assert trusting.cache_key_context(Context(workspace="/" + "x" * 4_000)).workspace


@requirement("wall.provenance")
def test_an_announced_workspace_is_restricted_by_all_entries_up_to_the_one_for_every_name() -> None:
    entries = {"team-*": WorkspaceSettings(servers=("s", "t")), "*": WorkspaceSettings(servers=("s",))}
    for workspaces, seen in ((entries, ["s"]), (entries | {"more": WorkspaceSettings(servers=())}, ["s"])):
        policy = Policy(PolicySettings(workspaces=workspaces), {"s": ruled(), "t": ruled()})
        announced = Context(workspace="team-a")
        assert [server for server in ("s", "t") if not policy.why_hidden(announced, server)] == seen
        assert policy.restricted_by(announced) == ["team-*", "*"]
        assert not policy.why_hidden(in_workspace("team-a"), "t") and policy.why_hidden(in_workspace("else"), "t")


@requirement("ops.foreign-config", "pol.trust")
def test_a_tool_that_the_configuration_hides_is_nobodys() -> None:
    servers = {
        "x": ruled(only_tools=("read_*", "list"), hidden_tools=("read_secrets",)),
        "y": ruled(only_tools=()),
        "z": ruled(hidden_tools=("\u0065val",)),
        "open": ruled(),
    }
    policy = Policy(PolicySettings(), servers)
    context = Context(trust="direct", permissions=("p",))
    tools = ("read_file", "read_secrets", "list", "eval", "\uff45val")
    assert {server: [tool for tool in tools if policy.decide(context, server, tool).allowed] for server in servers} == {
        "x": ["read_file", "list"],
        "y": [],
        "z": ["read_file", "read_secrets", "list"],
        "open": [*tools],
    }
    assert "mcpServers.x.hidden_tools" in policy.decide(context, "x", "read_secrets").reason
    assert "mcpServers.y.only_tools" in policy.decide(context, "y", "list").reason
    assert [bool(policy.restricts(server)) for server in servers] == [True, True, True, False]


def why_method(context: Context, method: str, settings: PolicySettings = OPEN, **rules: Any) -> str:
    return policy_of(settings, **rules).why_method_hidden(context, "s", method)


@requirement("ext.relay")
def test_where_a_part_of_a_server_is_hidden_only_methods_that_are_named_are_allowed() -> None:
    assert why_method(SANDBOXED, "com.acme/do") == "", "nothing of the server is restricted"
    hidden: dict[str, Any] = {"tools": {"drop*": ToolSettings(direct_only=True)}}
    assert "no pattern in mcpServers.s.methods" in why_method(DIRECT, "com.acme/do", **hidden)
    named: dict[str, Any] = hidden | {"methods": {"com.acme/*": MethodSettings()}}
    assert why_method(SANDBOXED, "com.acme/do", **named) == ""
    assert why_method(SANDBOXED, "notifications/com.acme/do", **named) == ""
    assert why_method(SANDBOXED, "com.other/do", **named) != ""
    assert why_method(SANDBOXED, "\uff43om.acme/do", **named) != "", "a lookalike is not what was named"


@requirement("ext.relay")
def test_all_patterns_that_match_a_method_apply() -> None:
    methods = {
        "com.acme/*": MethodSettings(permissions=("p",)),
        "com.acme/admin/*": MethodSettings(direct_only=True),
        "com.acme/admin/drop": MethodSettings(allowed=False),
    }
    allowed, sandboxed = (Context(trust=trust, permissions=("p",)) for trust in ("direct", "sandboxed"))
    for context, method, why in (
        (DIRECT, "com.acme/a", "it needs p (mcpServers.s.methods.com.acme/*.permissions)"),
        (sandboxed, "com.acme/admin/list", "direct trust only"),
        (allowed, "com.acme/admin/drop", "allowed to nobody"),
        (allowed, "notifications/com.acme/admin/drop", "allowed to nobody"),
        (allowed, "Notifications/Com.ACME/Admin//drop/", "allowed to nobody"),
        (allowed, "/com.acme/admin/drop", "allowed to nobody"),
    ):
        assert why in why_method(context, method, methods=methods), method
    assert why_method(allowed, "com.acme/admin/list", methods=methods) == ""


@requirement("ext.relay")
def test_a_read_only_session_sends_only_methods_that_read() -> None:
    methods = {"com.acme/get*": MethodSettings(operation="read"), "com.acme/set*": MethodSettings()}
    for settings in (OPEN, PolicySettings(rules=(RuleSettings(read_only=True),))):
        assert why_method(READER, "com.acme/get", settings, methods=methods) == ""
        assert "read-only" in why_method(READER, "com.acme/set", settings, methods=methods)
        assert why_method(READER, "com.acme/other", settings, methods=methods) != ""
        assert why_method(READER, "com.acme/GET", settings, methods=methods) != "", "only its own spelling is allowed"


@requirement("ext.relay")
def test_a_workspace_may_be_denied_methods() -> None:
    policy = PolicySettings(workspaces={"a": WorkspaceSettings(methods=("s__com.acme/*",)), "*": WorkspaceSettings()})
    inside, outside = (in_workspace(name, trust="direct") for name in ("a", "b"))
    assert why_method(inside, "com.acme/do", policy) == why_method(inside, "notifications/com.acme/x", policy) == ""
    assert "gateway.policy.workspaces.a.methods" in why_method(inside, "com.other/do", policy)
    assert why_method(outside, "com.other/do", policy) == ""
