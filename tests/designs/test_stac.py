"""STAC: a server written for one session and one user serves many; sessions are bounded, told and survive."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.designs.agents import Open, StdioAgent, environment, example, opener, refused_text, serving, text_of
from tests.requirements import requirement
from tests.support.credentials import sha256
from tests.support.gateway_process import PROBE, ROOT, RunningGateway, server
from tests.support.mcp_clients import Legacy, messages, tool_text
from tests.support.waiting import eventually

CONFIG = example("stac")
TRACE = "io.github.mcp-session-gateway/trace"
BOUNDED: dict[str, Any] = {
    "mcpServers": {"probe": server(PROBE, tools={"noise": {"permissions": ["catalog.write"]}})},
    "gateway": {
        "api_keys": {"ada": sha256("ada-key"), "bob": sha256("bob-key")},
        "tools": True,
        "session": {"metadata": {"client": "{agent}"}},
        "policy": {
            "rules": [{"principals": ["api-key:ada"], "permissions": ["catalog.write"]}],
            "session_rate": {"per_s": 0.001, "burst": 12},
            "principal_sessions": 3,
        },
    },
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with serving(CONFIG) as running:
        yield running


@pytest.fixture
def start(gateway: RunningGateway, http: httpx.Client) -> Open:
    return opener(gateway, http)


@requirement("ctx.env-names", "ctx.state", "ctx.isolated", "ctx.meta-out", "ctx.correlation")
def test_one_server_for_one_session_serves_many(start: Open) -> None:
    one, two = start(name="agent-1"), start(name="agent-2")
    assert text_of(one.tool("session")) != text_of(two.tool("session"))
    for count in (1, 2):
        assert text_of(one.tool("search", {"text": "dunes"})) == f"dunes: search {count} of agent-1 for anonymous"
    answer = two.tool("search", {"text": "dikes"})
    assert text_of(answer) == "dikes: search 1 of agent-2 for anonymous"
    trace = answer["result"]["_meta"][TRACE]
    assert text_of(two.tool("session")).startswith(trace["session"]) and len(trace["session"]) == 8
    assert eventually(lambda: trace["correlation_id"] in two.log()), "the same id is in the log"


@requirement("life.survives-restart", "ctx.stdio-front", "id.reattach", "life.events", "ops.redact")
def test_a_session_survives_its_gateway_and_goes_on_by_its_token_on_stdio(tmp_path: Path, http: httpx.Client) -> None:
    store = f"sqlite:///{tmp_path}/sessions.db"
    tokens: list[str] = []
    for count in (1, 2):
        with serving(CONFIG, MCP_GATEWAY_STORE=store) as gateway:
            client = Legacy(gateway.url, http)
            if tokens:
                client.session = tokens[0]
            else:
                tokens.append(client.open(name="agent").session)
            assert tool_text(client.tool("search", {"text": "a"})) == f"a: search {count} of agent for anonymous"
            assert tokens[0] not in gateway.stderr()
    with StdioAgent(CONFIG, MCP_GATEWAY_STORE=store, MCP_SESSION_TOKEN=tokens[0]) as agent:
        agent.open(name="agent")
        answer = agent.tool("search", {"text": "a"})
        assert text_of(answer) == "a: search 3 of agent for anonymous"
        assert text_of(agent.tool("session")).startswith(answer["result"]["_meta"][TRACE]["session"])
    listed = subprocess.run(
        [sys.executable, "-m", "gateway", "sessions", "events", "--store", store, "--json"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    events = [json.loads(line) for line in listed.stdout.splitlines()]
    assert {"created", "resumed"} <= {event["event"] for event in events}
    assert all(len(event["session"]) <= 8 for event in events), "never the whole id"


@requirement("pol.permissions", "pol.tools", "pol.limits")
def test_sessions_are_bounded_by_permission_number_and_rate(tmp_path: Path, http: httpx.Client) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps(BOUNDED), encoding="utf-8")
    with serving(config) as gateway:
        start = opener(gateway, http)
        ada, bob = start(key="ada-key", name="first"), start(key="bob-key", name="his")
        assert text_of(ada.tool("probe__noise")) and "Unknown tool" in refused_text(bob.tool("probe__noise"))
        start(key="ada-key", name="second")
        listed = ada.tool("gateway__list_sessions")["result"]["content"]
        assert {json.loads(part["text"])["client"] for part in listed} == {"first", "second"}, "and none of his"
        start(key="ada-key")
        refused = Legacy(gateway.url, http, headers={"Authorization": "Bearer ada-key"}).initialize()
        assert refused.status_code == 429 and "error" in messages(refused)[-1]
        answers = [bob.call("ping") for _ in range(14)]
        late = [answer["error"] for answer in answers if "error" in answer]
        assert late and all("retry" in json.dumps(error).lower() for error in late)
        fresh = Legacy(gateway.url, http, headers={"Authorization": "Bearer bob-key"}).open()
        assert tool_text(fresh.tool("probe__pid"))


@requirement("ctx.metadata", "ctx.limits")
def test_the_session_has_metadata_and_state_within_limits(tmp_path: Path, http: httpx.Client) -> None:
    config = tmp_path / "mcp.json"
    servers = {"tool": {"in_process": "tests.support.session_tool:server"}}
    config.write_text(
        json.dumps({"mcpServers": servers, "gateway": {"session": {"metadata": {"client": "{agent}"}}}}),
        encoding="utf-8",
    )
    with StdioAgent(config) as agent:
        agent.open(name="agent")
        written = json.loads(text_of(agent.tool("annotate", {"name": "note", "value": "Bearer abcdefghijklmnop"})))
        assert written == {"client": "agent", "note": "[redacted]"}
        assert "10240" in text_of(agent.tool("annotate", {"name": "a", "value": "x" * 11_000}))
