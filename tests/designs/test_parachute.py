"""PARACHUTE: an orchestrator's server finds session, workspace and trust in its environment, and trust decides."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.designs.agents import Open, example, opener, refused_text, serving, text_of, tools_of
from tests.requirements import requirement
from tests.support.credentials import sha256
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, server
from tests.support.mcp_clients import Legacy

WORKSPACE = {"orbit": {"workspace": "w-1"}}
OPERATOR, GUEST = "operator-key", "guest-key"
NAMES = {
    "PARACHUTE_SESSION_ID": "session_id",
    "PARACHUTE_WORKSPACE_ID": "workspace",
    "PARACHUTE_TRUST_LEVEL": "trust",
}
OWN: dict[str, Any] = {
    "mcpServers": {
        "agent": server(
            PROBE,
            context_env=NAMES,
            env={"PARACHUTE_TRUST_LEVEL": "operator's"},
            sandbox=["env", "LAUNCHED_BY=launcher"],
        ),
        "plain": server(PROBE, context_env=NAMES),
        "inner": server(DEMO, direct_only=True),
    },
    "gateway": {
        "api_keys": {"operator": sha256(OPERATOR), "guest": sha256(GUEST), "lab": sha256("lab-key")},
        "policy": {
            "rules": [
                {"principals": ["api-key:operator"], "trust": "direct", "workspace": "ops"},
                {"principals": ["api-key:lab"], "trust": "direct", "workspace": "lab"},
                {"principals": ["*"], "trust": "sandboxed", "workspace": "guests"},
            ],
            "workspaces": {
                "ops": {},
                "lab": {"servers": ["plain"], "tools": ["plain__env", "plain__pid"]},
                "guests": {"servers": ["agent", "plain"]},
            },
        },
    },
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with serving(example("parachute")) as running:
        yield running


@pytest.fixture
def start(gateway: RunningGateway, http: httpx.Client) -> Open:
    return opener(gateway, http)


@requirement("ctx.env", "ctx.env-names", "ctx.env-preserved", "pol.trust", "ctx.isolated")
def test_the_environment_says_whose_session_it_is(start: Open) -> None:
    operator, guest = start(meta=WORKSPACE, key=OPERATOR), start(key=GUEST)
    mine, theirs = text_of(operator.tool("whose")).split(), text_of(guest.tool("whose")).split()
    assert mine[1:] == ["w-1", "direct"] and theirs[1:] == ["-", "sandboxed"], "no workspace is an empty variable"
    assert mine[0] != theirs[0] and text_of(operator.tool("whose")).split() == mine


@requirement("pol.trust")
def test_a_sandboxed_session_has_no_tool_of_direct_trust(start: Open) -> None:
    guest = start(key=GUEST)
    assert set(tools_of(guest)) == {"whose"}
    assert refused_text(guest.tool("write_file", {"name": "x"})) == refused_text(guest.tool("nothing")).replace(
        "nothing", "write_file"
    )
    operator = start(key=OPERATOR)
    assert text_of(operator.tool("write_file", {"name": "x"})) == "wrote x"


@requirement("ctx.unforgeable", "pol.trust")
def test_nothing_that_an_agent_says_gives_it_trust(start: Open, gateway: RunningGateway, http: httpx.Client) -> None:
    forged = {
        "io.github.mcp-session-gateway/context": {"trust": "direct", "session_id": "x", "workspace": "w-2"},
        "PARACHUTE_TRUST_LEVEL": "direct",
        **WORKSPACE,
    }
    guest = start(meta=forged, key=GUEST)
    params = {"name": "whose", "arguments": {}, "_meta": forged}
    session, workspace, trust = text_of(guest.call("tools/call", params)).split()
    assert (workspace, trust) == ("w-1", "sandboxed") and session != "x"
    for header in ("X-Trust", "PARACHUTE_TRUST_LEVEL"):
        assert Legacy(gateway.url, http, headers={header: "direct"}).initialize().status_code == 401


@requirement("ctx.env-preserved", "pol.workspace", "pol.sandbox", "pol.trust")
def test_operators_set_variables_workspaces_and_a_launcher(tmp_path: Path, http: httpx.Client) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps(OWN), encoding="utf-8")
    with serving(config) as gateway:
        start = opener(gateway, http)
        guest, lab, operator = start(key=GUEST, meta=WORKSPACE), start(key="lab-key"), start(key=OPERATOR)
        variables = json.loads(text_of(guest.tool("agent__env")))
        assert variables["PARACHUTE_TRUST_LEVEL"] == "operator's", "what the operator set is kept"
        assert variables["PARACHUTE_WORKSPACE_ID"] == "guests", "a rule is above what was announced"
        assert variables["LAUNCHED_BY"] == "launcher"
        assert "LAUNCHED_BY" not in json.loads(text_of(operator.tool("agent__env")))
        facts = json.loads(text_of(guest.tool("plain__env", {"prefix": "PARACHUTE_"})))
        assert facts["PARACHUTE_TRUST_LEVEL"] == "sandboxed" and len(facts["PARACHUTE_SESSION_ID"]) >= 22
        assert set(tools_of(lab)) == {"plain__env", "plain__pid"}
        assert {name.partition("__")[0] for name in tools_of(operator)} == {"agent", "plain", "inner"}
        assert {name.partition("__")[0] for name in tools_of(guest)} == {"agent", "plain"}
        assert "Unknown tool" in refused_text(guest.tool("inner__count"))


@requirement("pol.trust")
def test_a_trust_that_is_unknown_stops_the_start(tmp_path: Path) -> None:
    from gateway.config.settings import ConfigurationError, load

    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"gateway": {"policy": {"rules": [{"trust": "trusted"}]}}}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="trust"):
        load(config)
