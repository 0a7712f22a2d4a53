"""Several isolated sessions of one unmodified server, held by one client."""

from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.e2e.conftest import KEYS, bearer, sha256
from tests.requirements import requirement
from tests.support.procs import gone
from tests.support.raw import Legacy, Modern, messages, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.running import DEMO, PROBE, RunningGateway, running_gateway, server

SERVERS = {"demo": server(DEMO, handles=True), "probe": server(PROBE, handles=True)}


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with running_gateway(SERVERS) as running:
        yield running


def clients(gateway: RunningGateway, http: httpx.Client, path: str) -> list[Legacy | Modern]:
    """One of each era, both with a session to come back to."""
    url = f"{gateway.base}/servers/{path}/mcp"
    token = messages(Modern(url, http).tool("open_session"))[-1]["result"]["_meta"][
        "io.github.mcp-session-gateway/session"
    ]
    return [Legacy(url, http).open(), Modern(url, http, headers={"MCP-Gateway-Session": token})]


@requirement("id.carriers", "ctx.isolated", "proc.isolated")
def test_one_client_holds_three_sessions_of_an_unmodified_server(gateway: RunningGateway, http: httpx.Client) -> None:
    for client in clients(gateway, http, "demo"):
        handles = [tool_text(client.tool("open_session")) for _ in range(2)]
        for n in range(1, 4):
            assert tool_text(client.tool("count")) == str(n)
            assert [tool_text(client.tool("count", {"session": handle})) for handle in handles] == [str(n)] * 2
        client.tool("remember", {"key": "k", "value": "one", "session": handles[0]})
        assert tool_text(client.tool("recall", {"key": "k", "session": handles[0]})) == "one"
        assert tool_text(client.tool("recall", {"key": "k", "session": handles[1]})) != "one"
        assert tool_text(client.tool("recall", {"key": "k"})) != "one"


@requirement("id.carriers", "spec.complete")
def test_the_tools_say_how_and_the_server_never_sees_it(gateway: RunningGateway, http: httpx.Client) -> None:
    for client in clients(gateway, http, "probe"):
        listed = client.call("tools/list") if isinstance(client, Legacy) else client.send("tools/list")
        tools = {tool["name"]: tool for tool in messages(listed)[-1]["result"]["tools"]}
        assert {"open_session", "close_session"} < tools.keys()
        assert "session" in tools["echo"]["inputSchema"]["properties"]
        handle = tool_text(client.tool("open_session"))
        assert tool_text(client.tool("echo", {"a": 1, "session": handle})) == '{"a": 1}'
        assert tool_text(client.tool("echo", {"session": "mine"})) == '{"session": "mine"}', "not a handle of ours"


@requirement("id.bound", "life.end", "proc.gone")
def test_closed_foreign_and_ended_handles_are_unknown(gateway: RunningGateway, http: httpx.Client) -> None:
    url = f"{gateway.base}/servers/probe/mcp"
    client, stranger = Legacy(url, http).open(), Legacy(url, http).open()
    one, two = (tool_text(client.tool("open_session")) for _ in range(2))
    children = [psutil.Process(int(tool_text(client.tool("pid", {"session": handle})))) for handle in (one, two)]
    assert "No session" in messages(stranger.tool("pid", {"session": one}))[-1]["error"]["message"]
    assert tool_text(stranger.tool("close_session", {"session": one})) == "False"
    assert tool_text(client.tool("close_session", {"session": one})) == "True"
    assert (
        gone([children[0]]) and "No session" in messages(client.tool("pid", {"session": one}))[-1]["error"]["message"]
    )
    client.delete()
    assert gone([children[1]]), "what is within a session ends with it"


@requirement("id.carriers", "rep.any")
def test_a_principals_handles_are_good_wherever_it_calls_from(redis_server: RunningRedis, http: httpx.Client) -> None:
    options = {"store": redis_server.url, "api_keys": {name: sha256(key) for name, key in KEYS.items()}}
    env = {"MCP_GATEWAY_KEYS": "k" * 40}
    mine, other = (bearer(key) for key in list(KEYS.values())[:2])
    with (
        running_gateway(SERVERS, options=options, env=env, must_stop=False) as first,
        running_gateway(SERVERS, options=options, env=env, must_stop=False) as second,
    ):
        urls = [f"{gateway.base}/servers/demo/mcp" for gateway in (first, second)]
        handle = tool_text(Modern(urls[0], http, headers=mine).tool("open_session"))
        for n in range(1, 5):
            client = Modern(urls[n % 2], http, headers=mine)
            assert tool_text(client.tool("count", {"session": handle})) == str(n)
        stranger = Modern(urls[0], http, headers=other)
        assert "No session" in messages(stranger.tool("count", {"session": handle}))[-1]["error"]["message"]
