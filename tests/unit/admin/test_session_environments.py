"""`gateway.admin.session_environments`: where variables come from, and why a session sees what it sees; no secrets."""

import pytest

from gateway.admin.session_environments import (
    VariableSources,
    about_era,
    about_isolation,
    about_session,
    about_tools,
    headers_of,
    variables_of,
)
from gateway.config.auth import AuthSettings
from gateway.config.sessions import EnvironmentValue
from gateway.identity.context_rules import Reason
from session_store import ANONYMOUS, Context, Principal
from session_store.testing import FakeClock, a_session
from session_store.tool_session import ACCESS_VARIABLE, FACTS_VARIABLE, SOCKET_VARIABLE
from tests.requirements import requirement
from transports.era import LEGACY, MODERN

SECRET = "hunter2"
SOURCES = VariableSources(
    where="mcpServers.files.env",
    inherited={"PATH": "/usr/bin", "HOME": "/home/gateway", "LANG": "C"},
    sandbox={"PYENV_ROOT": "/opt/pyenv"},
    names={
        "MCP_SESSION_ID": EnvironmentValue(field="session_id"),
        "MCP_SESSION_FILES": EnvironmentValue(field="temp_dir"),
        "MCP_SESSION_PRINCIPAL": EnvironmentValue(field="principal"),
        "TICKET": EnvironmentValue(field="ticket"),
        "LANG": EnvironmentValue(field="workspace"),
    },
    rules={"RULED": (SECRET, "gateway.policy.rules[0].env"), "KEY": ("${secret:k}", "gateway.policy.rules[1].env")},
    own={"TOKEN": "x-${secret:a}-${secret:b}", "PLAIN": SECRET, "LANG": "de"},
)
GIVEN = {
    "HOME": "/run/o/1/home", "TMPDIR": "/run/o/1/tmp", "PYENV_ROOT": "/opt/pyenv", "npm_config_x": SECRET,
    "MCP_SESSION_ID": "abcdefgh-the-secret-rest", "MCP_SESSION_FILES": "/run/t/1", "TICKET": SECRET, "LANG": "w",
    "RULED": SECRET, "KEY": SECRET, "TOKEN": f"x-{SECRET}-{SECRET}", "MCP_SESSION_PRINCIPAL": "api-key:alice",
    SOCKET_VARIABLE: "/run/s/1", ACCESS_VARIABLE: SECRET, FACTS_VARIABLE: f'{{"id": "{SECRET}"}}',
}  # fmt: skip


@requirement("ops.environment")
def test_each_variable_has_its_source_and_secrets_are_never_shown() -> None:
    found = {one.name: one for one in variables_of(SOURCES, GIVEN)}
    assert {name: (one.origin, one.where, one.value) for name, one in found.items()} == {
        ACCESS_VARIABLE: ("gateway", "the credential for that socket", None),
        FACTS_VARIABLE: ("gateway", "the facts of the session as JSON", None),
        SOCKET_VARIABLE: ("gateway", "the socket to the state of the session", "/run/s/1"),
        "HOME": ("sandbox", "the profile of the sandbox", "/run/o/1/home"),
        "KEY": ("secret", "gateway.policy.rules[1].env, with gateway.secrets.k", None),
        "LANG": ("configuration", "mcpServers.files.env", None),
        "MCP_SESSION_FILES": ("session", "temp_dir", "/run/t/1"),
        "MCP_SESSION_ID": ("session", "session_id", "abcdefgh"),
        "MCP_SESSION_PRINCIPAL": ("session", "principal", "api-key:alice"),
        "PATH": ("inherited", "the gateway's own environment", "/usr/bin"),
        "PLAIN": ("configuration", "mcpServers.files.env", None),
        "PYENV_ROOT": ("sandbox", "the profile of the sandbox", "/opt/pyenv"),
        "RES_OPTIONS": ("sandbox", "the profile of the sandbox", None),
        "RULED": ("rule", "gateway.policy.rules[0].env", None),
        "TICKET": ("session", "ticket", None),
        "TMPDIR": ("sandbox", "the profile of the sandbox", "/run/o/1/tmp"),
        "TOKEN": ("secret", "mcpServers.files.env, with gateway.secrets.a, gateway.secrets.b", None),
        "npm_config_x": ("package", "what npx or uvx would set", None),
    }
    assert not [one for one in found.values() if SECRET in (one.value or "")]


def test_of_no_process_the_names_are_known_and_one_of_many_sessions_has_nothing_of_one() -> None:
    found = {one.name: one.value for one in variables_of(SOURCES, None)}
    assert found["PATH"] == "/usr/bin" and found["HOME"] is None and "npm_config_x" not in found
    shared = VariableSources(
        where="mcpServers.files.env", inherited={"PATH": "/bin"}, own={"A": "1"}, is_of_session=False
    )
    origins = {one.name: one.origin for one in variables_of(shared, {})}
    assert origins == {"A": "configuration", "PATH": "inherited"}


def test_headers_of_a_server_behind_a_url_have_their_sources() -> None:
    configured = {"Authorization": "Bearer ${secret:token}", "X-Team": SECRET}
    found = headers_of(configured, "mcpServers.far.headers")
    assert [(one.name, one.origin, one.value) for one in found] == [
        ("Authorization", "secret", None), ("X-Team", "configuration", None), ("mcp-gateway-context", "gateway", None),
    ]  # fmt: skip
    assert found[0].where == "mcpServers.far.headers, with gateway.secrets.token"


JWT = {"issuer": "https://id.example", "audience": "mcp", "jwks_url": "https://id.example/keys"}
AUTH = AuthSettings.model_validate(
    {"jwt": [JWT], "proxies": {"networks": ["10.0.0.0/8"], "subject_header": "X-User", "issuer": "proxy"}}
)


NOTHING = Context()


def told(principal: Principal = ANONYMOUS, context: Context = NOTHING, reasons: object = (), **more: object) -> str:
    session = a_session(FakeClock(), principal=principal, context=context, endpoint="/mcp")
    served, entries = more.get("served", ("files", "web")), more.get("entries", ())
    return "\n".join(about_session(session, served, AUTH, reasons, entries))  # type: ignore[arg-type]  # fakes


@requirement("ops.environment")
@pytest.mark.parametrize(
    ("issuer", "subject", "why"),
    [
        ("anonymous", "", "Its principal is anonymous: its client has sent no credential."),
        ("api-key", "ann", "its client has sent the key gateway.api_keys.ann."),
        ("https://id.example", "ann", "an access token of https://id.example (gateway.auth.jwt)."),
        ("proxy", "ann", "a trusted proxy names it in the header X-User (gateway.auth.proxies)."),
        ("operator", "olga", "the operator olga has opened it by trying a tool."),
        ("gone", "ann", "by a credential that this configuration does not have any more."),
    ],
)
def test_a_principal_is_explained_by_its_credential(issuer: str, subject: str, why: str) -> None:
    assert why in told(Principal(issuer=issuer, subject=subject))


@requirement("ops.environment")
def test_each_fact_of_the_context_has_the_setting_that_decides_it() -> None:
    context = Context(workspace="w", trust="sandboxed", permissions=("a", "b"), read_only=True)
    reasons = [
        Reason("workspace", "gateway.policy.rules[0].workspace"), Reason("trust", "gateway.policy.rules[1].trust"),
        Reason("permissions", "the credential: a"), Reason("permissions", "gateway.policy.rules[2].permissions: b"),
        Reason("read_only", "gateway.policy.read_only has the trust sandboxed"),
        Reason("rules", "rule 3 grants nothing"),
    ]  # fmt: skip
    text = told(context=context, reasons=reasons, entries=("w*",))
    for sentence in (
        "It was opened at /mcp, which serves 2 servers: files, web.",
        "Its workspace is w: gateway.policy.rules[0].workspace.",
        "Its trust is sandboxed: gateway.policy.rules[1].trust.",
        "Its permissions are a, b: the credential: a; gateway.policy.rules[2].permissions: b.",
        "It is read-only: gateway.policy.read_only has the trust sandboxed.",
        "Note: rule 3 grants nothing.",
        "Its workspace sees what gateway.policy.workspaces.w* allows.",
    ):
        assert sentence in text.splitlines(), sentence
    changed = told(context=context, reasons=None)
    assert "The rules have changed since its last request." in changed and "Its workspace is w." in changed


def test_an_endpoint_says_how_many_servers_it_has() -> None:
    assert "which serves files alone." in told(served=("files",))
    assert "which this replica does not serve." in told(served=())
    assert ", s19, 5 more." in told(served=[f"s{n}" for n in range(25)])


def test_what_is_hidden_isolated_and_translated_is_said() -> None:
    assert "3 of its 5 tools" in about_tools(5, 3) and "no rule hides one" in about_tools(5, 5)
    assert "not known" in about_tools(None, 0) and about_tools(0, 0) == "It lists no tools."
    assert "process of its own" in about_isolation("command", shared=False, where="mcpServers.x")
    assert "(mcpServers.x.shared)" in about_isolation("command", shared=True, where="mcpServers.x")
    assert "behind a URL" in about_isolation("url", shared=False, where="x")
    assert "gateway's own process" in about_isolation("object", shared=False, where="x")
    assert "pass as they are" in about_era("legacy", LEGACY) and "translates" in about_era("legacy", MODERN)
    assert "not known yet" in about_era("modern", None)
