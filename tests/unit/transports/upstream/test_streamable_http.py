"""How an HTTP link tells requests of the two eras apart, and which failures it reports."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from tests.requirements import requirement
from transports.jsonrpc import Message
from transports.mirrored_headers import decode_value
from transports.testing import RecordedEvents
from transports.upstream.streamable_http import HttpUpstream, modern_version
from transports.upstream_port import ConnectOptions

VERSION = "io.modelcontextprotocol/protocolVersion"


def test_a_modern_request_names_its_version() -> None:
    meta = msgspec.json.encode({VERSION: "2026-07-28", "note": 1})
    assert modern_version({"_meta": msgspec.Raw(meta)}) == "2026-07-28"


@pytest.mark.parametrize(
    "meta",
    [b'{"note": "' + VERSION.encode() + b'"}', b'["' + VERSION.encode() + b'"]', b'{"' + VERSION.encode() + b'": 7}'],
)
def test_the_same_text_elsewhere_in_meta_makes_no_modern_request(meta: bytes) -> None:
    assert modern_version({"_meta": msgspec.Raw(meta)}) == ""


def test_a_request_without_meta_is_legacy() -> None:
    assert modern_version({}) == ""


def answers_404(seen: list[httpx2.Request]) -> HttpUpstream:
    """A server that answers every POST with 404 and offers no stream."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return httpx2.Response(405)
        seen.append(request)
        return httpx2.Response(404)

    upstream = HttpUpstream(name="remote", url="http://remote/mcp", headers={}, max_event_bytes=1_000)
    upstream._client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    return upstream


def request(meta: dict[str, Any], params: dict[str, Any], method: str = "tools/call") -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 7, "method": method, "params": params | {"_meta": meta}})


@pytest.mark.anyio
@pytest.mark.parametrize(("meta", "forgotten"), [({}, [7]), ({VERSION: "2026-07-28"}, [])])
async def test_only_a_request_with_a_session_id_finds_that_the_session_is_forgotten(
    meta: dict[str, Any], forgotten: list[int]
) -> None:
    seen: list[httpx2.Request] = []
    upstream, events = answers_404(seen), RecordedEvents()
    link = await upstream.connect(ConnectOptions(resume='["2025-11-25","s-1"]'), events)
    link.send(request(meta, {"name": "count"}))
    await events.until(lambda: bool(events.failed))
    assert events.failed == [7] and events.unsent_ids == forgotten
    assert ("mcp-session-id" in seen[0].headers) == bool(forgotten)
    await link.close()
    await upstream.close()


@pytest.mark.anyio
async def test_a_request_whose_headers_cannot_be_made_is_refused() -> None:
    seen: list[httpx2.Request] = []
    upstream, events = answers_404(seen), RecordedEvents()

    def schemas() -> dict[str, Any]:
        raise RuntimeError("no schemas")

    link = await upstream.connect(ConnectOptions(schemas=schemas), events)
    link.send(request({VERSION: "2026-07-28"}, {"name": "count"}))
    await events.until(lambda: bool(events.failed))
    assert events.failed == [7] and not events.unsent_ids and not seen
    await link.close()
    await upstream.close()


@requirement("ext.relay")
@pytest.mark.anyio
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_modern_request_about_a_task_names_the_task_in_a_header(method: str) -> None:
    seen: list[httpx2.Request] = []
    upstream, events = answers_404(seen), RecordedEvents()
    link = await upstream.connect(ConnectOptions(), events)
    link.send(request({VERSION: "2026-07-28"}, {"taskId": "täsk"}, method))
    await events.until(lambda: bool(events.failed))
    assert seen[0].headers["mcp-method"] == method and decode_value(seen[0].headers["mcp-name"]) == "täsk"
    await link.close()
    await upstream.close()


STREAM = {"content-type": "text/event-stream"}


class Script:
    """A server that answers each GET with the next of `gets`, the last one again and again, and notes when it was asked
    for what. `post` is what it answers a POST with. A stream is as many bytes, or breaks off after them."""

    def __init__(self, *gets: httpx2.Response | Exception, post: httpx2.Response | None = None) -> None:
        self.gets = gets
        self.post = post or httpx2.Response(202)
        self.asked: list[str] = []
        self.pauses: list[float] = []
        self.halted = asyncio.Event()
        self.upstream = HttpUpstream(
            name="remote", url="http://remote/mcp", headers={}, max_event_bytes=1_000, pause=self._pause
        )
        self.upstream._client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "GET":
            return self.post
        self.asked.append(request.headers.get("last-event-id", ""))
        answer = self.gets[min(len(self.asked), len(self.gets)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) >= 12:
            self.halted.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)


class Notified(RecordedEvents):
    """Records the methods of notifications as well."""

    def __init__(self) -> None:
        super().__init__()
        self.methods: list[object] = []

    def message(self, message: Message, stream: int | str | None = None) -> None:
        super().message(message, stream)
        self.methods.append(message.method)


def stream(text: str) -> httpx2.Response:
    return httpx2.Response(200, headers=STREAM, content=text.encode())


NOTE = 'data: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'
RESULT = 'data: {"jsonrpc":"2.0","id":7,"result":{}}\n\n'


@requirement("up.retry")
@pytest.mark.anyio
async def test_a_stream_that_was_refused_for_a_while_is_opened_later() -> None:
    server = Script(
        httpx2.Response(503), httpx2.ConnectError("down"), httpx2.Response(429), stream(NOTE), httpx2.Response(405)
    )
    events = Notified()
    link = await server.upstream.connect(ConnectOptions(resume='["2025-11-25","s-1"]'), events)
    async with asyncio.timeout(5.0):
        await asyncio.wait([link._running["stream"]])
    assert server.pauses == [1.0, 2.0, 4.0, 1.0], "405 is the last word"
    assert events.methods == ["notifications/x"]
    await link.close()
    await server.upstream.close()


@requirement("up.retry")
@pytest.mark.anyio
async def test_no_event_id_and_no_error_ends_the_stream_of_a_server() -> None:
    server = Script(
        stream("id: é\ndata:\n\n"),
        stream("id: \x01\ndata:\n\n"),
        RuntimeError("odd"),
        stream(NOTE),
        httpx2.Response(405),
    )
    events = Notified()
    link = await server.upstream.connect(ConnectOptions(resume='["2025-11-25","s-1"]'), events)
    async with asyncio.timeout(5.0):
        await asyncio.wait([link._running["stream"]])
    assert server.asked == ["", "é", "", "", ""] and events.methods == ["notifications/x"]
    await link.close()
    await server.upstream.close()


@requirement("up.retry")
@pytest.mark.anyio
async def test_a_stream_is_not_opened_any_more_when_the_link_has_ended() -> None:
    server = Script(httpx2.Response(503))
    link = await server.upstream.connect(ConnectOptions(resume='["2025-11-25","s-1"]'), RecordedEvents())
    running = link._running["stream"]
    async with asyncio.timeout(5.0):
        await server.halted.wait()
        await link.close()
    assert running.done() and len(server.asked) == 12
    await server.upstream.close()


@requirement("up.retry")
@pytest.mark.anyio
async def test_a_server_that_cuts_a_call_again_and_again_is_asked_when_it_says() -> None:
    cut = [stream(f"id: {number}\nretry: {number * 1_000}\ndata:\n\n") for number in range(2, 9)]
    server = Script(*cut, stream(RESULT), post=stream("id: 1\nretry: 500\ndata:\n\n"))
    events = RecordedEvents()
    link = await server.upstream.connect(ConnectOptions(), events)
    link.send(msgspec.json.encode({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {}}))
    await events.until(lambda: bool(events.answered or events.failed))
    assert events.answered == [7] and server.asked == [str(number) for number in range(1, 9)]
    assert server.pauses == [0.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    await link.close()
    await server.upstream.close()


@requirement("up.retry")
@pytest.mark.anyio
@pytest.mark.parametrize(("answer", "asked"), [(httpx2.Response(404), 1), (httpx2.Response(503), 5), (stream(""), 5)])
async def test_a_server_that_does_not_continue_a_call_is_given_up(answer: httpx2.Response, asked: int) -> None:
    server, events = Script(answer, post=stream("id: 1\n" + NOTE)), RecordedEvents()
    link = await server.upstream.connect(ConnectOptions(), events)
    link.send(msgspec.json.encode({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {}}))
    await events.until(lambda: bool(events.failed))
    assert events.failed == [7] and len(server.asked) == asked
    await link.close()
    await server.upstream.close()


@requirement("up.retry")
@pytest.mark.anyio
async def test_a_cancelled_call_is_not_continued() -> None:
    server = Script(stream("retry: 1000\n\n"), post=stream("id: 1\nretry: 1000\ndata:\n\n"))
    link = await server.upstream.connect(ConnectOptions(resume='["2025-11-25",""]'), RecordedEvents())
    link.send(msgspec.json.encode({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {}}))
    running = link._running[7]
    async with asyncio.timeout(5.0):
        await server.halted.wait()
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        link.send(msgspec.json.encode(cancelled))
        await asyncio.wait([running])
    assert running.cancelled()
    await link.close()
    await server.upstream.close()


@requirement("ext.relay")
@pytest.mark.anyio
async def test_a_modern_request_has_the_headers_of_its_client_that_its_tool_does_not_annotate() -> None:
    seen: list[httpx2.Request] = []
    upstream, events = answers_404(seen), RecordedEvents()
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    link = await upstream.connect(ConnectOptions(schemas=lambda: {"count": schema}), events)
    forwarded = {"mcp-param-tenant": "t", "mcp-param-region": "forged"}
    link.send(request({VERSION: "2026-07-28"}, {"name": "count", "arguments": {"region": "eu"}}), forwarded)
    await events.until(lambda: bool(events.failed))
    assert seen[0].headers.get_list("mcp-param-region") == ["eu"] and seen[0].headers["mcp-param-tenant"] == "t"
    await link.close()
    await upstream.close()


class Endless(httpx2.AsyncByteStream):
    """A body that does not end, with a pause between its parts if it is slow. `parts`: how many were read."""

    def __init__(self, *, is_slow: bool) -> None:
        self.parts = 0
        self.is_slow = is_slow
        self.closed = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.parts += 1
            yield b"x" * 16_384
            await (asyncio.Event().wait() if self.is_slow else asyncio.sleep(0))

    async def aclose(self) -> None:
        self.closed.set()


@requirement("up.bounded")
@pytest.mark.anyio
@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_an_answer_that_nobody_needs_is_read_in_part(
    method: str, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transports.upstream.http_replies._MOST_SKIMMED_S", 0.01)
    body, events = Endless(is_slow=is_slow), RecordedEvents()

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == method and b'"id"' not in request.content:
            return httpx2.Response(202, stream=body)
        return httpx2.Response(
            200 if request.method == "POST" else 405, content=b'{"jsonrpc":"2.0","id":7,"result":{}}'
        )

    upstream = HttpUpstream(name="remote", url="http://remote/mcp", headers={}, max_event_bytes=1_000)
    upstream._client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    link = await upstream.connect(ConnectOptions(resume='["2025-11-25","s-1"]'), events)
    link.send(b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}')
    link.send(b'{"jsonrpc":"2.0","id":7,"method":"ping"}')
    await events.until(lambda: events.answered == [7])
    async with asyncio.timeout(5.0):
        await link.close()
        await body.closed.wait()
    assert body.parts <= 6
    await upstream.close()


@requirement("up.bounded")
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("session", "version", "sent"),
    [
        (b"s-1", "2025-11-25", ("s-1", "2025-11-25")),
        (b"s-1", "2025-11-25\r\nX-Evil: 1", ("s-1", None)),
        (b"s-1", "2025-é", ("s-1", None)),
        (b"s-1", 7, ("s-1", None)),
        (b"s-\xe9", "2025-11-25", (None, "2025-11-25")),
    ],
)
async def test_what_no_header_can_have_is_not_taken_from_a_server(
    session: bytes, version: Any, sent: tuple[str | None, str | None]
) -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        body = {"jsonrpc": "2.0", "id": 7, "result": {"protocolVersion": version}}
        return httpx2.Response(200, headers=[(b"mcp-session-id", session)], json=body)

    upstream, events = answers_404([]), RecordedEvents()
    upstream._client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    link = await upstream.connect(ConnectOptions(), events)
    link.send(request({}, {}, "initialize"))
    await events.until(lambda: events.answered == [7])
    link.send(request({}, {}, "ping"))
    await events.until(lambda: len(events.answered + events.failed) == 2)
    headers = seen[-1].headers
    assert events.answered == [7, 7] and seen[-1].method == "POST"
    assert (headers.get("mcp-session-id"), headers.get("mcp-protocol-version")) == sent
    await link.close()
    assert events.ends == ["it was closed"]
    await upstream.close()


@requirement("up.bounded")
@pytest.mark.anyio
async def test_a_link_that_resumes_what_no_header_can_have_ends_like_others() -> None:
    upstream, events = answers_404([]), RecordedEvents()
    link = await upstream.connect(ConnectOptions(resume='["2025-11-25","s-é"]'), events)
    await link.close()
    assert events.ends == ["it was closed"] and not link.resume
    await upstream.close()
