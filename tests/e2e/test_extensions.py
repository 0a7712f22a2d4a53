"""Methods that MCP does not define, as strangers and operators meet them: policy, audit, limits, cancellation."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support import vendor_server
from tests.support.free_ports import free_port
from tests.support.gateway_process import server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, messages, modern_body, modern_headers
from tests.support.vendor_server import running_vendor_server
from tests.support.waiting import eventually

pytestmark = requirement("ext.relay")

VENDOR = (sys.executable, "-m", vendor_server.__name__)
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


class Running:
    """A gateway with servers of which some are restricted, and what its audit trail and its HTTP server have seen."""

    def __init__(self, gateway: InProcessGateway, remote: Any, audit: Path) -> None:
        self.gateway = gateway
        self.remote = remote
        self._audit = audit

    def url(self, name: str) -> str:
        return f"{self.gateway.base}/servers/{name}/mcp"

    def refused(self) -> list[tuple[str, str]]:
        """Tool and reason of the refusals in the audit trail."""
        events = [json.loads(line) for line in self._audit.read_text().splitlines()] if self._audit.exists() else []
        return [(event["tool"], event["reason"]) for event in events if event["event"] == "refused"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    audit, port = tmp_path_factory.mktemp("audit") / "events", free_port()
    hidden = {"tools": {"ask": {"direct_only": True}}}
    named = {"methods": {"com.named/orders/*": {}, "com.named/orders/burst": {"allowed": False}}}
    servers = {
        "open": server((*VENDOR, "legacy", "open")),
        "hidden": server((*VENDOR, "legacy", "hidden"), **hidden),
        "named": server((*VENDOR, "modern", "named"), **hidden, **named),
        "remote": {"url": f"http://127.0.0.1:{port}/mcp"},
    }
    options = {"session": {"trust": "sandboxed"}, "audit": {"file": str(audit)}}
    with contextlib.ExitStack() as stack:
        remote = stack.enter_context(running_vendor_server("modern", "remote", port))
        yield Running(stack.enter_context(in_process_gateway(servers, options=options)), remote, audit)


def clients(url: str, http: httpx.Client) -> tuple[Legacy, Modern]:
    return Legacy(url, http).open(), Modern(url, http)


def error_of(response: httpx.Response) -> int:
    code = messages(response)[-1]["error"]["code"]
    assert isinstance(code, int)
    return code


def test_a_restricted_server_gets_only_the_methods_that_are_named(running: Running, http: httpx.Client) -> None:
    for name, method, is_allowed in (
        ("open", "echo", True),
        ("hidden", "echo", False),
        ("named", "echo", True),
        ("named", "burst", False),
    ):
        method = f"com.{name}/orders/{method}"
        legacy, modern = clients(running.url(name), http)
        answers = legacy.call(method, {"payload": 1}), modern.send(method, {"payload": 1})
        if is_allowed:
            assert [messages(answer)[-1]["result"]["echo"] for answer in answers] == [1, 1]
        else:
            assert [error_of(answer) for answer in answers] == [-32601] * 2
            assert [answer.status_code for answer in answers] == [200, 404]
    wanted = [
        ("hidden/com.hidden/orders/echo", "no pattern in mcpServers.hidden.methods"),
        ("named/com.named/orders/burst", "mcpServers.named.methods.com.named/orders/burst.allowed"),
    ]

    def is_audited() -> bool:
        refused = running.refused()
        return all(any(tool == of and reason in why for of, why in refused) for tool, reason in wanted)

    assert eventually(is_audited), running.refused()


def test_what_nobody_has_declared_reaches_no_server(running: Running, http: httpx.Client) -> None:
    legacy, modern = clients(running.gateway.url, http)
    for method in ("org.nobody/do", "strange"):
        assert (error_of(legacy.call(method)), error_of(modern.send(method))) == (-32601, -32601)
        assert legacy.notify(f"notifications/{method}").status_code == 202, "ignored, as JSON-RPC peers do"
        body = modern_body(f"notifications/{method}")
        del body["id"]
        refused = http.post(running.gateway.url, json=body, headers=modern_headers(body))
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, -32601)
    got = messages(Legacy(running.url("open"), http).open().call("com.open/orders/got"))[-1]["result"]["got"]
    assert not any("nobody" in line or "strange" in line for line in got)


def test_progress_and_cancellation_of_a_vendors_request_have_the_ids_of_each_side(
    running: Running, http: httpx.Client
) -> None:
    client = Legacy(running.url("open"), http).open()
    params = {"_meta": {"progressToken": "p"}}
    body = {"jsonrpc": "2.0", "id": "mine", "method": "com.open/orders/slow", "params": params}
    with http.stream("POST", client.url, json=body, headers=client.request_headers()) as response:
        frames = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {"))
        progress = next(frames)
        assert json.loads(progress)["params"]["progressToken"] == "p" and '"progress":1.50' in progress
        assert client.notify("notifications/cancelled", {"requestId": "mine", "reason": "enough"}).status_code == 202
        assert "error" in json.loads([*frames][-1])
    got = messages(client.call("com.open/orders/got"))[-1]["result"]["got"]
    (slow,) = (json.loads(line) for line in got if "orders/slow" in line)
    (cancelled,) = (json.loads(line) for line in got if "notifications/cancelled" in line)
    assert cancelled["params"]["requestId"] == slow["id"] != "mine"
    assert slow["params"]["_meta"]["progressToken"] == slow["id"]


def test_headers_that_the_gateway_does_not_know_reach_servers_at_urls(running: Running, http: httpx.Client) -> None:
    modern = Modern(running.url("remote"), http)
    headers = {"Mcp-Param-Tenant": "blue", "X-Other": "red"}
    assert modern.send("com.remote/orders/echo", {"payload": 1}, headers=headers).status_code == 200
    (sent,) = (each for each in running.remote.headers if each.get("mcp-method") == "com.remote/orders/echo")
    assert sent["mcp-param-tenant"] == "blue" and "x-other" not in sent
    many = {f"Mcp-Param-{number}": "x" for number in range(40)}
    refused = modern.send("com.remote/orders/echo", {"payload": 1}, headers=many)
    assert (refused.status_code, error_of(refused)) == (400, -32020)


def test_one_server_gets_what_its_client_has_declared(running: Running, http: httpx.Client) -> None:
    meta: Any = {CAPABILITIES: {"extensions": {"org.mine/x": {}}}}
    answer = Modern(running.url("open"), http).send("org.mine/x/do", meta=meta)
    assert error_of(answer) == -32601, "the server's own answer"
    modern = Modern(running.gateway.url, http)
    assert error_of(modern.send("org.mine/x/do", meta=meta)) == -32601
