"""One structured event for what happens to sessions, for each refusal and each tool call."""

import json
from pathlib import Path
from typing import Any

import httpx

from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, running_gateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, failed_text, messages, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"


@requirement("life.events", "ctx.correlation", "ops.redact", "pol.trust")
def test_calls_and_refusals_are_told_to_a_file_and_the_store(
    redis_server: RunningRedis, http: httpx.Client, tmp_path: Path
) -> None:
    """A process of its own, whose stderr is the third sink."""
    file = tmp_path / "audit.jsonl"
    redis_server.client().flushall()
    options = {
        "store": redis_server.url,
        "api_keys": {name: sha256(key) for name, key in KEYS.items()},
        "audit": {"calls": True, "file": str(file), "to": ["store", "stderr"]},
        "policy": {"session_rate": {"per_s": 0.01, "burst": 5}, "rules": [{"trust": "sandboxed"}]},
    }
    servers = {"demo": server(DEMO, tools={"recall": {"direct_only": True}}), "probe": server(PROBE)}
    with running_gateway(servers, options=options, env={"MCP_GATEWAY_KEYS": "k" * 40}) as gateway:
        alice = Modern(gateway.url, http, headers=bearer(KEYS["alice"]))
        traced = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        assert tool_text(alice.tool("demo__remember", {"key": "k", "value": "a \n secret"}, headers=traced))
        assert "error" in messages(alice.tool("demo__recall", {"key": "k"}))[-1]
        assert messages(alice.tool("probe__fail"))[-1]["result"]["isError"] is True
        assert "arguments.steps" in failed_text(alice.tool("demo__slow", {"steps": "many"}))
        while alice.tool("demo__count").status_code != 429:
            pass
        stolen = Legacy(gateway.url, http, headers=bearer("not-a-key"))
        assert stolen.initialize(name="x\nevent=ended").status_code == 401

        def told() -> list[Any]:
            return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

        assert eventually(lambda: any("API key" in event["reason"] for event in told()))
        events = told()
        calls = {event["tool"]: event for event in events if event["event"] == "called"}
        assert calls["demo/remember"]["outcome"] == "ok" and calls["probe/fail"]["outcome"] == "tool error"
        assert calls["demo/slow"]["outcome"] == "tool error", "arguments that the gateway has refused"
        remembered = calls["demo/remember"]
        assert remembered["correlation"] == TRACE and remembered["principal"] == "api-key:alice"
        assert 0 < remembered["took_s"] < 10 and len(remembered["session"]) < 16
        assert remembered["trust"] == "sandboxed"
        refused = {event["tool"] or event["reason"]: event for event in events if event["event"] == "refused"}
        assert "direct trust" in refused["demo/recall"]["reason"]
        assert any("Too many requests" in name for name in refused)
        everything = file.read_text() + gateway.stderr()
        assert "secret" not in everything and KEYS["alice"] not in everything and "not-a-key" not in everything
        assert eventually(lambda: '"event":"called"' in gateway.stderr()), "each sink has a writer of its own"
    printed = run_command("sessions", "events", "--store", redis_server.url, "--json")
    assert printed.returncode == 0, printed.stderr
    kept = [json.loads(line) for line in printed.stdout.splitlines()]
    assert {"created", "called", "refused"} <= {event["event"] for event in kept}


@requirement("life.events")
def test_calls_are_not_told_unless_wanted(http: httpx.Client, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with in_process_gateway({"demo": server(DEMO)}, options={"audit": {"file": str(file)}}) as gateway:
        client = Legacy(gateway.url, http).open()
        assert tool_text(client.tool("count")) == "1"
        client.headers["traceparent"] = f"00-{TRACE}-b7ad6b7169203331-01"
        assert client.delete().status_code == 200
        assert eventually(lambda: file.exists() and '"ended"' in file.read_text())
    created, ended = (json.loads(line) for line in file.read_text().splitlines())
    assert (created["event"], ended["event"], ended["session"]) == ("created", "ended", created["session"])
    assert (ended["principal"], ended["endpoint"], ended["correlation"]) == ("anonymous", "/mcp", TRACE)
    assert 0 < ended["lasted_s"] < 60 and ended["calls"] == 1
