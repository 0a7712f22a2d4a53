"""What a client names is of a bounded size, or refused before anything of it is kept."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, RunningGateway, running_gateway, server
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, error_of, modern_body, modern_headers

pytestmark = requirement("wall.memory")

LONG = "n" * 257
URI = "file:///" + "u" * 8_192
SPEC = "io.modelcontextprotocol/"


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    """One process of each server for the many sessions."""
    servers = {"one": server(DEMO, shared=True), "two": server(DEMO, shared=True)}
    with running_gateway(servers) as running:
        yield running


def refused(response: httpx.Response, code: int, word: str) -> None:
    error = response.json()["error"]
    assert error["code"] == code and word in error["message"] and len(response.content) < 1_000, response.text[:500]


@pytest.mark.parametrize("path", ["/mcp", "/servers/one/mcp"])
@pytest.mark.parametrize(
    ("method", "params", "word"),
    [
        ("tools/call", {"name": LONG}, "params.name"),
        ("tools/call", {"name": ["a" * 300]}, "params.name"),
        ("prompts/get", {"name": "\U0001f600" * 257}, "params.name"),
        ("resources/read", {"uri": URI}, "params.uri"),
        ("resources/subscribe", {"uri": URI}, "params.uri"),
        ("tools/list", {"cursor": "c" * 8_200}, "params.cursor"),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "u" * 9_000}}, "params.ref"),
        ("logging/setLevel", {"level": LONG}, "params.level"),
        ("logging/setLevel", {"level": "loud"}, "params.level must be one of debug, info"),
        ("tools/call", {"name": "count", "_meta": {"progressToken": LONG}}, "progressToken"),
    ],
)
def test_a_name_beyond_its_length_is_refused(
    gateway: RunningGateway, http: httpx.Client, path: str, method: str, params: Any, word: str
) -> None:
    client = Legacy(gateway.base + path, http).open()
    refused(client.call(method, params), -32602, word)
    # A batch is read in the same way.
    client.version = "2025-03-26"
    client.open()
    body = [{"jsonrpc": "2.0", "id": 1, "method": method, "params": params}]
    answer = client.post(body).json()
    assert (answer[0] if isinstance(answer, list) else answer)["error"]["code"] == -32602


@pytest.mark.parametrize("name", ["n" * 256, "\U0001f600" * 256, '"' * 256])
def test_a_name_of_the_greatest_length_is_let_in(gateway: RunningGateway, http: httpx.Client, name: str) -> None:
    answer = Legacy(gateway.base + "/servers/one/mcp", http).open().tool(name)
    assert "longer" not in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("method", "request_id", "word"),
    [("ping", "i" * 257, "id"), ("ping", 10**300, "id"), ("m" * 257, 1, "method")],
)
def test_an_id_or_a_method_beyond_its_length_is_not_repeated(
    gateway: RunningGateway, http: httpx.Client, method: str, request_id: Any, word: str
) -> None:
    body = {"jsonrpc": "2.0", "id": request_id, "method": method}
    response = Legacy(gateway.url, http).open().post(body)
    assert response.status_code == 400 and response.json()["id"] is None
    refused(response, -32600, word)
    body = modern_body(method, request_id=request_id)
    response = http.post(gateway.url, json=body, headers=modern_headers(body))
    assert response.status_code == 400 and len(response.content) < 1_000


def test_a_record_keeps_so_much_and_no_more(gateway: RunningGateway, http: httpx.Client) -> None:
    url = gateway.base + "/servers/one/mcp"
    refused(Legacy(url, http).initialize(capabilities={"experimental": {"x": "x" * 65_536}}), -32602, "initialize")
    client = Legacy(url, http).open()
    answers = [client.call("resources/subscribe", {"uri": f"memo://{n}/" + "u" * 8_000}) for n in range(12)]
    kept = [n for n, answer in enumerate(answers) if "client data" not in answer.text]
    assert kept == list(range(8)), [answer.text[:100] for answer in answers]
    refused(answers[-1], -32602, "65536 bytes")
    assert "client data" not in client.call("resources/unsubscribe", {"uri": "memo://0/" + "u" * 8_000}).text
    assert "client data" not in client.call("resources/subscribe", {"uri": "memo://new/" + "u" * 8_000}).text


def test_an_open_subscription_names_so_much_and_no_more(gateway: RunningGateway, http: httpx.Client) -> None:
    uris = [f"memo://{n}/" + "u" * 8_000 for n in range(9)]
    refused(
        Modern(gateway.url, http).send("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}}),
        -32602,
        "params.notifications",
    )


def test_headers_that_are_looked_up_are_of_a_bounded_length(gateway: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(gateway.url, http).open()
    assert client.post({}, headers={"Host": "h" * 513}).status_code == 400, "before anybody looks who is asked"
    assert client.post({}, headers={"Origin": "http://" + "o" * 513}).status_code == 403
    with client.get("0-" + "9" * 600) as stream:
        stream.read()
        refused(stream, -32602, "Last-Event-ID")
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = ACCEPT["Accept"] + ", x/" + "a" * 600
    assert client.post(ping, headers={"Accept": accept}).status_code == 200
