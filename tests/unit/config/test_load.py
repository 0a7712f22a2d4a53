"""`gateway.config.load`: what file, environment and command line make together, and which of them is blamed."""

import json
from pathlib import Path

import pytest

from gateway.config.load import ConfigurationError, Origins, variables
from gateway.config.settings import GatewaySettings, load
from tests.requirements import requirement


def test_every_setting_has_a_variable_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_GATEWAY_PORT", "9001")
    monkeypatch.setenv("MCP_GATEWAY_SESSION__IDLE_TTL_S", "30")
    monkeypatch.setenv("MCP_GATEWAY_ALLOWED_HOSTS", '["a.example"]')
    monkeypatch.setenv("MCP_GATEWAY_API_KEYS", '{"a": "b"}')
    monkeypatch.setenv("MCP_GATEWAY_STORE", "")
    monkeypatch.setenv("MCP_GATEWAY_KEYS", "no setting")
    assert variables(GatewaySettings) == {
        "port": "9001",
        "session": {"idle_ttl_s": "30"},
        "allowed_hosts": ["a.example"],
        "api_keys": {"a": "b"},
    }


def test_the_places_of_a_setting_stand_in_the_order_in_which_they_win() -> None:
    origins = Origins("mcp.json", {"port": 1, "auth": {"jwt": []}}, {"port": "2"}, {"port": 3})
    assert origins.of("port") == "mcp.json and the variable MCP_GATEWAY_PORT and --port on the command line"
    assert origins.last_of("port") == "--port on the command line"
    assert origins.of("auth.jwt") == "mcp.json" and origins.of("host") == ""


@pytest.mark.parametrize(
    ("variable", "overrides", "fault"),
    [
        ("8080", {"port": 99_999}, "--port on the command line: gateway.port: "),
        ("99999", {}, "the variable MCP_GATEWAY_PORT: gateway.port: "),
        ("8080", {"allowed_hosts": ["a b"]}, "--allowed-host on the command line: gateway.allowed_hosts: "),
        ("8080", {"port": 1}, "{path}: gateway.session.idle_ttl_s: "),
    ],
)
def test_a_fault_names_the_place_that_gave_the_value(
    variable: str, overrides: dict[str, object], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mcp.json"
    idle_s = 0 if "session" in fault else 60
    path.write_text(json.dumps({"gateway": {"port": 8_080, "session": {"idle_ttl_s": idle_s}}}))
    monkeypatch.setenv("MCP_GATEWAY_PORT", variable)
    with pytest.raises(ConfigurationError) as caught:
        load(path, overrides)
    assert str(caught.value).startswith(fault.format(path=path))
    assert len(str(caught.value).splitlines()) == 1


@requirement("ops.misspelt")
@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"gateway": {"prot": 1}}, "gateway.prot: no such setting; did you mean port?"),
        (
            {"gateway": {"session": {"idle_ttl": 1}}},
            "gateway.session.idle_ttl: no such setting; did you mean idle_ttl_s?",
        ),
        (
            {"gateway": {"policy": {"workspaces": {"w": {"tool": []}}}}},
            "gateway.policy.workspaces.w.tool: no such setting; did you mean tools?",
        ),
        (
            {"servers": {"a b": {"command": "x", "tools": {"t": {"direct": True}}}}},
            "servers.a b.tools.t.direct: no such setting",
        ),
        ({"servers": {"a": {"command": "x", "args": "y"}}}, "servers.a.args: "),
    ],
)
def test_a_misspelt_name_is_a_fault_with_its_place_and_what_was_meant(
    document: dict[str, object], line: str, tmp_path: Path
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {line}")


@requirement("ops.misspelt", "ops.placeholders")
def test_all_faults_of_file_and_variables_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mcp.json"
    entries = {"a": {"command": "x", "env": {"T": "${UNSET_1}", "U": "${UNSET_2}"}}, "b": {"command": "x", "arg": []}}
    path.write_text(json.dumps({"mcpServers": entries}))
    monkeypatch.setenv("MCP_GATEWAY_PROT", "1")
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert [line.split(": ")[:2] for line in str(caught.value).splitlines()] == [
        [str(path), "mcpServers.a.env.T"],
        [str(path), "mcpServers.a.env.U"],
        [str(path), "mcpServers.b.arg"],
        ["the variable MCP_GATEWAY_PROT", "no such setting; did you mean MCP_GATEWAY_PORT?"],
    ]
