"""Messages and hosts that are refused, and what a stranger's body costs."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, RunningGateway, operators_of, server
from tests.support.http_bytes import answers, listener_of
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.issuer import Issuer
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, messages, tool_text


@requirement("wall.authority")
@pytest.mark.parametrize("version", ["2020-01-01", "nonsense", "", "2025-11-25, 2025-11-25"])
def test_a_delete_or_get_of_an_unknown_version_ends_and_opens_nothing(
    demo: RunningGateway, http: httpx.Client, version: str
) -> None:
    client = Legacy(demo.url, http).open()
    named = {**client.request_headers(), "Accept": "text/event-stream", "MCP-Protocol-Version": version}
    assert http.delete(demo.url, headers=named).status_code == 400
    assert http.get(demo.url, headers=named).status_code == 400
    assert tool_text(client.tool("count")) == "1", "it lives"
    assert client.delete().status_code == 200


@requirement("wall.authority", "pol.auth")
def test_a_token_that_does_not_go_far_enough_is_told_what_it_needs(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    for scope in ("other", "", None):
        answer = Modern(issued.at("demo"), http, headers=bearer(issuer.token(scope=scope))).tool("whoami")
        challenge = answer.headers["www-authenticate"]
        assert answer.status_code == 403 and answer.json()["error"]["code"] == -32011
        assert challenge.startswith("Bearer ") and 'error="insufficient_scope"' in challenge
        assert 'scope="mcp"' in challenge and "resource_metadata=" in challenge
    assert (
        Modern(issued.at("demo"), http, headers=bearer(issuer.token(scope="mcp other"))).tool("whoami").status_code
        == 200
    )


@requirement("wall.authority", "pol.auth")
@pytest.mark.parametrize("bound", [{"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}, {"x5t#S256": "bwc"}, {}])
def test_a_token_that_is_bound_to_a_key_is_no_bearer_token(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client, bound: dict[str, str]
) -> None:
    answer = Modern(issued.at("demo"), http, headers=bearer(issuer.token(cnf=bound))).tool("whoami")
    assert answer.status_code == 401 and 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "bound to a key" in answer.text


@pytest.fixture
def old(keyed: RunningGateway, http: httpx.Client) -> Legacy:
    """Has a session at the probe; of a result no more than 16 MiB is passed on."""
    return Legacy(keyed.at("probe"), http, version="2025-03-26", headers=bearer(KEYS["alice"])).open()


def ping(number: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "ping"}


def call(number: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@requirement("wall.before-auth")
def test_a_batch_that_is_too_long_is_refused_before_any_of_it_is_read_or_done(old: Legacy) -> None:
    assert len(old.post([ping(number) for number in range(64)]).json()) == 64
    for size in (65, 85_000):
        work = [call("first", "state", touched="yes"), *(ping(number) for number in range(size - 1))]
        began = time.monotonic()
        refused = old.post(work)
        took_s = time.monotonic() - began
        assert refused.status_code == 400 and "64 messages at most" in refused.json()["error"]["message"]
        assert took_s < 1
    assert json.loads(tool_text(old.tool("state"))) == {}, "nothing of it was done"


@requirement("wall.before-auth")
def test_nothing_of_a_batch_is_done_for_somebody_who_may_not_send_it(old: Legacy) -> None:
    work = [ping(1), call(2, "state", touched="yes")]
    for wrong, status in (
        ({"Authorization": "Bearer nobody"}, 401),
        ({"Mcp-Session-Id": "x" * 22 + "." + "y" * 43}, 404),
    ):
        assert old.post(work, headers=wrong).status_code == status
    assert json.loads(tool_text(old.tool("state"))) == {}


@requirement("wall.before-auth", "spec.legacy")
def test_each_message_of_a_batch_is_answered_on_its_own(old: Legacy) -> None:
    mixed: list[Any] = [
        ping(1),
        7,
        [ping(2)],
        {"jsonrpc": "2.0", "id": 3, "method": "ping", "params": [1]},
        {"jsonrpc": "1.0", "id": 4, "method": "ping"},
        {"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {}},
        call(6, "state", touched="yes"),
        call("n" * 2_000, "echo"),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}},
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        call(8, "echo", a=1),
    ]
    answer = old.post(mixed)
    assert answer.status_code == 200
    answers = answer.json()
    good = {m["id"]: m["result"] for m in answers if "result" in m}
    bad = [m["id"] for m in answers if "error" in m]
    assert good.keys() == {1, 6, 8} and json.loads(good[8]["content"][0]["text"]) == {"a": 1}
    assert sorted(map(str, bad)) == ["3", "4", "5", "None", "None", "None"]
    assert json.loads(tool_text(old.tool("state"))) == {"touched": "yes"}


@requirement("wall.before-auth", "spec.batch")
def test_large_answers_of_a_batch_are_sent_as_they_come(old: Legacy) -> None:
    answer = old.post([call(number, "giant", size=6 << 20) for number in range(4)])
    assert answer.headers["content-type"] == "text/event-stream", "all of them together would be too large to hold"
    answers = messages(answer)
    assert sorted(answer["id"] for answer in answers) == [0, 1, 2, 3] and all("result" in each for each in answers)


# -- a large body is read from callers who may call, and from nobody else


HEAD = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: {ACCEPT['Accept']}\r\n"


@requirement("wall.before-auth")
@pytest.mark.parametrize("credential", ["", "Authorization: Bearer wrong\r\n"])
def test_a_stranger_is_refused_before_a_large_body_is_read(keyed: RunningGateway, credential: str) -> None:
    declared = f"{HEAD}{credential}Content-Length: 4000000\r\n\r\n".encode()
    heard = answers(listener_of(keyed.url), [declared, b"x" * 1_024], expected=1)
    assert heard.statuses == [401], "the rest of the body was not waited for"

    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    undeclared = f"{HEAD}{credential}Transfer-Encoding: chunked\r\n\r\n".encode()
    heard = answers(listener_of(keyed.url), [undeclared, chunk, chunk], expected=1)
    assert heard.statuses == [401], "the end of the body was not waited for"


def test_a_large_body_of_a_caller_is_read_whole(keyed: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(keyed.at("probe"), http, headers=bearer(KEYS["alice"])).open()
    answer = client.call("tools/call", {"name": "echo", "arguments": {"text": "x" * 1_000_000}})
    assert answer.status_code == 200, answer.text[:300]


# -- names under which a gateway is asked for


NAMES = ["mcp.example", "*.pages.example", "[2001:db8::1]"]


@pytest.fixture(scope="module")
def public() -> Iterator[InProcessGateway]:
    options = {"host": "0.0.0.0", "anonymous": True, "allowed_hosts": NAMES}
    with in_process_gateway({"demo": server(DEMO)}, options=options) as running:
        yield running


@requirement("wall.defaults", "spec.origin")
def test_a_page_that_has_its_name_point_here_is_not_served(public: InProcessGateway, http: httpx.Client) -> None:
    port = public.base.rpartition(":")[2]
    for name in (
        "evil.example",
        "pages.example",
        "evilpages.example",
        "mcp.example.evil.example",
        "127.0.0.1",
        "[::1]",
        "*",
    ):
        host = f"{name}:{port}"
        # What a browser sends after rebinding: to it the page and the gateway are of one origin.
        rebound = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        refused = Legacy(public.url, http, headers=rebound).initialize()
        assert refused.status_code == 421 and "allowed_hosts" in refused.text, name
    for name in ("mcp.example", "MCP.example", "a.pages.example", "a.b.pages.example", "[2001:db8::1]"):
        assert Legacy(public.url, http, headers={"Host": f"{name}:{port}"}).initialize().status_code == 200, name
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: 10.1.2.3:8080\r\nConnection: close\r\n\r\n")
        assert b" 200 " in raw.recv(4096), "probes ask by address"


@requirement("wall.defaults")
def test_any_name_is_served_only_where_that_is_spelled_out(http: httpx.Client) -> None:
    options = {"host": "0.0.0.0", "anonymous": True, "allowed_hosts": ["*"]}
    with in_process_gateway({"demo": server(DEMO)}, options=options) as gateway:
        assert Legacy(gateway.url, http, headers={"Host": "whatever.example"}).initialize().status_code == 200


@requirement("ops.console-host")
@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["own listener", "admin.listen"])
def test_a_page_that_has_its_name_point_here_does_not_reach_the_console(http: httpx.Client, listen: str) -> None:
    """Neither the console nor the REST interface, even with a key. Probes and scrapers may use any name."""
    admin = {"keys": {"ops": sha256("key")}, "listen": listen, "allowed_hosts": ["admin.example"]}
    options = {"admin": admin, "host": "127.0.0.1", "allowed_hosts": ["mcp.example", "127.0.0.1"]}
    with in_process_gateway({"demo": server(DEMO)}, options=options) as gateway:
        base = operators_of(gateway) if listen else gateway.base
        port = base.rpartition(":")[2]

        def answer(path: str, host: str) -> httpx.Response:
            return http.get(base + path, headers={**bearer("key"), "Host": f"{host}:{port}"})

        for path in ("/admin", "/admin/sign-in", "/admin/sessions/live", "/admin/api/replicas"):
            refused = answer(path, "evil.example")
            assert refused.status_code == 421 and "gateway.admin.allowed_hosts" in refused.text, path
            for host in ("127.0.0.1", "10.1.2.3", "localhost", "mcp.example", "admin.example"):
                with http.stream("GET", base + path, headers={**bearer("key"), "Host": f"{host}:{port}"}) as served:
                    assert served.status_code == 200, (path, host)
        assert answer("/metrics", "gateway.monitoring.svc").status_code == 200
        assert answer("/healthz", "gateway.monitoring.svc").status_code == 200
