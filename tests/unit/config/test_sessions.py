"""Settings of the context: which fields there can be, and which workspaces servers get."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config.sessions import ContextSettings, is_usable_workspace
from gateway.config.settings import Settings
from tests.requirements import requirement

USABLE = ["team-a", "acme.project:7@eu+x", "/home/ann/My Projects/x", "/", "C:\\code\\x", "/srv/..data/x"]
OTHERS = ["..", "-rf", "a/b", "a b", "../etc", "/srv/../etc", "/srv/..", "C:\\code\\..\\x", "$(reboot)", "wörk"]


@requirement("ctx.workspace-paths")
def test_a_workspace_for_servers_is_a_slug_or_an_absolute_path() -> None:
    assert [workspace for workspace in USABLE + OTHERS if is_usable_workspace(workspace)] == USABLE


@requirement("ctx.open")
@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"a": {}}, "give a source"),
        ({"a": {"claim": "x", "header": "X"}}, "give one source: claim and header are 2"),
        ({"a": {"header": "no header"}}, "not a header name"),
        ({"a": {"announced": "x", "client_header": True}}, "client_header needs header"),
        ({"a": {"value": "x" * 1_025}}, "longer than 1024 characters"),
        ({"a b": {"value": "x"}}, "not a field name"),
        ({"workspace": {"value": "x"}}, "every session has"),
    ],
)
def test_a_field_has_one_source_and_a_name_of_its_own(fields: Any, what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        ContextSettings.model_validate({"fields": fields})


@requirement("ctx.open")
@pytest.mark.parametrize(
    ("entry", "gateway", "what"),
    [
        ({}, {"context": {"fields": {"a": {"header": "X-A"}}}}, "context.fields.a: header counts only"),
        ({}, {"context": {"fields": {"a": {"claim": "a"}}}}, "context.fields.a: claim needs access tokens"),
        ({}, {"context": {"env": {"A": "nope"}}}, "gateway.context.env.A: there is no field 'nope'"),
        ({}, {"context": {"env": {"A=B": "agent"}}}, "not a name for an environment variable"),
        ({}, {"context": {"env": {"LD_PRELOAD": "agent"}}}, "LD_PRELOAD decides which code a server runs"),
        ({}, {"policy": {"rules": [{"workspace": "a b"}]}}, r"rules\[0\].workspace: 'a b' would become"),
        ({}, {"policy": {"rules": [{"env": {"A": "${secret:no}"}}]}}, r"rules\[0\].env: gateway.secrets has no"),
        (
            {},
            {"policy": {"rules": [{"server_env": {"s": {"A": "${secret:no}"}}}]}},
            "server_env.s: gateway.secrets has",
        ),
        ({}, {"policy": {"rules": [{"server_env": {"t": {"A": "b"}}}]}}, "server_env.t: there is no server 't' with"),
        (
            {"shared": True},
            {"policy": {"rules": [{"server_env": {"s": {"A": "b"}}}]}},
            "server_env.s: there is no server 's' with",
        ),
        ({"context_env": {"PATH": "agent"}}, {}, "PATH decides which code"),
        ({"context_env": {"A": "nope"}}, {}, "mcpServers.s.context_env.A"),
        ({"context_env": {"A": {"field": "agent", "announced": True}}}, {}, "announced is for the field workspace"),
        ({"tools": {"t": {"bind": {"a": "temp_dir"}}}}, {}, "s.tools.t.bind.a: there is no field 'temp_dir'"),
    ],
)
def test_what_does_not_exist_or_has_no_effect_is_an_error_that_names_the_place(
    entry: Any, gateway: Any, what: str
) -> None:
    with pytest.raises(ValidationError, match=what):
        Settings.model_validate({"mcpServers": {"s": {"command": "x"} | entry}, "gateway": gateway})


@requirement("ctx.open")
def test_variables_that_load_no_code_can_be_facts_of_the_session() -> None:
    env = dict.fromkeys(("GIT_AUTHOR_NAME", "NODE_ENV", "JAVA_HOME", "MY_PATH", "ENV"), "agent")
    context = ContextSettings.model_validate({"env": env})
    assert context.env and context.env.keys() == env.keys()


@requirement("ctx.workspace-paths")
def test_workspaces_are_checked_where_a_server_gets_them() -> None:
    def becomes(**entry: Any) -> bool:
        return Settings.model_validate({"mcpServers": {"s": entry}}).workspaces_become_variables

    assert becomes(command="x") and not becomes(command="x", context_env={"A": "agent"})
    assert not becomes(url="https://a.example/mcp") and not becomes(command="x", shared=True)


@requirement("ctx.rules-env")
def test_rules_bound_how_long_sessions_live() -> None:
    rules = [{"idle_ttl_s": 30, "max_age_s": 90_000}, {"idle_ttl_s": 7_200}]
    bounded = Settings.model_validate({"gateway": {"policy": {"rules": rules}}})
    for settings, bounds in ((bounded, (30, 90_000)), (Settings(), (60, 86_400))):
        assert (settings.gateway.shortest_ttl_s, settings.gateway.longest_age_s) == bounds
