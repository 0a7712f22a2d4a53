"""`gateway.admin.injected_variables`: each variable with its source, and no value that could be a secret."""

from gateway.admin.injected_variables import Sources, headers_of, variables_of
from gateway.config.context import EnvironmentValue
from session_store.tool_session import ACCESS_VARIABLE, FACTS_VARIABLE, SOCKET_VARIABLE
from tests.requirements import requirement

SECRET = "hunter2"
SOURCES = Sources(
    where="mcpServers.files.env",
    inherited={"PATH": "/usr/bin", "HOME": "/home/gateway", "LANG": "C"},
    sandbox={"PYENV_ROOT": "/opt/pyenv"},
    names={
        "MCP_SESSION_ID": EnvironmentValue(field="session_id"),
        "MCP_SESSION_FILES": EnvironmentValue(field="temp_dir"),
        "TICKET": EnvironmentValue(field="ticket"),
        "LANG": EnvironmentValue(field="workspace"),
    },
    rules={"RULED": (SECRET, "gateway.policy.rules[0].env"), "KEY": ("${secret:k}", "gateway.policy.rules[1].env")},
    own={"TOKEN": "x-${secret:a}-${secret:b}", "PLAIN": SECRET, "LANG": "de"},
)
GIVEN = {
    "HOME": "/run/o/1/home", "TMPDIR": "/run/o/1/tmp", "PYENV_ROOT": "/opt/pyenv", "npm_config_x": SECRET,
    "MCP_SESSION_ID": "abcdefgh-the-secret-rest", "MCP_SESSION_FILES": "/run/t/1", "TICKET": SECRET, "LANG": "w",
    "RULED": SECRET, "KEY": SECRET, "TOKEN": f"x-{SECRET}-{SECRET}",
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


def test_before_a_process_runs_the_names_are_known_and_what_it_will_inherit() -> None:
    found = {one.name: one.value for one in variables_of(SOURCES, None)}
    assert found["PATH"] == "/usr/bin" and found["HOME"] is None and "npm_config_x" not in found


def test_a_process_of_many_sessions_has_nothing_of_one() -> None:
    shared = Sources(where="mcpServers.files.env", inherited={"PATH": "/bin"}, own={"A": "1"}, is_of_session=False)
    assert [(one.name, one.origin) for one in variables_of(shared, {})] == [
        ("A", "configuration"),
        ("PATH", "inherited"),
    ]


def test_headers_of_a_server_behind_a_url_have_their_sources() -> None:
    configured = {"Authorization": "Bearer ${secret:token}", "X-Team": SECRET}
    found = headers_of(configured, "mcpServers.far.headers", "mcp-context")
    assert [(one.name, one.origin, one.value) for one in found] == [
        ("Authorization", "secret", None), ("X-Team", "configuration", None), ("mcp-context", "gateway", None),
    ]  # fmt: skip
    assert found[0].where == "mcpServers.far.headers, with gateway.secrets.token"
