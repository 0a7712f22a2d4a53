"""A server with a vendor's extension, which reads and writes JSON as bytes: `vendor_server.py legacy|modern NAME`.

Without an SDK, and on stdio or HTTP (`running_vendor_server`). The extension `com.NAME/orders` has the requests `echo`,
`got` (what the server has received, as texts), `burst` (notifications before the result), `later` (one after the
result, outside of all calls) and `slow` (progress, and no answer). The tool `ask` asks the client `question`. What
is unusual in JSON stands in `PAYLOAD`.
"""

import asyncio
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.support.asgi import body_of, respond, served
from tests.toys.echo_upstream import OwnLink, Write
from transports.upstream_port import ConnectOptions, LinkEvents

PAYLOAD = (
    rb'{"z":1.0,"a":1e2,"m":-0.0,"big":123456789012345678901234567890,'
    rb'"t":"\u00e9\ud83d\ude00 \/ \" \\ ' + "ü☃".encode() + rb'","e":{},"l":[ 1.50 , null,true,{"k":[]} ]}'
)
SETTINGS = rb'{"v":1.0,"limits":{"n":1e3},"t":"\u00e9"}'
TOOL = (
    rb'{"name":"ask","inputSchema":{"type":"object"},"icons":[{"src":"x:1","y":1.0}],'
    rb'"annotations":{"com.acme/a":1e2},"_meta":{"com.acme/t":1.50},"x-own":{"b":1,"a":2}}'
)
RESOURCE = rb'{"uri":"NAME-orders://one","name":"one","x-own":1e2}'
BURST = 200
_SUBSCRIPTION = b"io.modelcontextprotocol/subscriptionId"

Object = dict[str, msgspec.Raw]


def _object(raw: bytes) -> Object:
    return msgspec.json.decode(raw, type=Object)


class VendorServer:
    """The server, without its wire. Each message comes with what writes to the stream that it came on."""

    def __init__(self, era: str, name: str) -> None:
        self.is_modern = era == "modern"
        self.extension = f"com.{name}/orders".encode()
        self._name = name.encode()
        self._got: list[str] = []
        self._asking: Callable[[bytes], None] | None = None
        self._listeners: dict[bytes, Write] = {}
        self._waiting: list[bytes] = []  # notifications that no stream could take yet
        info = rb'{"name":"NAME","version":"1","icons":[{"src":"x:2"}],"websiteUrl":"https:\/\/x","x-own":1e2}'
        self._info = info.replace(b"NAME", self._name)
        self._capabilities = (
            b'{"tools":{"listChanged":true},"resources":{},"extensions":{"%b":%b},"experimental":{"%b-lab":{"x":1e2}},'
            b'"%b-widgets":{"w":1.0}}' % (self.extension, SETTINGS, self._name, self._name)
        )

    def handle(self, line: bytes, write: Write) -> None:
        """Handle a message. Answers and what belongs to a request go to `write`."""
        message = _object(line)
        self._got.append(line.decode().strip())
        if "method" not in message:
            if self._asking is not None:
                asking, self._asking = self._asking, None
                asking(bytes(message["result"]))
            return
        method = msgspec.json.decode(message["method"], type=str)
        if "id" in message:
            self._answer(method, bytes(message["id"]), _object(message.get("params", b"{}")), write)

    def listen(self, subscription: bytes, write: Write) -> None:
        """Send notifications that belong to no call to that stream. A legacy stream has no subscription."""
        self._listeners[subscription] = write
        waiting, self._waiting = self._waiting, []
        for payload in waiting:
            self._notify_alone(payload)

    def forget(self, subscription: bytes) -> None:
        """The stream is closed."""
        self._listeners.pop(subscription, None)

    def _answer(self, method: str, request_id: bytes, params: Object, write: Write) -> None:
        def result(members: bytes) -> None:
            more = b',"resultType":"complete"' if self.is_modern else b""
            write(b'{"jsonrpc":"2.0","id":%b,"result":{%b%b}}' % (request_id, members, more))

        own = self.extension.decode() + "/"
        if method.startswith(own):
            self._answer_own(method.removeprefix(own), request_id, params, write, result)
            return
        lasting = b',"ttlMs":0,"cacheScope":"private"' if self.is_modern else b""
        known = b'"capabilities":%b,"serverInfo":%b' % (self._capabilities, self._info)
        content = b'{"uri":%b,"text":"x","x-own":%b}' % (bytes(params.get("uri", b"0")), PAYLOAD)
        answers = {
            "tools/list": b'"tools":[%b]%b' % (TOOL, lasting),
            "resources/list": b'"resources":[%b]%b' % (RESOURCE.replace(b"NAME", self._name), lasting),
            "resources/templates/list": b'"resourceTemplates":[]' + lasting,
            "resources/read": b'"contents":[%b],"x-own":%b%b' % (content, PAYLOAD, lasting),
            "initialize": b'"protocolVersion":"2025-11-25",' + known,
            "server/discover": b'"supportedVersions":["2026-07-28"],' + known + lasting,
        }
        del answers["initialize" if self.is_modern else "server/discover"]
        if method == "tools/call":
            self._ask(request_id, params, write, result)
        elif method == "subscriptions/listen":
            self._listen(request_id, params, write)
        elif method in answers:
            result(answers[method])
        else:
            error = b'{"code":-32601,"message":"Method not found"}'
            write(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, error))

    def _listen(self, request_id: bytes, params: Object, write: Write) -> None:
        tag = b'"_meta":{"%b":%b}' % (_SUBSCRIPTION, request_id)
        acknowledged = b'{"notifications":%b,%b}' % (bytes(params["notifications"]), tag)
        write(b'{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":%b}' % acknowledged)
        self.listen(request_id, write)

    def _answer_own(self, name: str, request_id: bytes, params: Object, write: Write, result: Write) -> None:
        match name:
            case "echo":
                result(b'"own":%b,"echo":%b' % (PAYLOAD, bytes(params["payload"])))
            case "got":
                result(b'"got":' + msgspec.json.encode(self._got))
            case "burst":
                for number in range(BURST):
                    write(self._notification(b"tick", b'"i":%d,"payload":%b' % (number, PAYLOAD)))
                result(b'"burst":true')
            case "later":
                result(b'"later":true')
                self._notify_alone(PAYLOAD)
            case "slow":
                token = bytes(_object(params["_meta"])["progressToken"])
                progress = b'{"progressToken":%b,"progress":1.50,"x-own":%b}' % (token, PAYLOAD)
                write(b'{"jsonrpc":"2.0","method":"notifications/progress","params":%b}' % progress)

    def _ask(self, request_id: bytes, params: Object, write: Write, result: Write) -> None:
        question = b'"method":"%b/question","params":{"payload":%b}' % (self.extension, PAYLOAD)
        if not self.is_modern:
            self._asking = lambda answer: result(b'"content":[],"answered":' + answer)
            write(b'{"jsonrpc":"2.0","id":"q-1",%b}' % question)
        elif "inputResponses" in params:
            result(b'"content":[],"answered":' + bytes(_object(params["inputResponses"])["q"]))
        else:
            asked = b'"resultType":"input_required","inputRequests":{"q":{%b}},"requestState":"s"' % question
            write(b'{"jsonrpc":"2.0","id":%b,"result":{%b}}' % (request_id, asked))

    def _notification(self, name: bytes, members: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","method":"notifications/%b/%b","params":{%b}}' % (self.extension, name, members)

    def _notify_alone(self, payload: bytes) -> None:
        if not self._listeners:
            self._waiting.append(payload)
        for subscription, write in self._listeners.items():
            tag = b',"_meta":{"%b":%b}' % (_SUBSCRIPTION, subscription) if self.is_modern else b""
            write(self._notification(b"changed", b'"payload":' + payload + tag))


class _Http:
    """The server on HTTP, one for each session: every answer to a request is an event stream."""

    def __init__(self, era: str, name: str) -> None:
        self._new = functools.partial(VendorServer, era, name)
        self._servers = {"": self._new()}
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.headers.append(headers)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        session, last, subscription = headers.get("mcp-session-id", ""), b"", b""
        if not session and not self._servers[""].is_modern and scope["method"] == "POST":
            session = str(len(self._servers))
            self._servers[session] = self._new()
        server = self._servers[session]
        if scope["method"] == "GET" and not server.is_modern:
            server.listen(subscription, queue.put_nowait)
        elif scope["method"] == "POST":
            body = await body_of(receive)
            message = _object(body)
            server.handle(body, queue.put_nowait)
            if "id" not in message or "method" not in message:
                await respond(send, 202)
                return
            last, subscription = b'{"jsonrpc":"2.0","id":%b,' % bytes(message["id"]), bytes(message["id"])
        else:
            await respond(send, 405)
            return
        head = [(b"content-type", b"text/event-stream"), *([(b"mcp-session-id", session.encode())] if session else [])]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        gone = asyncio.create_task(_gone(receive))
        try:
            while True:
                coming = asyncio.create_task(queue.get())
                await asyncio.wait((coming, gone), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    return
                frame = coming.result()
                is_last = bool(last) and frame.startswith(last) and b'"method"' not in frame[: len(last) + 10]
                await send({"type": "http.response.body", "body": b"data: %b\n\n" % frame, "more_body": not is_last})
                if is_last:
                    return
        finally:
            gone.cancel()
            server.forget(subscription)


class InProcess:
    """The server in the gateway's process, one for each link: an upstream kind of another package."""

    def __init__(self, era: str, name: str) -> None:
        self._new = functools.partial(VendorServer, era, name)

    async def connect(self, given: ConnectOptions, events: LinkEvents) -> OwnLink:
        server = self._new()
        link = OwnLink(server.handle, events)
        if not server.is_modern:
            server.listen(b"", link.write)
        return link

    async def close(self) -> None:
        """Its links share nothing."""


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@contextlib.contextmanager
def running_vendor_server(era: str, name: str, port: int) -> Iterator[_Http]:
    """The server on HTTP, in a thread of this process."""
    app = _Http(era, name)
    with served(app, port):
        yield app


li, mi = InProcess("legacy", "li"), InProcess("modern", "mi")
"""For the setting `in_process`."""


def main() -> None:
    server = VendorServer(sys.argv[1], sys.argv[2])

    def write(frame: bytes) -> None:
        sys.stdout.buffer.write(frame + b"\n")
        sys.stdout.buffer.flush()

    if not server.is_modern:
        server.listen(b"", write)
    for line in sys.stdin.buffer:
        server.handle(line, write)


if __name__ == "__main__":
    main()
