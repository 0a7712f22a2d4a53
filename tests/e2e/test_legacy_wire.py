"""The wire of the handshake era, as a client that writes every byte itself sees it."""

import json
from time import monotonic
from typing import Any

import httpx

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, replicas, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, error_of, events, messages, result_of, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.waiting import eventually


@requirement("spec.legacy")
def test_each_version_of_the_handshake_era_is_served(demo: RunningGateway, http: httpx.Client) -> None:
    """And who asks for one that nobody can negotiate gets the newest."""
    newest = "2025-11-25"
    for version in ("2025-03-26", "2025-06-18", newest, "2026-07-28", "1999-01-01", "nonsense"):
        answer = Legacy(demo.url, http, version=version).initialize()
        negotiated = version if version.startswith("2025") else newest
        assert answer.status_code == 200 and answer.json()["result"]["protocolVersion"] == negotiated
    client = Legacy(demo.url, http, version="2025-03-26").open()
    assert result_of(client.call("ping")) == {}
    assert tool_text(client.tool("count")) == "1"


@requirement("spec.legacy")
def test_statuses_of_messages_without_a_good_session(demo: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(demo.url, http).open()
    session, client.session = client.session, ""
    nothing = client.call("ping")
    assert nothing.status_code == 400 and nothing.json()["error"]["code"] == -32600
    assert "mcp-session-id" not in nothing.headers
    for bad in ("unknown", session[:-1]):
        client.session = bad
        assert client.call("ping").status_code == client.notify("notifications/initialized").status_code == 404
    client.session = session
    assert client.call("no/such/method").status_code == 200
    assert error_of(client.call("no/such/method"))["code"] == -32601
    assert client.call("ping", headers={"MCP-Protocol-Version": "1999-01-01"}).status_code == 400
    without = {k: v for k, v in client.request_headers().items() if k != "MCP-Protocol-Version"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert http.post(demo.url, json=body, headers=without).status_code == 200


@requirement("spec.legacy")
def test_other_methods_are_405_and_options_answers(demo: RunningGateway, http: httpx.Client) -> None:
    for method in ("PUT", "PATCH"):
        answer = http.request(method, demo.url)
        assert answer.status_code == 405 and "POST" in answer.headers["allow"]
    preflight = http.options(
        demo.url, headers={"Origin": demo.base, "Access-Control-Request-Headers": "mcp-session-id"}
    )
    assert preflight.status_code == 204 and preflight.headers["access-control-allow-origin"] == demo.base
    answer = Legacy(demo.url, http, headers={"Origin": demo.base}).initialize()
    assert answer.headers["access-control-allow-origin"] == demo.base
    assert "mcp-session-id" in answer.headers["access-control-expose-headers"]
    assert http.get(demo.url, headers={"Accept": "application/json"}).status_code == 406
    assert http.get(demo.url, headers={"Accept": "text/event-stream"}).status_code == 400
    assert http.post(demo.base + "/servers/nobody/mcp", json={}, headers=ACCEPT).status_code == 404


@requirement("spec.legacy", "spec.complete")
def test_progress_makes_an_event_stream_with_ids_to_resume_from(demo: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(demo.url, http).open()
    answer = client.tool("slow", {"steps": 3, "interval_s": 0.05}, meta={"progressToken": "mine"})
    seen = list(events(answer.text))
    assert seen[0][1] == "" and seen[0][0], "a priming event comes first"
    tokens = [json.loads(d)["params"]["progressToken"] for _, d in seen if "notifications/progress" in d]
    assert tokens == ["mine"] * 3
    assert len({i for i, _ in seen}) == len(seen)
    with client.get(last_event_id=seen[0][0]) as resumed:
        assert resumed.status_code == 200
        replayed = list(events("".join(resumed.iter_text())))
    assert replayed == seen[1:], "the stream is replayed from there to its end"
    old = Legacy(demo.url, http, version="2025-06-18").open()
    first = next(events(old.tool("slow", {"steps": 1, "interval_s": 0}, meta={"progressToken": 7}).text))
    assert first[1] != "", "older clients choke on a priming event"


@requirement("spec.legacy", "wall.memory")
def test_a_result_that_is_too_large_to_be_kept_is_told_in_a_replay(keyed: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(keyed.at("probe"), http, headers=bearer(KEYS["alice"])).open()
    answer = client.tool("giant", {"size": 1_500_000, "say": True})
    seen = list(events(answer.text))
    assert len(json.loads(seen[-1][1])["result"]["content"][0]["text"]) == 1_500_000, "the client gets it whole"
    with client.get(last_event_id=seen[0][0]) as resumed:
        replayed = list(events("".join(resumed.iter_text())))
    assert [event_id for event_id, _ in replayed] == [event_id for event_id, _ in seen[1:]]
    error = json.loads(replayed[-1][1])["error"]
    assert error["code"] == -32014 and "larger than a replay can be" in error["message"]


@requirement("spec.legacy")
def test_another_sessions_event_id_is_refused(demo: RunningGateway, http: httpx.Client) -> None:
    mine, other = Legacy(demo.url, http).open(), Legacy(demo.url, http).open()
    streams = [
        list(events(c.tool("slow", {"steps": 1, "interval_s": 0}, meta={"progressToken": 1}).text))
        for c in (mine, other)
    ]
    for event_id in (streams[1][0][0], "nonsense", "0-1"):
        with mine.get(last_event_id=event_id) as refused:
            assert refused.status_code == 404
            refused.read()
            assert refused.json()["error"]["message"].startswith("Unknown Last-Event-ID")


@requirement("spec.legacy", "spec.complete")
def test_the_get_stream_carries_what_belongs_to_no_call(probe: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(probe.at("probe"), http).open()
    client.tool("change")  # before anyone listens: it waits
    with httpx.Client(timeout=20) as second:
        listening = Legacy(client.url, second)
        listening.session = client.session
        with listening.get() as stream:
            assert stream.status_code == 200 and stream.headers["content-type"].startswith("text/event-stream")
            with client.get() as again:
                assert again.status_code == 409, "one GET stream per session"
                assert "id" not in json.loads(again.read()), "it answers no message"
            chunks = stream.iter_text()
            heard = ""
            while heard.count("data: ") < 2:
                heard += next(chunks)
            client.tool("change")
            while heard.count("data: ") < 4:
                heard += next(chunks)
    seen = [(i, json.loads(d)["method"]) for i, d in events(heard)]
    assert [m for _, m in seen] == ["notifications/tools/list_changed", "notifications/resources/updated"] * 2

    def resumes() -> bool:
        with client.get(last_event_id=seen[1][0]) as resumed:
            if resumed.status_code != 200:
                return False
            text, parts = "", resumed.iter_text()
            while text.count("data: ") < 2:
                text += next(parts)
            return [i for i, _ in events(text)] == [seen[2][0], seen[3][0]]

    assert eventually(resumes), "and it is replayed from an event on"


@requirement("spec.legacy")
def test_event_streams_are_not_served_to_other_sites(demo: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(demo.url, http).open()
    client.headers = {"Sec-Fetch-Site": "cross-site"}
    with client.get() as refused:
        assert refused.status_code == 403


@requirement("spec.complete")
def test_a_servers_request_comes_on_the_calls_stream_and_its_answer_finds_back(
    probe: RunningGateway, http: httpx.Client
) -> None:
    client = Legacy(probe.at("probe"), http).open(capabilities={"roots": {}})
    body = {"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": {"name": "roots"}}
    with httpx.Client(timeout=20) as calling:
        with calling.stream("POST", client.url, json=body, headers=client.request_headers()) as stream:
            text, chunks = "", stream.iter_text()
            while '"roots/list"' not in text:
                text += next(chunks)
            question = next(json.loads(d) for _, d in events(text) if "roots/list" in d)
            assert question["id"] != "probe-1", "ids of servers are rewritten"
            roots = {"roots": [{"uri": "file:///x"}]}
            assert client.post({"jsonrpc": "2.0", "id": question["id"], "result": roots}).status_code == 202
            assert client.post({"jsonrpc": "2.0", "id": 4711, "result": {}}).status_code == 202
            text += "".join(chunks)
    answer = json.loads(list(events(text))[-1][1])
    assert answer["id"] == 0 and json.loads(answer["result"]["content"][0]["text"]) == roots


@requirement("spec.origin")
def test_host_and_origin_are_checked(demo: RunningGateway, http: httpx.Client) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    port = demo.base.rpartition(":")[2]
    for host, status in ((f"localhost:{port}", 400), ("evil.example", 421), ("127.0.0.1.evil.example", 421)):
        assert http.post(demo.url, json=body, headers={**ACCEPT, "Host": host}).status_code == status
    for path in ("/healthz/", "/admin/static", "/.well-known/jwks.json/"):
        led = http.get(demo.base + path, headers={"Host": "evil.example"})
        assert led.status_code == 404 and "location" not in led.headers, path
    for origin in (
        "https://evil.example",
        "null",
        "http://localhost.evil.example",
        "file://",
        "http://[",
        "http://[::1",
    ):
        assert http.post(demo.url, json=body, headers={**ACCEPT, "Origin": origin}).status_code == 403
    assert http.post(demo.url, json=body, headers={**ACCEPT, "Origin": f"http://localhost:{port}"}).status_code == 400
    assert demo.url.startswith("http://127.0.0.1:"), "a local default binds to loopback"


@requirement("spec.complete")
def test_several_servers_are_one_endpoint_with_prefixed_names(http: httpx.Client) -> None:
    servers = {"one": server(DEMO), "two": server(DEMO), "broken": server(("/does/not/exist",))}
    with in_process_gateway(servers) as gateway:
        client = Legacy(gateway.url, http).open()
        names = [t["name"] for t in result_of(client.call("tools/list"))["tools"]]
        tools = ("whoami", "count", "ask", "slow", "remember", "recall")
        assert names == [f"{s}__{t}" for s in ("one", "two") for t in tools]
        assert [tool_text(client.tool(f"{s}__count")) for s in ("one", "two", "two")] == ["1", "1", "2"]
        assert error_of(client.tool("count"))["code"] == -32602
        prompt = result_of(client.call("prompts/get", {"name": "two__introduce"}))
        assert prompt["messages"][0]["role"] == "user"
        assert result_of(client.call("resources/read", {"uri": "demo://session"}))["contents"]
        assert "error" in messages(client.call("resources/read", {"uri": "demo://nothing"}))[-1]
        assert "error" in messages(client.call("tools/list", {"cursor": "nonsense"}))[-1]
        single = Legacy(f"{gateway.base}/servers/two/mcp", http).open()
        assert tool_text(single.tool("count")) == "1"


# -- silent calls of legacy clients


SERVERS = {"probe": server(PROBE)}


def cut_call(client: Legacy, seconds: float) -> tuple[str, float]:
    """A silent call whose connection is cut after the first event: the id of that event, and when it came."""
    params = {"name": "sleep", "arguments": {"seconds": seconds}}
    body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
    began = monotonic()
    with httpx.Client(timeout=20) as own:
        with own.stream("POST", client.url, json=body, headers=client.request_headers()) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            text = ""
            for chunk in response.iter_text():
                text += chunk
                if "\n\n" in text:
                    break
            after_s = monotonic() - began
    event_id, data = next(events(text))
    assert event_id and data == "", "a priming event"
    return event_id, after_s


def fetched(client: Legacy, event_id: str) -> Any:
    with client.get(last_event_id=event_id) as resumed:
        assert resumed.status_code == 200
        return json.loads(list(events("".join(resumed.iter_text())))[-1][1])


@requirement("spec.priming", "rep.any")
def test_the_result_of_a_cut_silent_call_is_fetched_from_any_replica(
    redis_server: RunningRedis, http: httpx.Client
) -> None:
    with replicas(redis_server.url, SERVERS) as (one, two):
        client = Legacy(one.url, http).open()
        assert tool_text(client.tool("pid"))
        event_id, after_s = cut_call(client, 2.0)
        assert after_s > 0.9, "after a second"
        client.url = two.url
        for _ in range(2):  # while the call is running, and afterwards
            answer = fetched(client, event_id)
            assert answer["id"] == 5 and answer["result"]["content"][0]["text"] == "slept"
        quick = client.tool("pid")
        assert quick.headers["content-type"] == "application/json", "no stream where there is an answer"

        old = Legacy(one.url, http, version="2025-06-18").open()
        for slow in (old.tool("sleep", {"seconds": 1.4}), Modern(one.url, http).tool("sleep", {"seconds": 1.4})):
            assert slow.headers["content-type"] == "application/json" and tool_text(slow) == "slept"
