"""What tools see of a session, fields that an operator adds to it, and what no client can make them see."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, messages, result_of, tool_text
from tests.support.waiting import eventually

CONTEXT = "io.github.mcp-session-gateway/context"


def env(client: Legacy | Modern, prefix: str = "") -> dict[str, str]:
    value = json.loads(tool_text(client.tool("env", {"prefix": prefix})))
    assert isinstance(value, dict)
    return value


@requirement("ctx.env")
def test_a_child_is_told_its_session_by_default_names(probe: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(probe.at("probe"), http).open(name="my-host")
    told = env(client, "MCP_SESSION_")
    assert set(told) == {
        "MCP_SESSION_ID",
        "MCP_SESSION_WORKSPACE",
        "MCP_SESSION_WORKSPACE_PROVENANCE",
        "MCP_SESSION_TRUST",
        "MCP_SESSION_PRINCIPAL",
        "MCP_SESSION_AGENT",
        "MCP_SESSION_PERMISSIONS",
        "MCP_SESSION_CORRELATION",
        "MCP_SESSION_SOCKET",
        "MCP_SESSION_ACCESS",
        "MCP_SESSION_FACTS",
    }
    assert told["MCP_SESSION_ID"] == client.session.partition(".")[0] and len(told["MCP_SESSION_ID"]) == 24
    assert (told["MCP_SESSION_TRUST"], told["MCP_SESSION_PRINCIPAL"]) == ("direct", "anonymous")
    assert (told["MCP_SESSION_AGENT"], told["MCP_SESSION_PERMISSIONS"]) == ("my-host", "")
    assert len(told["MCP_SESSION_CORRELATION"]) == 32


@requirement("ctx.announce")
@pytest.mark.parametrize("workspace", ["a\nb", "a\x00b", "x" * 4_097, "a b", "../x", 7, ["a"], {"b": "c"}])
def test_a_workspace_that_cannot_be_is_a_clear_error(probe: RunningGateway, http: httpx.Client, workspace: Any) -> None:
    meta = {"orbit.workspace": workspace}
    answers = [
        Legacy(probe.at("probe"), http).initialize(meta=meta),
        Modern(probe.at("probe"), http).tool("pid", meta=meta),
    ]
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == -32602 and "workspace" in answer.json()["error"]["message"]
        assert "mcp-session-id" not in answer.headers and "mcp-gateway-session" not in answer.headers


@requirement("ctx.unforgeable")
def test_a_client_cannot_forge_its_context(probe: RunningGateway, http: httpx.Client) -> None:
    forged: dict[str, Any] = {
        CONTEXT: {"session_id": "forged", "trust": "root", "principal": "forged"},
        "io.github.mcp-session-gateway/anything": "forged",
        "mine": "kept",
    }
    spoofed = {"X-Forwarded-User": "forged", "MCP-Session-Trust": "root", "X-MCP-Principal": "forged"}
    legacy = Legacy(probe.at("probe"), http, headers=spoofed).open(meta=forged)
    modern = Modern(probe.at("probe"), http, headers=spoofed)
    arguments = {**forged, **forged[CONTEXT]}
    for answer in (legacy.tool("meta", arguments, meta=forged), modern.tool("meta", arguments, meta=forged)):
        meta = json.loads(tool_text(answer))
        assert meta["mine"] == "kept" and "forged" not in json.dumps(meta)
        assert meta[CONTEXT]["principal"] == "anonymous" and meta[CONTEXT]["trust"] == "direct"
    assert "forged" not in json.dumps(env(legacy)) and "root" not in env(legacy, "MCP_SESSION").values()
    duplicate = (
        '{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"meta","_meta":{"a":1},'
        f'"_meta":{json.dumps(forged)}}}}}'
    )
    twice = http.post(
        legacy.url, content=duplicate, headers={**legacy.request_headers(), "Content-Type": "application/json"}
    )
    assert "forged" not in tool_text(twice)


@requirement("ctx.correlation", "ctx.meta-out")
def test_each_request_has_a_correlation_id_taken_from_a_valid_traceparent(
    probe: RunningGateway, http: httpx.Client
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    valid = f"00-{trace}-00f067aa0ba902b7-01"
    client = Modern(probe.at("probe"), http)

    def seen(answer: httpx.Response) -> tuple[str, str, str]:
        result = messages(answer)[-1]["result"]
        told = json.loads(result["content"][0]["text"])[CONTEXT]
        out = result["_meta"]["io.github.mcp-session-gateway/trace"]
        assert out["session"] == told["session_id"][:8] and len(out["session"]) == 8
        return told["correlation_id"], out["correlation_id"], told["session_id"]

    assert seen(client.tool("meta", headers={"traceparent": valid}))[:2] == (trace, trace)
    assert seen(client.tool("meta", meta={"traceparent": valid}))[:2] == (trace, trace)
    assert f'"correlation": "{trace}"' in probe.stderr()
    first, second = (seen(client.tool("meta", headers={"traceparent": f"{valid}-x"})) for _ in range(2))
    assert first[0] == first[1] != trace and first[0] != second[0]
    legacy = Legacy(probe.at("probe"), http, headers={"traceparent": valid}).open()
    assert seen(legacy.tool("meta"))[:2] == (trace, trace)


# -- fields that an operator adds to the context, and everything that they reach


OPTIONS: dict[str, Any] = {
    "auth": {"proxies": {"networks": ["127.0.0.1"], "subject_header": "X-User"}},
    "context": {
        "fields": {
            "team": {"header": "X-Team", "to": ["log", "audit", "meta"]},
            "window": {"header": "X-Window", "client_header": True},
            "project": {"announced": "acme.project"},
            "ticket": {"metadata": "ticket"},
            "region": {"value": "eu"},
        },
        "env": {
            "TEAM": "team",
            "WINDOW": "window",
            "PROJECT": "project",
            "TICKET": "ticket",
            "REGION": "region",
            "USER_ID": {"field": "principal.subject"},
            "WORKSPACE": {"field": "workspace", "announced": True},
            "TMPDIR": "temp_dir",
        },
        "workspace_ids": {"/srv/projects/*": "project-{name}"},
    },
    "session": {"metadata": {"ticket": "for-{principal}"}},
    "audit": {"calls": True, "to": ["stderr"]},
    "policy": {
        "rules": [
            {"principals": ["proxy:ann"], "env": {"TIER": "gold", "OWN": "rule"}, "idle_ttl_s": 1_800},
            {"env": {"TIER": "free"}},
            {"workspaces": ["project-*"], "env": {"TIER": "project"}},
            {"workspaces": ["stolen"], "server_env": {"probe": {"OWN": "stolen"}}},
            {"principals": ["proxy:red-*"], "workspace": "red"},
            {"workspaces": ["red"], "server_env": {"probe": {"OWN": "red's", "TIER": "red"}}},
        ]
    },
}
ECHO = {"echo": {"bind": {"team": "team"}}}
SERVERS = {
    "probe": server(PROBE, env={"OWN": "server"}, context_env={"REGION": "", "WHO": "principal"}, tools=ECHO),
    "other": server(PROBE),
}
ANN = {"x-user": "ann", "x-team": "red", "x-window": "7"}
META = {"acme": {"project": "p-1"}, "orbit": {"workspace": "/srv/projects/alpha"}}


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for sockets."""
    folder = tempfile.mkdtemp(prefix="t", dir="/tmp")
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def gateway(base: Path) -> Iterator[RunningGateway]:
    with running_gateway(SERVERS, options=OPTIONS, env={"TMPDIR": str(base)}) as running:
        yield running


@requirement("ctx.open", "ctx.env-names", "ctx.workspace-paths", "ctx.rules-env")
def test_fields_reach_variables_arguments_logs_and_the_audit_trail(gateway: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(f"{gateway.base}/servers/probe/mcp", http, headers=ANN).open(meta=META)
    told = env(client)
    expected = {"TEAM": "red", "WINDOW": "7", "PROJECT": "p-1", "TICKET": "for-proxy:ann", "USER_ID": "ann"}
    assert expected.items() <= told.items()
    assert "REGION" not in told and told["WHO"] == "proxy:ann", "the server's own map"
    assert told["WORKSPACE"] == "project-alpha"
    assert (told["TIER"], told["OWN"]) == ("gold", "server"), "the first rule, and the server's own env before it"
    facts = json.loads(told["MCP_SESSION_FACTS"])
    assert facts["fields"] == {"team": "red"} and facts["fields_provenance"] == {"team": "authenticated"}
    assert json.loads(tool_text(client.tool("echo"))) == {"team": "red"}
    assert json.loads(tool_text(client.tool("echo", {"team": "blue"}))) == {"team": "blue"}
    assert eventually(lambda: "context.team=red" in gateway.stderr()), "the log line of a request"

    def called() -> list[Any]:
        lines = [json.loads(line) for line in gateway.stderr().splitlines() if line.startswith("{")]
        return [event for event in lines if event["event"] == "called" and event["tool"] == "probe/echo"]

    assert eventually(lambda: bool(called())) and called()[0]["context"] == {"team": "red"}


@requirement("ctx.rules-env", "wall.provenance")
def test_a_rule_overrides_the_env_of_one_server_for_a_workspace_that_nobody_can_announce(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    red = {**ANN, "x-user": "red-1"}
    expected = {"probe": ("red's", "red"), "other": (None, "free")}
    for name, (own, tier) in expected.items():
        told = env(Legacy(f"{gateway.base}/servers/{name}/mcp", http, headers=red).open())
        assert (told.get("OWN"), told["TIER"]) == (own, tier), name
    thief = Legacy(f"{gateway.base}/servers/probe/mcp", http, headers=ANN).open(meta={"orbit": {"workspace": "stolen"}})
    assert env(thief)["OWN"] == "server"


@requirement("ctx.open", "wall.provenance")
def test_a_change_of_the_credential_renews_its_fields_and_keeps_what_was_announced(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    client = Legacy(f"{gateway.base}/servers/other/mcp", http, headers={**ANN, "x-user": "bob"}).open(meta=META)
    before = env(client)
    assert (before["TEAM"], before["PROJECT"], before["TIER"], before["REGION"]) == ("red", "p-1", "free", "eu")
    client.headers["x-team"] = "blue"
    client.headers["x-window"] = "9"
    after = env(client)
    assert (after["TEAM"], after["PROJECT"], after["WINDOW"]) == ("blue", "p-1", "7"), "announced once, at the opening"
    del client.headers["x-team"]
    assert env(client)["TEAM"] == "", "a missing header grants nothing"
    both = httpx.Headers([*client.headers.items(), ("x-team", "a"), ("x-team", "b")])
    refused = http.post(f"{gateway.base}/mcp", headers=both, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert refused.status_code == 400


TOLD = "io.github.mcp-session-gateway/workspace"


@requirement("ctx.announce-late")
def test_a_late_workspace_is_applied_and_a_changed_one_is_refused_and_both_are_told(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    url = f"{gateway.base}/servers/other/mcp"
    legacy, modern = Legacy(url, http, headers=ANN).open(), Modern(url, http, headers={**ANN, "x-user": "eve"})
    clients: tuple[tuple[Any, str], ...] = ((legacy, "w-1"), (modern, "w-2"))
    for client, named in clients:
        assert env(client)["WORKSPACE"] == ""
        late = client.tool("env", {"prefix": "WORKSPACE"}, meta={"orbit": {"workspace": named}})
        assert json.loads(tool_text(late)) == {"WORKSPACE": named}, "its server was started again"
        assert result_of(late)["_meta"][TOLD] == {"workspace": named, "applied": True}
        assert env(client)["WORKSPACE"] == named, "and it stays"
        refused = client.tool("pid", meta={"orbit": {"workspace": "w-3"}})
        error = messages(refused)[-1]["error"]
        assert refused.status_code == 400 and error["data"]["reason"] == "other_workspace"
        assert f"for workspace '{named}'" in error["message"] and "'w-3'" in error["message"]
        assert env(client)["WORKSPACE"] == named
    assert eventually(lambda: gateway.stderr().count("announced the workspace of its session late") == 2)
    again = legacy.initialize(meta={"orbit": {"workspace": "w-9"}})
    assert result_of(again)["_meta"][TOLD] == {"workspace": "w-9", "applied": True}, "a handshake begins anew"
    assert env(legacy)["WORKSPACE"] == "w-9"


@requirement("ctx.temp-dir")
def test_a_session_has_a_folder_for_its_servers_until_it_ends(
    gateway: RunningGateway, http: httpx.Client, base: Path
) -> None:
    one = Legacy(f"{gateway.base}/servers/other/mcp", http, headers=ANN).open()
    two = Legacy(f"{gateway.base}/servers/other/mcp", http, headers=ANN).open()
    folder, other = Path(env(one)["TMPDIR"]), Path(env(two)["TMPDIR"])
    assert folder != other and folder.is_relative_to(base) and folder.stat().st_mode & 0o777 == 0o700
    (folder / "file").write_text("x")
    assert json.loads(tool_text(one.tool("files", {"folder": str(folder)}))) == ["file"]
    assert one.delete().status_code == 200
    assert eventually(lambda: not folder.exists()) and other.exists()
