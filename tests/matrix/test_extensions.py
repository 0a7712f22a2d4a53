"""A vendor's extension in every cell of the era matrix: servers on stdio, on HTTP and in process, alone and together.

Clients and servers read and write bytes: what is compared is what is on the wire.
"""

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.requirements import requirement
from tests.support import vendor_server
from tests.support.free_ports import free_port
from tests.support.gateway_process import RunningGateway, running_gateway, server
from tests.support.mcp_clients import ACCEPT, modern_headers
from tests.support.vendor_server import BURST, PAYLOAD, RESOURCE, SETTINGS, TOOL, running_vendor_server

VENDOR = (sys.executable, "-m", vendor_server.__name__)
SERVERS = {
    "ls": ("legacy", "stdio"),
    "lh": ("legacy", "http"),
    "li": ("legacy", "in process"),
    "ms": ("modern", "stdio"),
    "mh": ("modern", "http"),
    "mi": ("modern", "in process"),
}
CELLS = [(ours, name, several) for ours in ("legacy", "modern") for name in SERVERS for several in ("one", "several")]
INFO = rb'{"name":"raw","title":"R\u00e9","version":"1","icons":[{"src":"x:3","y":1.0}],"websiteUrl":"https:\/\/c"}'
ANSWER = rb'{"yes":1.0,"n":1e2,"t":"\u00fc"}'
SPEC = "io.modelcontextprotocol/"
WITHIN_S = 20.0

Frames = list[bytes]


class Client:
    """A client of one era that declares the extension of one server."""

    def __init__(self, url: str, era: str, extension: bytes) -> None:
        self._url = url
        self.is_modern = era == "modern"
        self._http = httpx.Client(timeout=WITHIN_S)
        self._session = ""
        self._last_id = 0
        self._extension = extension
        self.capabilities = b'{"extensions":{"%b":%b},"experimental":{"lab":{"x":1e2}}}' % (extension, SETTINGS)
        self.acknowledged = b""
        self.alone: queue.Queue[bytes] = queue.Queue()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._http.close()

    def open(self) -> bytes:
        """The handshake or the discovery, and a stream for what belongs to no call. Returns the server's answer."""
        if self.is_modern:
            answer = self.request("server/discover", b"")[-1]
            listened = b'"notifications":{"toolsListChanged":true,"%b":%b}' % (self._extension, SETTINGS)
            self._follow("POST", self._body("subscriptions/listen", listened, 99))
            self.acknowledged = self.alone.get(timeout=WITHIN_S)
            return answer
        params = b'"protocolVersion":"2025-11-25","capabilities":%b,"clientInfo":%b' % (self.capabilities, INFO)
        answer = self.request("initialize", params)[-1]
        assert self.notify("notifications/initialized", b"") == 202
        self._follow("GET", b"")
        return answer

    def request(self, method: str, members: bytes, asked: Callable[[bytes], None] | None = None) -> Frames:
        """The frames of the answer to a request with these params. `asked` gets each request of a server."""
        self._last_id += 1
        body = self._body(method, members, self._last_id)
        frames: Frames = []
        with self._http.stream("POST", self._url, content=body, headers=self._headers(body)) as response:
            assert response.status_code == 200, response.read()
            self._session = response.headers.get("mcp-session-id", self._session)
            self._session = response.headers.get("mcp-gateway-session", self._session)
            for frame in _frames(response):
                frames.append(frame)
                if asked is not None and b'"method"' in frame and b'"id"' in frame:
                    asked(frame)
        return frames

    def notify(self, method: str, members: bytes) -> int:
        body = self._body(method, members, None)
        return self._http.post(self._url, content=body, headers=self._headers(body)).status_code

    def respond(self, request: bytes, result: bytes) -> None:
        request_id = json.dumps(json.loads(request)["id"]).encode()
        body = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, result)
        assert self._http.post(self._url, content=body, headers=self._headers(body)).status_code == 202

    def _body(self, method: str, members: bytes, request_id: int | None) -> bytes:
        own = b'"com.acme/trace":1e2,"io.github.mcp-session-gateway/context":{"forged":1}'
        if self.is_modern:
            own += b',"%bprotocolVersion":"2026-07-28","%bclientInfo":%b,"%bclientCapabilities":%b' % (
                *(SPEC.encode(), SPEC.encode(), INFO, SPEC.encode(), self.capabilities),
            )
        params = members + (b"," if members else b"") + b'"_meta":{%b}' % own
        head = b'"jsonrpc":"2.0"' + (b"" if request_id is None else b',"id":%d' % request_id)
        return b'{%b,"method":"%b","params":{%b}}' % (head, method.encode(), params)

    def _headers(self, body: bytes) -> dict[str, str]:
        headers = {**ACCEPT, "Content-Type": "application/json"}
        if self.is_modern:
            headers |= modern_headers(json.loads(body))
            headers |= {"MCP-Gateway-Session": self._session} if self._session else {}
        elif self._session:
            headers |= {"Mcp-Session-Id": self._session, "MCP-Protocol-Version": "2025-11-25"}
        return headers

    def _follow(self, verb: str, body: bytes) -> None:
        headers = self._headers(body) | ({"Accept": "text/event-stream"} if verb == "GET" else {})
        response = self._stack.enter_context(
            self._http.stream(verb, self._url, content=body, headers=headers, timeout=None)
        )
        assert response.status_code == 200, response.read()
        self._session = response.headers.get("mcp-gateway-session", self._session)
        threading.Thread(target=self._read, args=(response,), daemon=True).start()

    def _read(self, response: httpx.Response) -> None:
        with contextlib.suppress(httpx.HTTPError):
            for frame in _frames(response):
                self.alone.put(frame)


def _frames(response: httpx.Response) -> Iterator[bytes]:
    """The messages of a response, as bytes."""
    if response.headers["content-type"].startswith("application/json"):
        yield response.read()
        return
    pending = b""
    for chunk in response.iter_raw():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and len(line) > len(b"data: "):
                yield line.removeprefix(b"data: ")


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with contextlib.ExitStack() as stack:
        entries = {}
        for name, (era, wire) in SERVERS.items():
            if wire == "stdio":
                entries[name] = server((*VENDOR, era, name))
            elif wire == "in process":
                entries[name] = {"in_process": f"tests.support.vendor_server:{name}"}
            else:
                port = free_port()
                stack.enter_context(running_vendor_server(era, name, port))
                entries[name] = {"url": f"http://127.0.0.1:{port}/mcp"}
        yield stack.enter_context(running_gateway(entries))


@pytest.mark.parametrize(("ours", "name", "several"), CELLS, ids=lambda each: each)
@requirement("ext.relay", "spec.complete")
def test_nothing_of_a_vendors_extension_is_changed_or_lost(
    gateway: RunningGateway, ours: str, name: str, several: str
) -> None:
    extension = f"com.{name}/orders".encode()
    url = gateway.url if several == "several" else f"{gateway.base}/servers/{name}/mcp"
    with Client(url, ours, extension) as client:
        declared = client.open()
        for part in (
            b'"%b":%b' % (extension, SETTINGS),
            b'"%b-lab":{"x":1e2}' % name.encode(),
            b'"%b-widgets":{"w":1.0}' % name.encode(),
        ):
            assert part in declared
        if client.is_modern and SERVERS[name][0] == "modern":
            assert b'"%b":%b' % (extension, SETTINGS) in client.acknowledged, "the server has got the whole filter"
        method = f"com.{name}/orders/"
        sent = b'"b":1.0,"payload":%b,"a":1e2,"cell":"%b"' % (PAYLOAD, f"{ours} {name} {several}".encode())

        (answer,) = client.request(method + "echo", sent)
        assert b'"own":%b,"echo":%b' % (PAYLOAD, PAYLOAD) in answer
        assert client.notify(f"notifications/{method}sent", sent) == 202

        *ticks, last = client.request(method + "burst", b"")
        wanted = [b'"params":{"i":%d,"payload":%b}' % (number, PAYLOAD) for number in range(BURST)]
        assert len(ticks) == BURST and b'"burst":true' in last
        assert all(part in tick for part, tick in zip(wanted, ticks, strict=True))

        client.request(method + "later", b"")
        while b"notifications/" + method.encode() + b"changed" not in (alone := client.alone.get(timeout=WITHIN_S)):
            pass
        assert b'"payload":' + PAYLOAD in alone
        if client.is_modern:
            assert json.loads(alone)["params"]["_meta"] == {SPEC + "subscriptionId": 99}

        uri = RESOURCE.replace(b"NAME", name.encode())
        assert uri in client.request("resources/list", b"")[-1] or several == "several"
        read = client.request("resources/read", b'"uri":"%b-orders://one"' % name.encode())[-1]
        assert b'"x-own":%b}],"x-own":%b' % (PAYLOAD, PAYLOAD) in read

        listed = client.request("tools/list", b"")[-1]
        assert TOOL in listed or several == "several"
        tools = {tool["name"]: tool for tool in json.loads(listed)["result"]["tools"]}
        prefix = f"{name}__" if several == "several" else ""
        assert tools[f"{prefix}ask"] == json.loads(TOOL) | {"name": f"{prefix}ask"}
        assert b'"answered":' + ANSWER in ask(client, f"{prefix}ask", extension)

        received = json.loads(client.request(method + "got", b"")[-1])["result"]["got"]
        check_received(received, client, extension, sent)


def ask(client: Client, tool: str, extension: bytes) -> bytes:
    """Call the tool that asks the client something, and answer. Returns the last frame."""
    question = b'"method":"%b/question","params":{"payload":%b}' % (extension, PAYLOAD)
    called = b'"name":"%b","arguments":{}' % tool.encode()
    if not client.is_modern:
        asked: Frames = []

        def answer(request: bytes) -> None:
            asked.append(request)
            client.respond(request, ANSWER)

        last = client.request("tools/call", called, answer)[-1]
        assert len(asked) == 1 and question in asked[0]
        return last
    (first,) = client.request("tools/call", called)
    assert question in first
    result = json.loads(first)["result"]
    (key,), state = result["inputRequests"], json.dumps(result["requestState"]).encode()
    answers = b'"inputResponses":{"%b":%b},"requestState":%b' % (key.encode(), ANSWER, state)
    return client.request("tools/call", called + b"," + answers)[-1]


def check_received(received: list[str], client: Client, extension: bytes, sent: bytes) -> None:
    """What the server has got is what the client has sent."""
    lines = [line.encode() for line in received]
    for method in (b'"%b/echo"' % extension, b'"notifications/%b/sent"' % extension):
        (line,) = (line for line in lines if b'"method":%b' % method in line and sent in line)
        assert b'"com.acme/trace":1e2' in line
        assert b"forged" not in line and b'"io.github.mcp-session-gateway/context":{' in line
    assert any(ANSWER in line for line in lines)
    said = [line for line in lines if INFO in line and client.capabilities in line]
    assert said, "the client is known as it has introduced itself"
