"""Whatever a client sends, it gets a documented answer and no other session is harmed."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import ERRORS
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import ACCEPT, Legacy, modern_body, modern_headers, tool_text
from tests.support.too_deep import TOO_DEEP, TOO_DEEP_LEVELS
from tests.support.waiting import eventually

DOCUMENTED = {200, 202, 400, 401, 403, 404, 405, 406, 409, 413, 415, 421, 429, 431}
JSON_HEADERS = {**ACCEPT, "Content-Type": "application/json"}


@pytest.fixture
def bystander(demo: RunningGateway, http: httpx.Client) -> Legacy:
    """A session that minds its own business."""
    client = Legacy(demo.url, http).open()
    assert tool_text(client.tool("count")) == "1"
    return client


def unharmed(bystander: Legacy) -> bool:
    return int(tool_text(bystander.tool("count"))) >= 2


def documented(answer: httpx.Response) -> None:
    """A status of the tables, and a JSON-RPC body wherever there is one."""
    assert answer.status_code in DOCUMENTED, answer.text
    assert "Traceback" not in answer.text and "msgspec" not in answer.text
    if answer.headers.get("content-type") == "application/json":
        body = answer.json()
        for part in body if isinstance(body, list) else [body]:
            assert part["jsonrpc"] == "2.0" and ("result" in part or part["error"]["message"])
            code = part.get("error", {}).get("code")
            assert code not in ERRORS or answer.status_code in ERRORS[code].statuses, answer.text


@requirement("spec.legacy")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":', 400),
        (b"\xff\xfe\x00", 400),
        pytest.param(TOO_DEEP, 400, id="too deep arrays"),
        pytest.param(
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":'
            + (b'{"a":' * TOO_DEEP_LEVELS + b"1" + b"}" * TOO_DEEP_LEVELS)
            + b"}",
            400,
            id="too deep objects",
        ),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}', 400),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":7}}', 400),
        (b'"' + b"x" * (5 << 20) + b'"', 413),
    ],
)
def test_bodies_that_are_no_message(demo: RunningGateway, bystander: Legacy, body: bytes, status: int) -> None:
    for headers in (JSON_HEADERS, {**JSON_HEADERS, "Mcp-Session-Id": bystander.session}):
        with httpx.Client(timeout=20) as http:
            answer = http.post(demo.url, content=body, headers=headers)
        documented(answer)
        assert answer.status_code == status, answer.text
    assert unharmed(bystander)


@requirement("spec.legacy")
def test_a_body_that_lies_about_its_length_costs_nothing(demo: RunningGateway, bystander: Legacy) -> None:
    head = f"POST /mcp HTTP/1.1\r\nHost: {demo.base.removeprefix('http://')}\r\nContent-Type: application/json\r\n"
    head += "Accept: application/json, text/event-stream\r\n"
    address = ("127.0.0.1", int(demo.base.rpartition(":")[2]))
    with socket.create_connection(address, timeout=10) as truncated:
        truncated.sendall(f'{head}Content-Length: 500\r\n\r\n{{"jsonrpc"'.encode())
    with socket.create_connection(address, timeout=10) as huge:
        huge.sendall(f"{head}Content-Length: 99999999999\r\n\r\n".encode())
        assert b" 413 " in huge.recv(4096).partition(b"\r\n")[0]
    with socket.create_connection(address, timeout=10) as endless:
        endless.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        try:
            for _ in range(100):
                endless.sendall(chunk)
            answer = endless.recv(4096)
        except OSError:
            answer = b"HTTP/1.1 413 "  # it hung up on us, which is as good
        assert b" 413 " in answer.partition(b"\r\n")[0] + b" "
    assert unharmed(bystander)


@requirement("spec.legacy", "spec.modern")
def test_header_injection_and_doubled_headers(demo: RunningGateway, http: httpx.Client, bystander: Legacy) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for name in ("Mcp-Session-Id", "MCP-Gateway-Session", "Authorization", "Origin"):
        doubled = [*JSON_HEADERS.items(), (name, "one"), (name, bystander.session)]
        assert http.post(demo.url, json=body, headers=doubled).status_code == 400
    address = ("127.0.0.1", int(demo.base.rpartition(":")[2]))
    for value in ("x\rSet-Cookie: a=b", "x\nSet-Cookie: a=b", "x\0y"):
        with socket.create_connection(address, timeout=10) as raw:
            raw.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {value}\r\n\r\n".encode())
            assert b"a=b" not in raw.recv(4096)
    for value in ("x" * 8_000, "caf\u00e9", "a=b; mcp_session_id=x; mcp_session_id=y"):
        cookie = [(b"Cookie", value.encode("latin-1"))]
        call = modern_body("tools/call", {"name": "whoami"})
        sent = [(name.encode(), text.encode()) for name, text in modern_headers(call).items()]
        answer = http.post(demo.url, json=call, headers=[*sent, *cookie])
        documented(answer)
        assert answer.status_code == 200 and "a=b" not in str(answer.headers)
    many = {**JSON_HEADERS, **{f"X-{n}": "y" * 1_000 for n in range(80)}}
    assert http.post(demo.url, json=body, headers=many).status_code == 431
    assert unharmed(bystander)


VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50) | st.just([]) | st.just({})
)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Any, dict[str, str], bool]:
    """A valid request of either era, with a few things about it changed."""
    legacy = draw(st.booleans())
    method = draw(st.sampled_from(["tools/call", "tools/list", "resources/read", "ping", "server/discover"]))
    params = {"name": draw(st.sampled_from(["whoami", "count", "ask"])), "arguments": {}, "uri": "demo://session"}
    body = modern_body(method, params)
    headers = modern_headers(body)
    if legacy:
        body["params"].pop("_meta")
        headers = {**ACCEPT, "MCP-Protocol-Version": "2025-11-25"}
    for _ in range(draw(st.integers(1, 4))):
        target = draw(st.sampled_from([body, body.get("params"), (body.get("params") or {}).get("_meta")]))
        if isinstance(target, dict) and target:
            key = draw(st.sampled_from(sorted(target)))
            if draw(st.booleans()):
                target[key] = draw(VALUES)
            else:
                del target[key]
        if not isinstance(body.get("params"), dict):
            break
    names = draw(st.lists(st.sampled_from(sorted(headers)), max_size=2))
    for name in names:
        headers[name] = draw(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)).strip()
    return body, headers, legacy


@requirement("spec.legacy", "spec.modern")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=mutated(), cut=st.integers(0, 400) | st.none())
def test_mutations_of_valid_requests(
    tormented: "Tormented", case: tuple[Any, dict[str, str], bool], cut: int | None
) -> None:
    body, headers, legacy = case
    content = json.dumps(body).encode()
    client = tormented
    if legacy:
        headers["Mcp-Session-Id"] = client.session.session
    sent = {**headers, "Content-Type": "application/json"}
    answer = client.http.post(client.url, content=content if cut is None else content[:cut], headers=sent)
    documented(answer)
    assert tool_text(client.bystander.tool("whoami")) == client.facts


class Tormented:
    """A connection, a session to torment and one that must not notice."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url = url
        self.http = http
        self.session = Legacy(url, http).open()
        self.bystander = Legacy(url, http).open()
        self.facts = tool_text(self.bystander.tool("whoami"))


@pytest.fixture(scope="module")
def tormented() -> Iterator[Tormented]:
    """At a gateway that serves nobody else: all that it logs is looked at."""
    with in_process_gateway() as gateway, httpx.Client(timeout=20) as http:
        yield Tormented(gateway.url, http)
        assert "Traceback" not in gateway.stderr(), gateway.stderr()


@requirement("spec.legacy", "proc.noise")
def test_a_client_that_never_reads_costs_a_bounded_amount_and_harms_nobody(http: httpx.Client) -> None:
    with running_gateway({"p": server(PROBE)}) as gateway:
        greedy, other = Legacy(gateway.url, http).open(), Legacy(gateway.url, http).open()
        other.tool("pid")
        memory = psutil.Process(gateway.pid).memory_info().rss
        flood = {"name": "flood", "arguments": {"megabytes": 120}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": flood})
        head = "".join(f"{name}: {value}\r\n" for name, value in greedy.request_headers().items())
        address = ("127.0.0.1", int(gateway.base.rpartition(":")[2]))
        with socket.create_connection(address, timeout=10) as deaf:
            deaf.sendall(
                f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{head}"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            # Its server gets rid of everything it wants to say, read or not.
            assert eventually(lambda: "flooded" in tool_text(greedy.tool("set")), 30)
            assert tool_text(other.tool("echo", {"a": 1})) == '{"a": 1}'
            assert psutil.Process(gateway.pid).memory_info().rss - memory < 60 << 20
