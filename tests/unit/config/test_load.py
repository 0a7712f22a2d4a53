"""`gateway.config.load`: what file, environment and command line make together, and which of them is blamed."""

import contextlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.load import GONE, OTHER_NAMES, Origins, gathered, unknown_variables, variables
from gateway.config.policy import PolicySettings
from gateway.config.settings import GatewaySettings, Loaded
from gateway.config.upstreams import UpstreamSettings
from gateway.policy.access_policy import Policy
from session_store import Context
from tests.requirements import requirement
from tests.unit.config.conftest import Loading, Refusal

pytestmark = requirement("ops.misspelt")


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"PORT": "9001", "STORE": "", "KEYS": "no setting"}, {"port": "9001"}),
        ({"API_KEYS": '{"a": "b"}'}, {"api_keys": {"a": "b"}}),
        (
            {"session__max_age_s": "9", "SESSION": '{"idle_ttl_s": 7, "max_age_s": 8}'},
            {"session": {"idle_ttl_s": 7, "max_age_s": "9"}},
        ),
        (
            {"SANDBOX": "standard", "SANDBOX__SANDBOXED": "strict", "SANDBOX__SANDBOXED__FILES": "9"},
            {"sandbox": {"profile": "standard", "sandboxed": {"profile": "strict", "files": "9"}}},
        ),
    ],
)
def test_every_setting_and_every_field_has_a_variable_and_the_nearest_one_wins(
    given: dict[str, str], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"mcp_gateway_{name}" if name.islower() else f"MCP_GATEWAY_{name}", value)
    assert variables(GatewaySettings) == settings


@pytest.mark.parametrize(("name", "field"), [("SESSION", "IDLE_TTL_S"), ("POLICY__SESSION_RATE", "BURST")])
def test_a_variable_that_is_no_object_is_refused_with_its_name(
    name: str, field: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, inside in itertools.product(("on", "[1]", "{bad"), ("", "7")):
        monkeypatch.setenv(f"MCP_GATEWAY_{name}", value)
        monkeypatch.setenv(f"MCP_GATEWAY_{name}__{field}", inside)
        place = name.lower().replace("__", ".")
        assert refusal({}).startswith(f"the variable MCP_GATEWAY_{name}: gateway.{place}: ")


def test_the_places_of_a_setting_stand_in_the_order_in_which_they_win() -> None:
    origins = Origins("mcp.json", {"port": 1, "auth": {"jwt": []}}, {"port": "2"}, {"port": 3})
    assert origins.of("port") == "mcp.json and the variable MCP_GATEWAY_PORT and --port on the command line"
    assert origins.places_of("port")[-1] == "--port on the command line"
    assert origins.of("auth.jwt") == "mcp.json" and origins.of("host") == ""


@pytest.mark.parametrize(
    ("idle_s", "variable", "overrides", "fault"),
    [
        (60, "8080", {"port": 99_999}, "--port on the command line: gateway.port: "),
        (60, "99999", {}, "the variable MCP_GATEWAY_PORT: gateway.port: "),
        (60, "8080", {"allowed_hosts": ["a b"]}, "--allowed-host on the command line: gateway.allowed_hosts: "),
        (0, "8080", {"port": 1}, "mcp.json: gateway.session.idle_ttl_s: "),
    ],
)
def test_a_fault_names_the_place_that_gave_the_value(
    idle_s: int, variable: str, overrides: Any, fault: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_PORT", variable)
    (line,) = refusal({"gateway": {"port": 8_080, "session": {"idle_ttl_s": idle_s}}}, overrides).splitlines()
    assert line.startswith(fault)


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"gateway": {"prot": 1}}, "gateway.prot: {}; did you mean port?"),
        ({"gateway": {"session": {"idle_ttl": 1}}}, "gateway.session.idle_ttl: {}; did you mean idle_ttl_s?"),
        (
            {"gateway": {"policy": {"workspaces": {"w": {"tool": []}}}}},
            "gateway.policy.workspaces.w.tool: {}; did you mean tools?",
        ),
        ({"servers": {"a b": {"command": "x", "tools": {"t": {"direct": 1}}}}}, "servers.a b.tools.t.direct: {}"),
        ({"servers": {"a": {"command": "x", "args": "y"}}}, "servers.a.args: "),
    ],
)
def test_a_misspelt_name_is_a_fault_with_its_place_and_what_was_meant(
    document: dict[str, object], fault: str, refusal: Refusal
) -> None:
    assert refusal(document).startswith(f"mcp.json: {fault.format('no such setting')}")


@requirement("ops.placeholders")
def test_all_faults_of_file_and_variables_are_told_at_once(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"a": {"command": "x", "env": {"T": "${UNSET_1}", "U": "${UNSET_2}"}}, "b": {"command": "x", "arg": []}}
    monkeypatch.setenv("MCP_GATEWAY_PROT", "1")
    assert [line.split(": ")[:2] for line in refusal({"mcpServers": entries}).splitlines()] == [
        ["the variable MCP_GATEWAY_PROT", "no such setting; did you mean MCP_GATEWAY_PORT?"],
        ["mcp.json", "mcpServers.a.env.T"],
        ["mcp.json", "mcpServers.a.env.U"],
        ["mcp.json", "mcpServers.b.arg"],
    ]


ROOT = Path(__file__).parents[3]


def test_a_misspelt_variable_is_a_fault_with_the_name_that_was_meant() -> None:
    meant = {
        "MCP_GATEWAY_APIKEYS": "API_KEYS",
        "MCP_GATEWAY_KEY": "KEYS",
        "MCP_GATEWAY_PROT": "PORT",
        "MCP_GATEWAY_SESION__IDLE_TTL_S": "SESSION__IDLE_TTL_S",
        "MCP_GATEWAY_SESSION_IDLE_TTL_S": "SESSION__IDLE_TTL_S",
        "mcp_gateway_prot": "PORT",
    }
    faults, notes = unknown_variables(meant, GatewaySettings)
    assert not notes and faults == [
        f"the variable {variable}: no such setting; did you mean MCP_GATEWAY_{right}?"
        for variable, right in meant.items()
    ]
    below = unknown_variables(["MCP_GATEWAY_AUTH__PROXIS__NETWORKS__X"], GatewaySettings)
    assert below == ([], ()), "below a setting that exists, validation names the fault"


@pytest.mark.parametrize("variable", ["CARDS__X__NAME", "API_KEYS__ADA", "PORT__X"])
def test_a_variable_below_a_setting_that_is_no_section_is_a_fault(variable: str) -> None:
    """Its value would have no effect: names of cards and keys may have capitals, so one JSON gives them all."""
    name = f"MCP_GATEWAY_{variable}"
    told = f"the variable {name}: no such setting; did you mean MCP_GATEWAY_{variable.partition('__')[0]}?"
    assert unknown_variables([name], GatewaySettings) == ([told], ())


def test_names_of_others_are_told_and_not_refused() -> None:
    names = ["MCP_GATEWAY_SERVICE_HOST", "MCP_GATEWAY_PORT_8080_TCP_ADDR", "PATH", "MCP_GATEWAYS"]
    faults, notes = unknown_variables(names, GatewaySettings)
    assert not faults and [note.level for note in notes] == ["warning", "warning"]
    assert "MCP_GATEWAY_SERVICE_HOST is ignored" in notes[1].text


def test_every_variable_that_the_code_reads_is_known() -> None:
    """A variable that the code reads, and this list lacks, would be told to be unknown."""
    named: set[str] = set()
    for folder in ("gateway", "session_store", "transports"):
        for path in (ROOT / folder).rglob("*.py"):
            named |= set(re.findall(r"\"(MCP_GATEWAY_[A-Z_]*[A-Z])\"", path.read_text(encoding="utf-8")))
    assert named >= {f"MCP_GATEWAY_{name}" for name in OTHER_NAMES}
    faults, notes = unknown_variables(named, GatewaySettings)
    assert not faults and not notes


@pytest.mark.parametrize("setting", sorted(GONE))
def test_a_setting_that_is_gone_is_refused_with_what_holds_now(
    setting: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = setting.replace("jwt.*", "jwt.0").replace("*", "x")
    names = given.split(".")
    document: Any = 7
    for name in reversed(names):
        document = [document] if name == "0" else {name: document}
    if "mcpServers" in document:
        document["mcpServers"]["x"]["command"] = "x"
    assert refusal(document).endswith(f"{given}: this setting is gone, remove it: {GONE[setting]}")
    if given != setting:
        return
    variable = f"MCP_GATEWAY_{'__'.join(names[1:])}".upper()
    misspelt = variable.replace("__", "_")
    what = "this setting" if misspelt == variable else variable
    told = f"the variable {misspelt}: {what} is gone, remove it: {GONE[setting]}"
    assert unknown_variables([misspelt], GatewaySettings) == ([told], ())
    monkeypatch.setenv(variable, "7")
    if len(names) > 2:
        told = f"the variable {variable}: {setting}: this setting is gone, remove it: {GONE[setting]}"
    assert told in refusal({}).splitlines(), "of an object that needs more settings, those are missing too"


@pytest.mark.parametrize(
    ("in_file", "variable", "value", "together"),
    [
        ("strict", "SANDBOX__READ", '["/srv"]', {"profile": "strict", "read": ["/srv"]}),
        (["box"], "SANDBOX__READ", '["/srv"]', {"sandboxed": {"launcher": ["box"]}, "read": ["/srv"]}),
        ({"profile": "strict", "read": ["/srv"]}, "SANDBOX", "standard", "standard"),
        ("standard", "SANDBOX", '{"profile": "strict"}', {"profile": "strict"}),
        *(
            ({"profile": "off", part: given}, f"SANDBOX__{part.upper()}__MEMORY_MB", "9",
             {"profile": "off", part: {name: given, "memory_mb": "9"}})
            for part in ("direct", "sandboxed") for name, given in (("profile", "strict"), ("launcher", ["box"]))
        ),
    ],
)  # fmt: skip
def test_a_variable_for_one_field_of_a_sandbox_keeps_the_profile_of_the_file(
    in_file: Any, variable: str, value: str, together: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"gateway": {"sandbox": in_file}}), encoding="utf-8")
    monkeypatch.setenv(f"MCP_GATEWAY_{variable}", value)
    assert gathered(file, {}, GatewaySettings).document["gateway"]["sandbox"] == together


GOOD = {"command": "x"}


@requirement("ops.partial")
@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({"command": "x", "env": {"T": "${UNSET_1}"}}, "b.env.T: the variable UNSET_1 is not set"),
        ({"command": "x", "arg": []}, "b.arg: no such field; did you mean args?"),
        ({"command": "python server.py"}, "b.command: must be the program alone"),
        ({"command": "x", "warm": "many"}, "b.warm: "),
        ({"command": "x", "env": {"T": "${secret:none}"}}, "b: gateway.secrets has no entry 'none'"),
        ({"command": "x", "context_env": {"A": "no"}}, "b.context_env.A: there is no field 'no'"),
        ({"command": "x", "tools": {"t": {"bind": {"a": "no"}}}}, "b.tools.t.bind.a: there is no field 'no'"),
        ({}, "b: give one of command, url"),
        ("x", "b: "),
    ],
)
def test_a_fault_of_a_server_leaves_that_server_out(
    entry: Any, fault: str, loading: Loading, refusal: Refusal, tmp_path: Path
) -> None:
    document = {"mcpServers": {"a": GOOD, "b": entry}}
    settings = loading(document).settings
    assert [*settings.mcpServers] == ["a", "b"] and [*settings.left_out] == ["b"], "names of tools stay what they were"
    assert fault in settings.left_out["b"][0] and str(tmp_path / "mcp.json") in settings.left_out["b"][0]
    assert settings.mcpServers["b"].kind == "object" and not settings.mcpServers["b"].argv[0]
    assert settings.workspaces_become_variables, "as if it was there"
    assert fault in refusal(document, strict=True)


@requirement("ops.partial")
def test_no_server_left_a_name_twice_and_a_fault_of_the_gateway_refuse_the_start(refusal: Refusal) -> None:
    faulty = {"command": "x", "arg": []}
    assert refusal({"mcpServers": {"b": faulty}}).count("\n") == 0
    assert "would have the same name" in refusal({"mcpServers": {"a": GOOD}, "servers": {"a": faulty}})
    told = refusal({"mcpServers": {"a": GOOD, "b": faulty}, "gateway": {"port": "x"}})
    assert "mcpServers.b.arg" in told and "gateway.port" in told


@requirement("ops.partial")
@pytest.mark.parametrize(
    ("given", "is_open_to"),
    [
        ({}, ["direct", "sandboxed"]),
        ({"direct_only": True}, ["direct"]),
        ({"permissions": ["p"]}, []),
        ({"direct_onyl": True}, []),
        ({"direct_only": "x y"}, []),
        ({"permissions": 5}, []),
    ],
)
def test_who_may_not_see_a_server_is_not_told_that_it_is_left_out(given: dict[str, Any], is_open_to: list[str]) -> None:
    policy = Policy(PolicySettings(), {"b": UpstreamSettings.unusable({"command": "x", **given}, ["a fault"])})
    contexts = {trust: Context(trust=trust) for trust in ("direct", "sandboxed")}
    assert [trust for trust, context in contexts.items() if not policy.why_hidden(context, "b")] == is_open_to
    assert policy.is_open is (len(is_open_to) == 2)


@requirement("ops.loop", "ops.hosts")
@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("http://localhost:8080/mcp", True),
        ("http://127.0.0.1:8080/servers/a/mcp/", True),
        ("https://mcp.example.com/mcp", True),
        ("http://127.0.0.1:8081/mcp", False),
        ("http://127.0.0.1:8080/other", False),
        ("https://mcp.example.com/github/mcp", False),
        ("https://mcp.example.com:9000/mcp", False),
        ("https://other.example.com/mcp", False),
    ],
)
def test_a_server_that_is_the_gateway_itself_is_left_out(
    url: str, is_own: bool, loading: Loading, tmp_path: Path
) -> None:
    path, gateway = tmp_path / "mcp.json", {"allowed_hosts": ["mcp.example.com", "localhost"]}

    def loaded(*args: str, command: str = "mcp-session-gateway", others: Any = None, **entry: Any) -> Loaded:
        entry = entry if "url" in entry else {"command": command, "args": [*args], **entry}
        return loading({"mcpServers": {**({"a": GOOD} if others is None else others), "b": entry}, "gateway": gateway})

    for found in (
        loaded(url=url, headers={"Authorization": "Bearer ${UNSET}"}),
        loaded("stdio", "--url", url, env={"MCP_SESSION_KEY": "k"}),
        loaded("stdio", f"--url={url.removesuffix('/mcp')}"),
        loaded("-y", "mcp-remote@1", url, "--header", "A:${UNSET}", command="npx"),
    ):
        assert ("b" not in found.settings.mcpServers) is is_own
        told = [note.text for note in found.notes if note.level == "warning"]
        assert told == [f"{path}: mcpServers.b: left out, it is this gateway"] * is_own
    with pytest.raises(ConfigurationError, match="the gateway itself") if is_own else contextlib.nullcontext():
        loaded("mcp-remote", url, command="npx", others={})
    alone = loaded(url, command="true", others={})
    assert [*alone.settings.mcpServers] == ["b"], "a server may be told where the gateway is"
    for option in (["--config", str(path)], [f"--config={path}"], [f"-c{path}"]):
        found = loaded("stdio", *option)
        assert [*found.settings.mcpServers] == ["a"], "it would start itself, and that itself"


@requirement("ops.config")
def test_what_refuses_a_file_stands_before_what_leaves_a_server_out(refusal: Refusal) -> None:
    for servers in ({"one": {"command": "one", "env": {"A": "${NOT_SET}"}}}, {"one": {"comand": "one"}}):
        first, second = refusal({"mcpServers": servers, "gateway": {"sesion": {}}}).splitlines()
        assert "gateway.sesion: no such setting" in first and "mcpServers.one" in second
