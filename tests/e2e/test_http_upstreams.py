"""Servers behind URLs: a session there for each of ours, which outlives our processes, and what becomes of failures."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jwt
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, replicas, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, error_of, restarted, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.scripted_http_server import HttpProbe, running_http_probe
from tests.support.waiting import eventually

ISSUER = "https://gateway.example"


@pytest.fixture
def remote() -> Iterator[HttpProbe]:
    with running_http_probe() as probe:
        yield probe


@pytest.fixture
def gateway(remote: HttpProbe) -> Iterator[InProcessGateway]:
    """New for each test, which counts what the server has seen, or makes it forget."""
    servers = {"remote": {"url": remote.url, "headers": {"X-Team": "blue"}}}
    with in_process_gateway(servers, options={"public_url": f"{ISSUER}/"}) as running:
        yield running


@requirement("ctx.isolated", "spec.bridge")
def test_each_session_has_a_session_of_its_own_there(
    gateway: InProcessGateway, remote: HttpProbe, http: httpx.Client
) -> None:
    clients = [Legacy(gateway.url, http).open() for _ in range(3)]
    for n in range(1, 4):
        assert [tool_text(client.tool("count")) for client in clients] == [str(n)] * 3
    assert all(headers["x-team"] == "blue" for headers in remote.headers)
    assert not any("cookie" in headers for headers in remote.headers)
    before = set(remote.sessions)
    clients[0].delete()
    assert eventually(lambda: len(remote.deleted) == 1) and remote.deleted[0] in before
    modern = Modern(gateway.url, http)
    assert tool_text(modern.tool("echo", {"text": "hi"})) == "hi"


@requirement("ctx.isolated", "rep.takeover", "proc.reset-told")
def test_another_replica_goes_on_with_the_session_there(
    remote: HttpProbe, redis_server: RunningRedis, http: httpx.Client
) -> None:
    with replicas(redis_server.url, {"remote": {"url": remote.url}}) as (first, second):
        client = Legacy(first.url, http).open()
        assert tool_text(client.tool("count")) == "1"
        first.kill()
        client.url = second.url
        answer = client.tool("count")
        assert tool_text(answer) == "2" and restarted(answer) is None, "nothing was lost there"


@requirement("proc.reset-told", "ctx.isolated")
def test_a_session_that_the_server_forgets_is_opened_again(
    gateway: InProcessGateway, remote: HttpProbe, http: httpx.Client
) -> None:
    client = Legacy(gateway.url, http).open()
    assert tool_text(client.tool("count")) == "1"
    remote.sessions.clear()
    executed = len(remote.executed)
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(client.tool, ["count"] * 5))
    assert sorted(int(tool_text(answer)) for answer in answers) == [1, 2, 3, 4, 5], "one new session, each call once"
    assert len(remote.executed) == executed + 5
    assert [restarted(answer) for answer in answers].count({"reason": "upstream_session"}) == 1


@requirement("spec.bridge", "rep.honest", "rep.no-retry")
def test_what_goes_wrong_there_is_told_and_stays_there(remote: HttpProbe, http: httpx.Client) -> None:
    servers = {"remote": {"url": remote.url}, "local": server(PROBE)}
    with in_process_gateway(servers) as gateway:
        client = Legacy(gateway.url, http).open()
        assert tool_text(client.tool("remote__count")) == "1"
        for status, code in ((401, -32013), (403, -32013), (500, -32014), (502, -32014), (503, -32013), (504, -32014)):
            remote.answer_with = status
            error = error_of(client.tool("remote__count"))
            assert error["code"] == code and str(status) in error["message"] and "'remote'" in error["message"]
            assert tool_text(client.tool("local__pid"))
        remote.answer_with = 0

        assert error_of(client.tool("remote__reset"))["code"] == -32014, "nobody knows"
        assert tool_text(client.tool("remote__count")) == "3" and tool_text(client.tool("remote__drip")) == "4"


@requirement("ctx.state", "ctx.unforgeable", "id.purpose")
def test_the_server_is_told_whose_call_it_is_and_reaches_that_sessions_state(
    gateway: InProcessGateway, remote: HttpProbe, http: httpx.Client
) -> None:
    client, other = Legacy(gateway.url, http, headers={"MCP-Gateway-Context": "forged"}), Legacy(gateway.url, http)
    tokens = []
    for each, workspace in ((client, "w-1"), (other, "w-2")):
        # One after the other: a session's own stream may be opened after its first call has been answered.
        each.open(meta={"orbit": {"workspace": workspace}}).tool("count")
        tokens.append(remote.headers[-1]["mcp-gateway-context"])
    jwks = jwt.PyJWKSet.from_dict(http.get(f"{gateway.base}/.well-known/jwks.json").json())
    claims = [
        jwt.decode(token, jwks.keys[0].key, algorithms=["EdDSA"], audience=remote.url, issuer=ISSUER)
        for token in tokens
    ]
    assert [c["workspace"] for c in claims] == ["w-1", "w-2"] and claims[0]["exp"] - claims[0]["iat"] <= 60
    assert {c["workspace_provenance"] for c in claims} == {"announced"}
    with pytest.raises(jwt.InvalidAudienceError):
        jwt.decode(tokens[0], jwks.keys[0].key, algorithms=["EdDSA"], audience="https://elsewhere.example/mcp")
    mine, theirs = ({"Authorization": f"Bearer {token}"} for token in tokens)
    state = f"{gateway.base}/v1/state"
    assert http.put(f"{state}/k", content=b'"mine"', headers=mine).status_code == 204
    assert http.get(f"{state}/k", headers=mine).json() == "mine"
    assert http.get(f"{state}/k", headers=theirs).status_code == 404
    assert http.get(f"{gateway.base}/v1/session", headers=theirs).json()["workspace"] == "w-2"
    for bad in (tokens[0][:-4] + "AAAA", client.session, "x", _unsigned(claims[0])):
        assert http.get(f"{state}/k", headers={"Authorization": f"Bearer {bad}"}).status_code == 401
    client.delete()
    assert http.get(f"{state}/k", headers=mine).status_code == 410


def _unsigned(claims: Any) -> str:
    return jwt.encode(json.loads(json.dumps(claims)), key="", algorithm="none")
