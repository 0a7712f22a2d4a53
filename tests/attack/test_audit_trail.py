"""Nobody flushes the audit trail, and every token that was refused is in it, one by one or in a sum."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.observability.audit import FULL_ALIKE
from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, messages
from tests.support.redis_server import RunningRedis
from tests.support.waiting import eventually
from tests.support.wire import flood, request

pytestmark = requirement("wall.audit")

BAD = 2_000
SERVERS = {"main": server(DEMO, shared=True)}
ADMIN = bearer("operator-key")


def options(store: str, **more: Any) -> dict[str, Any]:
    return {
        "store": store,
        "api_keys": {"alice": sha256(KEYS["alice"])},
        "admin": {"keys": {"ops": sha256("operator-key")}},
        **more,
    }


def kept(gateway: RunningGateway, http: httpx.Client) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = http.get(
        f"{gateway.base}/admin/api/events", params={"limit": 1_000}, headers=ADMIN
    ).json()
    return found


def refused(events: list[Mapping[str, Any]], word: str) -> int:
    return sum(
        e.get("count", 1) for e in events if e["event"] == "refused" and word in f"{e['reason']} {e.get('why', '')}"
    )


def bad_keys(url: str, many: int) -> Iterator[bytes]:
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    headers = {"Host": urlsplit(url).netloc, "Content-Type": "application/json", **ACCEPT}
    for number in range(many):
        yield request("POST", "/mcp", {**headers, **bearer(f"bad-{number}")}, body)


@requirement("life.events")
@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_thousands_of_bad_keys_flush_nothing_and_are_all_counted(
    store: str, redis_server: RunningRedis, http: httpx.Client, tmp_path: Path
) -> None:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 's.db'}", "redis": redis_server.url}[store]
    redis_server.client().flushall()
    with running_gateway(SERVERS, options=options(url), env={"MCP_GATEWAY_KEYS": "k" * 40}) as gateway:
        alice = Legacy(gateway.url, http, headers=bearer(KEYS["alice"])).open()
        assert alice.delete().status_code == 200
        began = time.monotonic()
        assert flood(gateway.port, bad_keys(gateway.url, BAD)) == {401: BAD}
        took_s = time.monotonic() - began
        assert eventually(lambda: refused(kept(gateway, http), "API key") == BAD), kept(gateway, http)
        events = kept(gateway, http)
        assert {"created", "ended"} <= {e["event"] for e in events if e.get("principal") == "api-key:alice"}
        of_strangers = [e for e in events if e["event"] == "refused"]
        # In a second, each of so many is an event; the others are in sums, of which each write has one.
        assert len(of_strangers) <= 2 * FULL_ALIKE * (took_s + 2), "most of them are in sums"
        assert {e["client"] for e in of_strangers} == {"127.0.0.1"}


def test_a_refused_value_of_every_kind_is_in_the_trail(http: httpx.Client) -> None:
    proxies = {"networks": ["127.0.0.0/8"]}
    with running_gateway(SERVERS, options=options("memory://", auth={"proxies": proxies})) as gateway:
        forged = "f" * 24 + "." + "A" * 43
        Legacy(gateway.url, http, headers={**bearer(KEYS["alice"]), "Mcp-Session-Id": forged}).initialize()
        assert eventually(lambda: refused(kept(gateway, http), "invalid session token") == 1)
        alice = Modern(gateway.url, http, headers=bearer(KEYS["alice"]))
        assert alice.tool("count", headers={"MCP-Gateway-Session": forged}).status_code == 404
        assert alice.tool("count", headers={"Cookie": f"mcp_session_id={forged}"}).status_code == 200
        params = {"name": "count", "arguments": {}, "requestState": forged}
        assert alice.send("tools/call", params).status_code == 400
        came_by = {"X-Forwarded-For": "192.0.2.9, 198.51.100.7:4711, 127.0.0.3", **bearer("bad")}
        assert Modern(gateway.url, http, headers=came_by).tool("count").status_code == 401

        def told() -> bool:
            events = kept(gateway, http)
            words = ("invalid session token", "invalid session cookie", "invalid_request_state", "API key")
            return [refused(events, word) for word in words] == [2, 1, 1, 1]

        assert eventually(told), kept(gateway, http)
        assert [e["client"] for e in kept(gateway, http) if "API key" in e.get("why", "")] == ["198.51.100.7"]


# -- calls

SECRET = "the-argument-of-a-user"
REFUSED: dict[str, tuple[str, Any, str, str]] = {
    "hidden": ("demo__remember", {"key": SECRET, "value": "v"}, "unknown_tool", "demo/remember"),
    "unknown tool": ("demo__nothing", {"key": SECRET}, "unknown_tool", "demo/nothing"),
    "unknown server": ("nobody__nothing", {"key": SECRET}, "unknown_tool", "nobody__nothing"),
    "schema": ("demo__slow", {"steps": SECRET}, "invalid_arguments", "demo/slow"),
    "blocked": ("probe__echo", {"text": f"{SECRET} drop table"}, "invalid_arguments", "probe/echo"),
    "missing": ("probe__echo", {"text": SECRET}, "invalid_arguments", "probe/echo"),
    "handle": ("demo__count", {"session": SECRET}, "invalid_arguments", "demo/count"),
    "no object": ("probe__echo", [SECRET], "invalid_params", "probe/echo"),
}
"""Calls that policy refuses: tool, arguments, the reason that the client gets, and the tool in the trail."""


@requirement("pol.refused-once")
@pytest.mark.parametrize("calls", [True, False], ids=["calls", "refusals"])
@pytest.mark.parametrize("era", [Legacy, Modern])
def test_each_refused_call_is_in_the_trail_once_with_its_client_and_reason(
    era: type[Legacy] | type[Modern], calls: bool, http: httpx.Client
) -> None:
    probe = server(PROBE, tools={"echo": {"bind": {"team": "workspace"}, "blocked": ["drop table"]}})
    demo = server(DEMO, handles=True, tools={"remember": {"direct_only": True}})
    policy = {"rules": [{"trust": "sandboxed"}], "session_rate": {"per_s": 0.01, "burst": 12}}
    more = {"audit": {"calls": calls}, "policy": policy}
    with running_gateway({"demo": demo, "probe": probe}, options=options("memory://", **more)) as gateway:
        client = era(gateway.url, http, headers=bearer(KEYS["alice"]))
        if isinstance(client, Legacy):
            client.open()
        sent: dict[str, tuple[str, str]] = {}

        def call(way: str, tool: str, arguments: Any) -> Any:
            trace = f"{len(sent) + 1:032x}"
            client.headers["traceparent"] = f"00-{trace}-b7ad6b7169203331-01"
            params = {"name": tool, "arguments": arguments}
            answer = (
                client.call("tools/call", params) if isinstance(client, Legacy) else client.send("tools/call", params)
            )
            found = messages(answer)[-1]
            sent[trace] = way, found.get("error", {"data": {"reason": "invalid_arguments"}})["data"]["reason"]
            if isinstance(client, Modern):
                client.headers |= {k: answer.headers[k] for k in ("mcp-gateway-session",) if k in answer.headers}
            return found

        assert not call("answered", "demo__count", {})["result"].get("isError")
        for way, (tool, arguments, _, _) in REFUSED.items():
            found = call(way, tool, arguments)
            assert "error" in found or found["result"]["isError"], found
        while (found := call("rate", "demo__count", {})).get("error", {}).get("code") != -32018:
            assert len(sent) < 20
        [rate] = [trace for trace, (way, reason) in sent.items() if reason == "rate_limited"]

        def rows() -> list[Mapping[str, Any]]:
            return [each for each in kept(gateway, http) if each["event"] in ("called", "refused")]

        assert eventually(lambda: rate in {each.get("correlation") for each in rows()})
        found = {trace: [each for each in rows() if each["correlation"] == trace] for trace in sent}
    for trace, (way, reason) in sent.items():
        if way == "answered" or (way == "rate" and trace != rate):
            assert [each["event"] for each in found[trace]] == ["called"] * calls
            assert all(each["client"] == "127.0.0.1" for each in found[trace])
            continue
        wanted, tool = REFUSED[way][2:] if way in REFUSED else ("rate_limited", "demo__count")
        assert len(found[trace]) == 1, (way, found[trace])
        [row] = found[trace]
        facts = {name: row.get(name, "") for name in ("event", "outcome", "reason", "tool", "client", "principal")}
        assert facts == {
            "event": "refused",
            "outcome": "refused",
            "reason": wanted,
            "tool": tool,
            "client": "127.0.0.1",
            "principal": "api-key:alice",
        }, (way, row)
        assert reason == wanted and row["session"] and row.get("count", 1) == 1, (way, row)
        assert SECRET not in json.dumps(row), "values are in the trail only with `audit.calls` at `values`"
    assert calls == any("called" in {each["event"] for each in of} for of in found.values())


def test_a_forged_token_at_the_stdio_front_is_in_the_trail(tmp_path: Path) -> None:
    file, config = tmp_path / "audit.jsonl", tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": SERVERS, "gateway": {"audit": {"to": ["store", str(file)]}}}))
    env = {**os.environ, "MCP_SESSION_TOKEN": "f" * 24 + "." + "A" * 43}
    ended = run_command("stdio", "--config", str(config), env=env)
    assert ended.returncode == 2 and "MCP_SESSION_TOKEN" in ended.stderr
    events = [json.loads(told) for told in file.read_text().splitlines()]
    assert [e["reason"] for e in events if e["event"] == "refused"] == ["invalid session token"]
