"""How an HTTP link tells requests of the two eras apart, and which failures it reports."""

import asyncio
import gzip
import http.cookiejar
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import httpx2
import msgspec
import pytest

from gateway.errors import SESSION_UNKNOWN
from tests.requirements import requirement
from transports.jsonrpc import Message
from transports.mirrored_headers import decode_value
from transports.testing import RecordedEvents
from transports.upstream.http_send_queues import AT_ONCE
from transports.upstream.streamable_http import HttpLink, HttpUpstream, modern_version
from transports.upstream_port import ConnectOptions

VERSION = "io.modelcontextprotocol/protocolVersion"
MODERN = {VERSION: "2026-07-28"}
SESSION = '["2025-11-25","s-1"]'
CALL = msgspec.json.encode({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {}})
NOTE = 'data: {"jsonrpc":"2.0","method":"notifications/x"}\n\n'
RESULT = 'data: {"jsonrpc":"2.0","id":7,"result":{}}\n\n'


def request(meta: dict[str, Any], params: dict[str, Any], method: str = "tools/call") -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 7, "method": method, "params": params | {"_meta": meta}})


def stream(text: str) -> httpx2.Response:
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=text.encode())


class Events(RecordedEvents):
    """Records the methods of messages, and the reasons of refusals, as well."""

    def __init__(self) -> None:
        super().__init__()
        self.methods: list[object] = []
        self.reasons: list[str] = []

    def message(self, message: Message, stream: int | str | None = None) -> None:
        super().message(message, stream)
        self.methods.append(message.method)

    def unreadable(self, request_id: int | str | None, reason: str) -> None:
        super().unreadable(request_id, reason)
        self.reasons.append(reason)

    def refused(self, request_id: int | str, reason: str, status: int = 0, cause: Exception | None = None) -> None:
        super().refused(request_id, reason, status)
        self.reasons.append(reason)

    async def settled(self, count: int = 1) -> None:
        """Wait until so many requests were answered or have failed."""
        await self.until(lambda: len(self.answered + self.failed) >= count)


class Server:
    """Answers each POST with `post`, and each GET with the next of `gets`, the last one again and again. Notes the
    requests, the last event ids of streams, and the pauses between them. The twelfth pause has no end."""

    def __init__(self, *gets: httpx2.Response | Exception, post: httpx2.Response | None = None) -> None:
        self.gets = gets or (httpx2.Response(405),)
        self.post = post or httpx2.Response(202)
        self.posted: list[httpx2.Request] = []
        self.asked: list[str] = []
        self.pauses: list[float] = []
        self.halted = asyncio.Event()

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "GET":
            self.posted.append(request)
            return self.post
        self.asked.append(request.headers.get("last-event-id", ""))
        answer = self.gets[min(len(self.asked), len(self.gets)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) >= 12:
            self.halted.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)


@asynccontextmanager
async def linked(
    server: Server | Callable[[httpx2.Request], Any],
    *,
    url: str = "http://remote/mcp",
    repeatable: frozenset[str] = frozenset(),
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[HttpLink, Events]]:
    """A link to the server, closed in the end."""
    answer, pause = (server.answer, server.pause) if isinstance(server, Server) else (server, asyncio.sleep)
    upstream = HttpUpstream(
        name="remote", url=url, headers=headers or {}, max_event_bytes=1_000, repeatable=repeatable, pause=pause
    )
    upstream._client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    events = Events()
    link = await upstream.connect(ConnectOptions(**options), events)
    try:
        yield link, events
    finally:
        await link.close()
        await upstream.close()


async def ended(server: Any, *messages: bytes, **options: Any) -> Events:
    """What came of these messages, or of a call, each of them sent when the one before it had ended."""
    async with linked(server, **options) as (link, events):
        for count, message in enumerate(messages or (CALL,), 1):
            link.send(message)
            await events.settled(count)
    return events


def test_a_modern_request_names_its_version_and_the_same_text_elsewhere_names_none() -> None:
    assert modern_version({}) == ""
    for meta, version in (
        *(('{"note": 1, "%s": "2026-07-28"}', "2026-07-28"), ('{"note": "%s"}', "")),
        *(('["%s"]', ""), ('{"%s": 7}', "")),
    ):
        assert modern_version({"_meta": msgspec.Raw((meta % VERSION).encode())}) == version, meta


@pytest.mark.parametrize(("meta", "forgotten"), [({}, [7]), (MODERN, [])])
async def test_only_a_request_with_a_session_id_finds_that_the_session_is_forgotten(
    meta: dict[str, Any], forgotten: list[int]
) -> None:
    server = Server(post=httpx2.Response(404))
    events = await ended(server, request(meta, {"name": "count"}), resume=SESSION)
    assert events.failed == [7] and events.unsent_ids == forgotten
    assert ("mcp-session-id" in server.posted[0].headers) == bool(forgotten)


async def test_a_request_whose_headers_cannot_be_made_is_refused() -> None:
    server = Server()
    events = await ended(server, request(MODERN, {"name": "count"}), schemas=lambda: 1 / 0)
    assert events.failed == [7] and not events.unsent_ids and not server.posted


async def test_an_answer_beyond_the_limit_fails_with_the_setting() -> None:
    for answer in (stream("data: " + "x" * 2_000), httpx2.Response(200, json={"jsonrpc": "2.0", "x": "x" * 2_000})):
        [reason] = (await ended(Server(post=answer))).reasons
        assert reason.startswith(
            "server 'remote' sent a message of more than 1000 bytes (four times gateway.limits.body_bytes"
        )


@requirement("ext.relay")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_modern_request_about_a_task_names_the_task_in_a_header(method: str) -> None:
    server = Server(post=httpx2.Response(404))
    await ended(server, request(MODERN, {"taskId": "täsk"}, method))
    headers = server.posted[0].headers
    assert headers["mcp-method"] == method and decode_value(headers["mcp-name"]) == "täsk"


@requirement("ext.relay")
async def test_a_modern_request_has_the_headers_of_its_client_that_its_tool_does_not_annotate() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    server = Server(post=httpx2.Response(404))
    async with linked(server, schemas=lambda: {"count": schema}) as (link, events):
        forwarded = {"mcp-param-tenant": "t", "mcp-param-region": "forged"}
        link.send(request(MODERN, {"name": "count", "arguments": {"region": "eu"}}), forwarded)
        await events.settled()
    headers = server.posted[0].headers
    assert headers.get_list("mcp-param-region") == ["eu"] and headers["mcp-param-tenant"] == "t"


@requirement("up.retry")
async def test_no_event_id_and_no_error_ends_the_stream_of_a_server() -> None:
    refusals = (httpx2.Response(503), httpx2.ConnectError("down"), httpx2.Response(429))
    odd = (stream("id: é\ndata:\n\n"), stream("id: \x01\ndata:\n\n"), RuntimeError("odd"))
    server = Server(*refusals, *odd, stream(NOTE), httpx2.Response(405))
    async with linked(server, resume=SESSION) as (link, events):
        await asyncio.wait([link._running["stream"]], timeout=60)
        assert server.asked == ["", "", "", "", "é", "", "", ""], "405 is the last word"
        assert server.pauses == [1.0, 2.0, 4.0, 1.0, 1.0, 1.0, 1.0] and events.methods == ["notifications/x"]


@requirement("up.retry")
async def test_a_stream_is_not_opened_any_more_when_the_link_has_ended() -> None:
    server = Server(httpx2.Response(503))
    async with linked(server, resume=SESSION) as (link, _), asyncio.timeout(60):
        running = link._running["stream"]
        await server.halted.wait()
        await link.close()
        assert running.done() and len(server.asked) == 12


@requirement("wall.structure")
async def test_a_compressed_stream_is_not_read() -> None:
    """A few bytes can be megabytes of empty lines, which a gateway would read in one turn of its loop."""
    lines = gzip.compress(b"\n" * 4_000_000)
    server = Server(
        post=httpx2.Response(
            200, headers={"content-type": "text/event-stream", "content-encoding": "gzip"}, content=lines
        )
    )
    async with linked(server) as (link, events):
        link.send(request({}, {"name": "t"}))
        await events.settled()
    assert events.reasons == [
        "server 'remote' broke off: DecodingError: the response has a Content-Encoding that was not asked for"
    ]
    assert server.posted[0].headers["accept-encoding"] == "identity"


@requirement("wall.structure")
async def test_the_response_of_a_request_that_is_answered_on_another_stream_is_ended() -> None:
    """Each would keep its connection for as long as the server likes."""
    body = Endless(is_slow=True, part=b": quiet\n\n")

    def answer(request: httpx2.Request) -> httpx2.Response:
        if msgspec.json.decode(request.content)["id"] == 7:
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=body)
        return stream(RESULT + RESULT.replace("7", "8"))

    async with linked(answer) as (link, events):
        link.send(CALL)
        first = link._running[7]
        link.send(CALL.replace(b"7", b"8"))
        await events.settled(2)
        await asyncio.wait([first])
        assert events.answered == [7, 8] and first.cancelled() and not events.failed


@requirement("wall.structure")
async def test_thousands_of_subscriptions_take_a_few_connections_and_one_that_waits_is_cancelled_here() -> None:
    posted, is_full, answers = list[int](), asyncio.Event(), asyncio.Event()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        message = msgspec.json.decode(request.content)
        if message["method"] != "notifications/cancelled":
            posted.append(message["id"])
            if len(posted) == AT_ONCE:
                is_full.set()
            await answers.wait()
        return httpx2.Response(200, json={"jsonrpc": "2.0", "id": message.get("id"), "result": {}})

    async with linked(answer) as (link, events):
        for number in range(1_000):
            subscription = {"jsonrpc": "2.0", "id": number, "method": "resources/subscribe", "params": {"uri": "a"}}
            link.send(msgspec.json.encode(subscription))
        await is_full.wait()
        link.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":999}}')
        assert len(posted) == AT_ONCE
        answers.set()
        await events.settled(999)
    assert events.answered == posted == [*range(999)]


@requirement("up.retry")
async def test_a_server_that_cuts_a_call_again_and_again_is_asked_when_it_says() -> None:
    cut = [stream(f"id: {number}\nretry: {number * 1_000}\ndata:\n\n") for number in range(2, 9)]
    server = Server(*cut, stream(RESULT), post=stream("id: 1\nretry: 500\ndata:\n\n"))
    events = await ended(server)
    assert events.answered == [7] and server.asked == [str(number) for number in range(1, 9)]
    assert server.pauses == [0.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


@requirement("up.retry")
@pytest.mark.parametrize(("answer", "asked"), [(httpx2.Response(404), 1), (httpx2.Response(503), 5), (stream(""), 5)])
async def test_a_server_that_does_not_continue_a_call_is_given_up(answer: httpx2.Response, asked: int) -> None:
    server = Server(answer, post=stream("id: 1\n" + NOTE))
    events = await ended(server)
    assert events.failed == [7] and len(server.asked) == asked


@requirement("up.retry")
async def test_a_cancelled_call_is_not_continued() -> None:
    server = Server(stream("retry: 1000\n\n"), post=stream("id: 1\nretry: 1000\ndata:\n\n"))
    async with linked(server, resume='["2025-11-25",""]') as (link, _), asyncio.timeout(60):
        link.send(CALL)
        running = link._running[7]
        await server.halted.wait()
        link.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}')
        await asyncio.wait([running])
        assert running.cancelled()


class Endless(httpx2.AsyncByteStream):
    """A body that does not end, with a pause between its parts if it is slow. `parts`: how many were read."""

    def __init__(self, *, is_slow: bool, part: bytes = b"x" * 16_384) -> None:
        self.parts, self.part = 0, part
        self.is_slow = is_slow
        self.closed = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.parts += 1
            yield self.part
            await (asyncio.Event().wait() if self.is_slow else asyncio.sleep(0))

    async def aclose(self) -> None:
        self.closed.set()


@requirement("up.bounded")
@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_an_answer_that_nobody_needs_is_read_in_part(
    method: str, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transports.upstream.http_replies._MOST_SKIMMED_S", 0.01)
    body = Endless(is_slow=is_slow)

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == method and b'"id"' not in request.content:
            return httpx2.Response(202, stream=body)
        status = 200 if request.method == "POST" else 405
        return httpx2.Response(status, content=b'{"jsonrpc":"2.0","id":7,"result":{}}')

    async with linked(answer, resume=SESSION) as (link, events), asyncio.timeout(60):
        link.send(b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}')
        link.send(CALL)
        await events.settled()
        await link.close()
        await body.closed.wait()
        assert events.answered == [7] and body.parts <= 6


@requirement("up.bounded")
@pytest.mark.parametrize(
    ("session", "version", "sent"),
    [
        (b"s-1", "2025-11-25", ("s-1", "2025-11-25")),
        *((b"s-1", other, ("s-1", None)) for other in ("2025-11-25\r\nX-Evil: 1", "2025-é", 7)),
        (b"s-\xe9", "2025-11-25", (None, "2025-11-25")),
    ],
)
async def test_what_no_header_can_have_is_not_taken_from_a_server(
    session: bytes, version: Any, sent: tuple[str | None, str | None]
) -> None:
    body = {"jsonrpc": "2.0", "id": 7, "result": {"protocolVersion": version}}
    server = Server(post=httpx2.Response(200, headers=[(b"mcp-session-id", session)], json=body))
    events = await ended(server, request({}, {}, "initialize"), request({}, {}, "ping"))
    _, ping, *_ = server.posted
    assert events.answered == [7, 7] and ping.method == "POST" and events.ends == ["it was closed"]
    assert (ping.headers.get("mcp-session-id"), ping.headers.get("mcp-protocol-version")) == sent


@requirement("up.bounded")
async def test_a_link_that_resumes_what_no_header_can_have_ends_like_others() -> None:
    async with linked(Server(), resume='["2025-11-25","s-é"]') as (link, events):
        pass
    assert events.ends == ["it was closed"] and not link.resume


REMOTE = "http://op:key@remote/mcp"


@requirement("http.redirects")
@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("location", ["/mcp/?a=1", "http://remote:80/mcp/?a=1", "http://thief:x@remote/mcp/?a=1#part"])
async def test_a_redirection_within_the_origin_is_followed_with_method_body_and_credentials(
    status: int, location: str
) -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        if request.url.path == "/mcp":
            return httpx2.Response(status, headers={"location": location})
        return httpx2.Response(200, content=b'{"jsonrpc":"2.0","id":7,"result":{}}')

    events = await ended(answer, url=REMOTE, resume=SESSION)
    posts = [request for request in seen if request.method == "POST"]
    assert events.answered == [7] and [request.url.path for request in posts] == ["/mcp", "/mcp/"]
    assert posts[1].url.query == b"a=1" and posts[1].content == CALL == posts[0].content
    assert posts[1].headers == posts[0].headers and "authorization" in posts[0].headers
    assert [request.method for request in seen][-2:] == ["DELETE", "DELETE"], (
        "the end of the session is redirected, too"
    )


@requirement("http.redirects")
@pytest.mark.parametrize(
    ("status", "location", "shown"),
    [
        (307, "http://other.example:81/x?token=s3cret", "'http://other.example:81', not followed"),
        (308, "https://remote/mcp/", "'https://(the same host)', not followed"),
        (307, "http://user:s3cret@remote:8080/mcp", "'http://(the same host):8080', not followed"),
        (301, "/mcp/", "'http://(the same host)', not followed"),
        (307, "http://remote:s3cret/", "answered 307 Temporary Redirect"),
        (301, "http://remote/s3cret/", "'http://(the same host)', not followed"),
    ],
)
async def test_any_other_redirection_is_named_without_credentials_and_reaches_nobody(
    status: int, location: str, shown: str
) -> None:
    server = Server(post=httpx2.Response(status, headers={"location": location}))
    [reason] = (await ended(server)).reasons
    assert len(server.posted) == 1 and shown in reason and "s3cret" not in reason


@requirement("http.redirects")
async def test_a_location_whose_host_cannot_be_read_is_a_fault_of_the_protocol() -> None:
    server = Server(post=httpx2.Response(301, headers={"location": "http://xn--0.a..b/"}))
    async with linked(server) as (link, _):
        with pytest.raises(httpx2.RemoteProtocolError, match="Location"):
            await link._upstream.tell("POST", {}, b"{}")


@requirement("http.redirects")
async def test_redirections_without_end_are_given_up() -> None:
    server = Server(post=httpx2.Response(307, headers={"location": "/mcp"}))
    assert (await ended(server)).failed == [7] and len(server.posted) == 4


@requirement("http.retry-idempotent", "rep.no-retry")
@pytest.mark.parametrize(("method", "tries"), [("tools/list", 2), ("tools/call", 1)])
@pytest.mark.parametrize("error", [httpx2.RemoteProtocolError("closed"), httpx2.ReadError("reset")])
async def test_of_requests_that_are_closed_unanswered_only_a_repeatable_one_is_sent_again_and_once(
    error: Exception, method: str, tries: int
) -> None:
    sent: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.method)
        raise error

    events = await ended(answer, request({}, {}, method), repeatable=frozenset({"tools/list"}))
    assert events.failed == [7] and sent == ["POST"] * tries


@requirement("http.redirects")
async def test_the_wait_and_the_challenge_of_a_refusal_are_told_without_addresses() -> None:
    challenge = 'Bearer realm="http://remote", error="invalid_token", resource_metadata="http://remote/x", scope="a b"'
    shown = 'Retry-After: 7; WWW-Authenticate: Bearer error="invalid_token", scope="a b"'
    for status, headers, told in (
        (401, {"retry-after": "7", "www-authenticate": challenge}, f"401 Unauthorized; {shown}"),
        (429, {"retry-after": "7\tignore all"}, "429 Too Many Requests"),
    ):
        own = {"reason_phrase": b"its token is sk-1234"}
        events = await ended(Server(post=httpx2.Response(status, headers=headers, extensions=own)))
        assert events.reasons == [f"server 'remote' answered {told}"]


@requirement("cred.consent")
async def test_a_late_401_rejects_the_headers_that_were_sent() -> None:
    now = {"authorization": "Bearer token-0"}
    sent: list[str] = []
    rejected: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers["authorization"])
        now["authorization"] = "Bearer token-1"  # by another call, before this one is answered
        return httpx2.Response(401) if len(sent) == 1 else stream(RESULT)

    async def reject(values: Collection[str]) -> bool:
        rejected.extend(value for value in values if value.startswith("Bearer"))
        return True

    async with linked(answer) as (link, events):
        link._given = ConnectOptions(headers=lambda: now, rejected=reject)
        link.send(CALL)
        await events.settled()
    assert (sent, rejected, events.answered) == (["Bearer token-0", "Bearer token-1"], ["Bearer token-0"], [7])


class Gateway:
    """A gateway whose sessions `ended` names. It hands a session out with each call that brings none. Its answers wait
    for `may_answer`. Notes the method and the session of each request."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.ended: set[str] = set()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        named = request.headers.get("mcp-gateway-session", "")
        if request.method == "DELETE":
            self.seen.append(("DELETE", named))
            return httpx2.Response(200)
        asked = msgspec.json.decode(request.content)
        self.seen.append((asked["method"], named))
        await self.may_answer.wait()
        if named in self.ended or asked["method"] == "x/unknown":
            code = SESSION_UNKNOWN if named in self.ended else -32601
            return httpx2.Response(404, json={"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code}})
        token = f"session-{len(self.seen)}" if named == "new" and asked["method"] == "tools/call" else named
        answered = {"jsonrpc": "2.0", "id": asked["id"], "result": {}}
        return httpx2.Response(200, json=answered, headers={} if token == "new" else {"mcp-gateway-session": token})


ASKS: Any = {"headers": {"MCP-Gateway-Session": "new"}}


def numbered(number: int, method: str = "tools/call") -> bytes:
    return request(MODERN, {"name": "count"}, method).replace(b'"id":7', b'"id":%d' % number)


@requirement("ops.stdio-url")
async def test_modern_calls_keep_the_session_that_a_gateway_hands_out(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    gateway.may_answer.clear()
    with caplog.at_level("INFO"):
        async with linked(gateway.answer, **ASKS) as (link, events):
            link.send(numbered(1, "server/discover"))
            for number in (2, 3, 4):
                link.send(numbered(number))
            gateway.may_answer.set()
            await events.until(lambda: len(events.answered) == 4)
            link.send(numbered(5, "x/unknown"))
            await events.until(lambda: len(events.answered) == 5)
            assert events.unsent_ids == [], "an unknown method is not an unknown session"
    token = next(session for method, session in gateway.seen if session != "new")
    assert gateway.seen[:2] == [("server/discover", "new"), ("tools/call", "new")]
    assert {*gateway.seen[2:]} == {
        *(("tools/call", token), ("tools/list", token), ("x/unknown", token), ("DELETE", token))
    }, "calls that come at once wait for the first one; it comes back at once, and the session ends with the link"
    assert [r.getMessage() for r in caplog.records if "the session" in r.getMessage()] == [
        f"the session at server remote is {token[:8]}"
    ]


@requirement("ops.stdio-url")
async def test_a_session_with_a_key_outlives_its_link() -> None:
    gateway = Gateway()
    async with linked(gateway.answer, headers={**ASKS["headers"], "MCP-Gateway-Session-Key": "k"}) as (link, events):
        link.send(numbered(1))
        await events.until(lambda: ("tools/list", "session-1") in gateway.seen)
    assert "DELETE" not in dict(gateway.seen)


@requirement("ops.stdio-url")
async def test_a_session_that_has_ended_at_its_gateway_is_forgotten_and_its_call_was_not_sent() -> None:
    gateway = Gateway()
    async with linked(gateway.answer, **ASKS) as (link, events):
        link.send(numbered(1))
        await events.until(lambda: events.answered == [1])
        gateway.ended.add(next(session for _, session in gateway.seen if session != "new"))
        link.send(numbered(2))
        await events.until(lambda: events.unsent_ids == [2])
    assert gateway.seen[-1][0] != "DELETE"


async def test_only_a_link_that_is_told_to_brings_a_session_back() -> None:
    gateway = Gateway()
    for headers, sent in (({}, ""), ({"MCP-Gateway-Session": "given"}, "given")):
        gateway.ended, gateway.seen = {"given"}, []
        async with linked(gateway.answer, headers=headers) as (link, events):
            for number in (1, 2):
                link.send(numbered(number))
            await events.until(lambda: len(events.answered) == 2)
            assert events.unsent_ids == [], "another link would be refused as well"
        assert gateway.seen == [("tools/call", sent)] * 2


@requirement("ctx.isolated")
async def test_cookies_of_a_server_are_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Mock(return_value=[])
    monkeypatch.setattr(http.cookiejar, "split_header_words", parse)
    upstream = HttpUpstream(name="remote", url="http://remote/mcp", headers={}, max_event_bytes=1_000)
    headers, request = {"set-cookie": "a=b", "set-cookie2": "a=b"}, httpx2.Request("GET", upstream.url)
    upstream.client.cookies.extract_cookies(httpx2.Response(200, headers=headers, request=request))
    assert not parse.called and not upstream.client.cookies
    await upstream.close()
