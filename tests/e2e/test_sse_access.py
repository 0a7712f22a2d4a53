"""HTTP+SSE, as strangers use it: who asks is found out first, and a message URL is of the principal of its stream."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, RunningGateway, running_gateway, server

HOSTS = {"allowed_hosts": ["gateway.example", "127.0.0.1"]}


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    keys = {name: sha256(KEYS[name]) for name in ("alice", "bob")}
    proxies = {"networks": ["127.0.0.0/8"], "subject_header": "X-User", "issuer": "proxy"}
    options = {"sse": True, "api_keys": keys, "auth": {"proxies": proxies}, **HOSTS}
    with running_gateway({"demo": server(DEMO)}, options=options) as running:
        yield running


class Stream:
    """An open event stream: its address, and what comes on it."""

    def __init__(self, response: httpx.Response, base: str) -> None:
        self._lines = response.iter_lines()
        self.address = base + self.data()

    def data(self) -> str:
        while not (line := next(self._lines)).startswith("data: "):
            pass
        return line.removeprefix("data: ")

    def answer(self) -> Any:
        return json.loads(self.data())


@contextmanager
def opened(gateway: RunningGateway, headers: dict[str, str]) -> Iterator[Stream]:
    with httpx.Client(timeout=20) as http, http.stream("GET", f"{gateway.base}/sse", headers=headers) as response:
        assert response.status_code == 200
        yield Stream(response, gateway.base)


def message(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


INFO = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


@requirement("wall.before-auth", "spec.sse")
def test_nothing_is_opened_or_told_without_a_credential(gateway: RunningGateway, http: httpx.Client) -> None:
    for path in ("/sse", "/servers/demo/sse"):
        for headers in ({}, bearer("nobody"), {"Authorization": "Basic eA=="}):
            answer = http.get(gateway.base + path, headers=headers)
            assert answer.status_code == 401 and "www-authenticate" in answer.headers
            assert "connection=" not in answer.text
            posted = http.post(f"{gateway.base}{path}/messages?connection={'x' * 24}", json={}, headers=headers)
            assert posted.status_code == 401


@requirement("wall.before-auth", "spec.sse")
def test_doubled_headers_are_answered_and_nothing_is_logged_as_a_fault(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    for name in ("Authorization", "Origin", "Content-Type"):
        doubled = [(name, "one"), (name, "two")]
        assert http.get(f"{gateway.base}/sse", headers=doubled).status_code == 400
        assert http.post(f"{gateway.base}/sse/messages", content=b"{}", headers=doubled).status_code == 400
    many = {f"X-{n}": "y" * 1_000 for n in range(80)}
    assert http.get(f"{gateway.base}/sse", headers=many).status_code == 431
    assert "Traceback" not in gateway.stderr()


@requirement("wall.authority", "spec.sse")
def test_a_message_url_is_of_the_principal_of_its_stream(gateway: RunningGateway, http: httpx.Client) -> None:
    alice, bob = bearer(KEYS["alice"]), bearer(KEYS["bob"])
    with opened(gateway, alice) as stream:
        call = message(2, "tools/call", name="whoami")
        for headers, status in (({}, 401), (bob, 404), ({"X-User": "alice"}, 404)):
            assert http.post(stream.address, json=call, headers=headers).status_code == status
        forged = stream.address[:-2] + ("aa" if stream.address[-2:] != "aa" else "bb")
        assert http.post(forged, json=call, headers=alice).status_code == 404
        assert (
            http.post(stream.address, content=b"{}", headers={**alice, "Content-Type": "text/plain"}).status_code == 415
        )
        assert http.post(stream.address, json=message(1, "initialize", **INFO), headers=alice).status_code == 202
        assert stream.answer()["id"] == 1, "and nothing before it"
        assert http.post(stream.address, json=call, headers=alice).status_code == 202
        assert "alice" in stream.answer()["result"]["content"][0]["text"]


@requirement("wall.authority", "spec.sse", "spec.origin")
@pytest.mark.parametrize("headers", [{"Authorization": "Bearer " + KEYS["bob"]}, {"X-User": "ada"}])
def test_it_serves_under_a_name_of_its_own_whoever_says_who_asks(
    gateway: RunningGateway, http: httpx.Client, headers: dict[str, str]
) -> None:
    named = {**headers, "Host": "gateway.example"}
    assert http.get(f"{gateway.base}/sse", headers={**headers, "Host": "evil.example"}).status_code == 421
    with opened(gateway, named) as stream:
        assert http.post(stream.address, json={}, headers={**headers, "Host": "evil.example"}).status_code == 421
        assert http.post(stream.address, json=message(1, "initialize", **INFO), headers=named).status_code == 202
        assert stream.answer()["result"]["serverInfo"]
        call = message(2, "tools/call", name="whoami")
        assert http.post(stream.address, json=call, headers=named).status_code == 202
        assert ("ada" if "X-User" in headers else "bob") in stream.answer()["result"]["content"][0]["text"]


@requirement("wall.before-auth", "spec.sse")
def test_messages_that_make_no_sense_harm_no_stream(gateway: RunningGateway, http: httpx.Client) -> None:
    alice = bearer(KEYS["alice"])
    modern = {"_meta": {"io.modelcontextprotocol/protocolVersion": "\u2603\r\nX: y"}, "uri": "\u2603\r\nX: y"}
    with opened(gateway, alice) as stream:
        odd: list[Any] = [
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {"a": 1}}},
            message(7, "resources/read", **modern),
            [message(8, "ping")],
        ]
        for one in odd:
            assert http.post(stream.address, json=one, headers=alice).status_code == 202
        assert http.post(stream.address, json=message(1, "initialize", **INFO), headers=alice).status_code == 202
        for _ in range(4):
            if stream.answer().get("id") == 1:
                return
        raise AssertionError("initialize was not answered")
