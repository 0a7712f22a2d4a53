"""MCP clients of both eras that write their messages themselves, for what SDKs hide: status, headers, event streams.

They use httpx, which the gateway does not, so that both ends do not share a bug.
"""

import itertools
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import httpx

ACCEPT = {"Accept": "application/json, text/event-stream"}
VERSION = "2026-07-28"
SESSION_KEY = "io.github.mcp-session-gateway/session"
RESTARTED = "io.github.mcp-session-gateway/restarted"
client_name = "raw"
"""What clients call themselves. Each test has another one (`tests/conftest.py`)."""
CURL = {"User-Agent": "curl/8.5.0"}
"""As a client that is known to bring no session back, which gets the default session of its principal."""
DECLARES_TASKS: Any = {
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {"form": {}},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    }
}
"""For the `_meta` of a request: the client takes a task in place of a result."""
_NAMES = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


def modern_body(method: str, params: Mapping[str, Any] | None = None, *, meta: Any = None, request_id: Any = 1) -> Any:
    """A modern (2026-07-28) request with the `_meta` fields that the revision requires."""
    full_meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": client_name, "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        **(meta or {}),
    }
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**(params or {}), "_meta": full_meta}}


def modern_headers(body: Any) -> dict[str, str]:
    """The request headers that a modern message requires."""
    headers = {**ACCEPT, "MCP-Protocol-Version": VERSION, "Mcp-Method": body["method"]}
    if body["method"] in _NAMES and _NAMES[body["method"]] in body["params"]:
        headers["Mcp-Name"] = body["params"][_NAMES[body["method"]]]
    return headers


def messages(response: httpx.Response) -> list[Any]:
    """The JSON-RPC messages of a response, which is JSON or an event stream."""
    if response.headers["content-type"].startswith("application/json"):
        return [response.json()]
    return [json.loads(data) for _, data in events(response.text) if data]


def result_of(response: httpx.Response) -> Any:
    """The result that a response ends with."""
    answer = messages(response)[-1]
    assert "result" in answer, answer
    return answer["result"]


def error_of(response: httpx.Response) -> Any:
    """The error that a response ends with."""
    return messages(response)[-1]["error"]


def restarted(response: httpx.Response) -> Any:
    """What the result of a call says of the loss of the server's process before it; None if nothing was lost."""
    return result_of(response).get("_meta", {}).get(RESTARTED)


def streamed(response: httpx.Response) -> Iterator[Any]:
    """The JSON-RPC messages of an event stream, as they come."""
    return (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: {"))


def events(text: str) -> Iterator[tuple[str, str]]:
    """(id, data) of each event of a stream. Comments are skipped."""
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if fields or "data: " in block:
            yield fields.get("id", ""), fields.get("data", "")


def without_id(error: Any) -> Any:
    """An error without the correlation id, which it must have: what is left is the same for all requests of a kind."""
    data = dict(error["data"])
    assert len(data.pop("correlation_id")) == 32, error
    rest = {key: value for key, value in error.items() if key != "data"}
    return rest | {"data": data} if data else rest


def failed_text(response: httpx.Response) -> str:
    """The text of a failed tool's result. Fails if the tool did not fail, or if the answer is an error."""
    text = tool_text(response)
    assert messages(response)[-1]["result"]["isError"] is True, text
    return text


def tool_text(response: httpx.Response) -> str:
    """The text of a tool's result. Fails if the answer is an error."""
    answer = messages(response)[-1]
    assert "result" in answer, answer
    text = answer["result"]["content"][0]["text"]
    assert isinstance(text, str)
    return text


@contextmanager
def posted(url: str, body: Any, headers: Mapping[str, str]) -> Iterator[socket.socket]:
    """Send a request on a connection of its own and give the connection. The client leaves when the block ends."""
    request = httpx.Request("POST", url, json=body, headers=headers)
    head = [f"{name}: {value}" for name, value in request.headers.items()]
    with socket.create_connection((request.url.host, request.url.port or 80)) as connection:
        start = "\r\n".join([f"POST {request.url.path} HTTP/1.1", *head, "", ""])
        connection.sendall(start.encode("latin-1") + request.content)
        yield connection


class Modern:
    """A modern client. It returns no session token and no cookie, unless `headers` hold one."""

    def __init__(self, url: str, http: httpx.Client, *, headers: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.http = http
        self.headers = {**CURL, **(headers or {})}

    def send(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        request_id: Any = 1,
    ) -> httpx.Response:
        body = modern_body(method, params, meta=meta, request_id=request_id)
        return self.http.post(self.url, json=body, headers={**modern_headers(body), **self.headers, **(headers or {})})

    def tool(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> httpx.Response:
        return self.send("tools/call", {"name": tool, "arguments": dict(arguments or {})}, **more)

    @contextmanager
    def leaving(self, tool: str, arguments: Mapping[str, Any], *, meta: Any = None) -> Iterator[socket.socket]:
        """Send a call as `posted`."""
        body = modern_body("tools/call", {"name": tool, "arguments": dict(arguments)}, meta=meta)
        with posted(self.url, body, {**modern_headers(body), **self.headers}) as connection:
            yield connection

    def leave_while_it_hangs(self) -> None:
        """Leave as soon as the probe's tool `hang` has said that it hangs."""
        with self.leaving("hang", {"say": True}, meta={"io.modelcontextprotocol/logLevel": "info"}) as connection:
            said = b""
            while b"hanging" not in said:
                more = connection.recv(4096)
                assert more, said
                said += more


class Legacy:
    """A legacy client: opens a session with `initialize` and sends `Mcp-Session-Id` with every later request."""

    def __init__(self, url: str, http: httpx.Client, *, version: str = "2025-11-25", headers: Any = None) -> None:
        self.url = url
        self.http = http
        self.version = version
        self.headers: dict[str, str] = dict(headers or {})
        self.session = ""
        self._ids = itertools.count(1)

    def initialize(self, *, meta: Any = None, capabilities: Any = None, name: str = "", **more: Any) -> httpx.Response:
        params: dict[str, Any] = {
            "protocolVersion": self.version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": name or client_name, "version": "1"},
        }
        if meta is not None:
            params["_meta"] = meta
        response = self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}, **more)
        self.session = response.headers.get("mcp-session-id", "")
        return response

    def open(self, **more: Any) -> Self:
        """Complete the handshake: `initialize`, then `notifications/initialized`."""
        response = self.initialize(**more)
        assert response.status_code == 200 and self.session, response.text
        assert self.notify("notifications/initialized").status_code == 202
        return self

    def request_headers(self) -> dict[str, str]:
        headers = {**ACCEPT, **self.headers}
        if self.session:
            headers |= {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": self.version}
        return headers

    def post(self, body: Any, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return self.http.post(self.url, json=body, headers={**self.request_headers(), **(headers or {})})

    def notify(self, method: str, params: Any = None) -> httpx.Response:
        body = {"jsonrpc": "2.0", "method": method}
        return self.post(body if params is None else {**body, "params": params})

    def call(self, method: str, params: Any = None, **more: Any) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method}
        return self.post(body if params is None else {**body, "params": params}, **more)

    @contextmanager
    def streaming(self, method: str, params: Any, request_id: Any = 7) -> Iterator[Iterator[Any]]:
        """Send a request whose answer is an event stream. Gives its messages, as they come."""
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        with self.http.stream("POST", self.url, json=body, headers=self.request_headers()) as response:
            yield streamed(response)

    def reply(self, question: Any, **outcome: Any) -> None:
        """Answer a question of a server with a `result` or an `error`."""
        assert self.post({"jsonrpc": "2.0", "id": question["id"], **outcome}).status_code == 202

    def tool(self, name: str, arguments: Any = None, meta: Any = None) -> httpx.Response:
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        return self.call("tools/call", params if meta is None else {**params, "_meta": meta})

    def delete(self) -> httpx.Response:
        return self.http.delete(self.url, headers=self.request_headers())

    @contextmanager
    def get(self, last_event_id: str | None = None) -> Iterator[httpx.Response]:
        headers = {**self.request_headers(), "Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        with self.http.stream("GET", self.url, headers=headers) as response:
            yield response
