"""What goes wrong while a request is served from memory ends neither the connection nor the answer. The bytes of a
response are those that uvicorn writes."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.requirements import requirement
from transports.inbound.asgi_bypass import JsonHeads, RepeatedRequests
from transports.inbound.asgi_bypass_post import RepeatedHead, StartedPost
from transports.inbound.head_cache import REPEATS, HeadCache
from transports.inbound.host_and_origin import Guard
from transports.inbound.http_requests_and_responses import send_json
from transports.inbound.post_parsing import LengthChecks, Posts
from transports.inbound.unauthenticated_limits import Limits, Refusals
from transports.inbound_port import Answer, AnsweringConnection, CallInFlight, CallValues, HeaderList, Request
from transports.reply_queue import Frame, ReplyQueue

pytestmark = requirement("hot.memory")

BODY = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEAD = b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BODY)
HEADERS = [(b"host", b"a"), (b"content-length", b"%d" % len(BODY))]


class Wire:
    """A connection and its endpoint. It parses nothing: it notes what it is given, and takes over what was begun if
    `starts` is set. Each request has the same answer, by a coroutine if `later` is set."""

    write_paused = False
    starts = True
    serves = True
    later: asyncio.Event | None = None
    fault: Exception | None = None
    calls = total_requests = ends = closes = 0
    written = b""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.flow = self.transport = self.server_state = cast("Any", self)
        self.default_headers: list[tuple[bytes, bytes]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.posts = Posts("/mcp", Guard(), LengthChecks(Limits(), Refusals()))
        self.parsed: list[bytes] = []
        self.finished: list[StartedPost] = []
        self.counts = Counter[str]()
        self.repeats = RepeatedRequests(self, HeadCache(self.counts, lambda: self.serves, Limits()))
        self.replies = ReplyQueue()
        self.answer: Any = SimpleNamespace(
            is_doubtful=False, headers=[], replies=self.replies, cancel=lambda reason: None, done=self.done
        )

    async def call(self, request: Request) -> Answer:
        self.calls += 1
        if self.later is not None:
            await self.later.wait()
        return cast("Answer", self.answer)

    def done(self) -> None:
        self.ends += 1
        if self.fault is not None:
            raise self.fault

    def quiet_after_s(self, request: Request) -> float:
        return 10.0

    def status_of(self, request: Request, frame: Frame) -> int:
        return 200

    def can_resume(self, request: Request) -> bool:
        return True

    async def __call__(self, scope: Any, receive: Any, send: Any, started: StartedPost) -> None:
        self.finished.append(started)

    def is_between_requests(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.closes += 1

    def write(self, data: bytes) -> None:
        self.written += data

    def parse(self, data: bytes) -> None:
        self.parsed.append(data)
        if self.starts:
            app = self.repeats.app(None)
            if app is not None:
                self.loop.create_task(app({}, None, None))

    def learn(self) -> None:
        """Have the head remembered."""
        scope: dict[str, Any] = {"headers": HEADERS, "client": None}
        head = self.posts.head(scope, {"host": "a"})
        for _ in range(2):
            assert not self.repeats.take(HEAD + BODY)
            self.repeats.parsed(scope, HEADERS, is_last=False)
            scope.pop(REPEATS).store(lambda: RepeatedHead.of(cast("Any", self), head))
        self.parsed.clear()

    def take(self) -> bool:
        """Get the request once more. Whether it is served from memory."""
        return self.repeats.take(HEAD + BODY)

    async def settled(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)


@pytest.fixture
async def wire() -> Wire:
    """One that remembers the head."""
    wire = Wire()
    wire.learn()
    return wire


FINAL = Frame(b"{}", final=True)
WRITTEN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


async def test_a_head_that_ends_its_connection_is_not_offered_for_repetition() -> None:
    wire, scope = Wire(), dict[str, Any]()
    assert not wire.repeats.take(HEAD + BODY)
    wire.repeats.parsed(scope, HEADERS, is_last=True)
    assert REPEATS not in scope


@pytest.mark.parametrize("again", [False, True])
async def test_a_repeated_request_was_not_sent_before_even_if_the_first_with_its_head_was(again: bool) -> None:
    head = Wire().posts.head({"headers": HEADERS, "client": None, "mcp.again": again}, {"host": "a"})
    assert head.again is again and not RepeatedHead.of(cast("Any", None), head).head.again


async def test_an_answer_is_written_once_and_its_end_is_reported_once(wire: Wire) -> None:
    wire.serves = False
    assert not wire.take(), "the process hands over"
    wire.serves = True
    assert wire.repeats.take(HEAD + BODY[:3]) and wire.repeats.received == 3
    assert wire.repeats.take(BODY[3:]) and wire.repeats.received is None and wire.repeats.is_answering
    wire.replies.push(FINAL)
    assert not wire.written, "an answer is not written while its server's messages are read"
    await wire.settled()
    assert wire.written == WRITTEN and wire.total_requests == wire.ends == 1
    assert not wire.repeats.is_answering and not wire.parsed


async def test_a_fault_at_the_end_of_an_answer_harms_nobody(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    wire.fault = RuntimeError("broken")
    wire.replies.push(FINAL)
    assert wire.take()
    await wire.settled()
    assert wire.written == WRITTEN and wire.ends == 1 and "could not be recorded" in caplog.text
    assert wire.take(), "the next request is served"


async def test_what_cannot_be_written_at_once_goes_on_with_what_was_begun(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StartedPost, "status", lambda self, frame: 1 / 0)
    wire.replies.push(FINAL)
    assert wire.take()
    await wire.settled()
    assert wire.parsed == [HEAD + BODY] and not wire.written
    assert len(wire.finished) == wire.calls == 1, "the handler was called once"


@pytest.mark.parametrize("is_late", [False, True])
async def test_what_was_begun_ends_even_if_no_task_takes_it(
    wire: Wire, is_late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    wire.starts = False
    later = wire.later = asyncio.Event() if is_late else None
    assert wire.take()
    await wire.settled()
    wire.repeats.forget()
    if later is not None:
        later.set()
    await wire.settled()
    assert wire.ends == 1 and not wire.tasks and "cannot be parsed" in caplog.text


async def test_an_answer_that_comes_later_is_written_from_memory(wire: Wire) -> None:
    later = wire.later = asyncio.Event()
    assert wire.take() and wire.repeats.is_answering
    await wire.settled()
    later.set()
    await wire.settled()
    wire.replies.push(FINAL)
    await wire.settled()
    assert wire.written == WRITTEN and not wire.tasks and wire.counts["direct"] == 1


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_client_that_reads_slowly_is_written_to_by_its_task(wire: Wire, when: str) -> None:
    wire.write_paused = when == "before"
    assert wire.take() is (when == "meanwhile")
    wire.write_paused = True
    wire.replies.push(FINAL)
    await wire.settled()
    assert not wire.written and wire.counts["direct"] == 0
    assert len(wire.finished) == (when == "meanwhile")


# -- the fast path


class Path:
    """A path for calls that are like one before: it sends them if it `takes` them."""

    def __init__(self) -> None:
        self.takes, self.is_over = True, False
        self.begun: list[CallValues] = []
        self.made_of: list[Request] = []
        self.connection: Any = None
        self.leaves = 0

    def of(self, request: Request, quiet_after_s: float) -> "Path":
        self.made_of.append(request)
        return self

    def begin(
        self,
        connection: AnsweringConnection,
        body: bytes,
        values: CallValues,
        trace: bytes = b"",
        correlation: str = "",
    ) -> CallInFlight | None:
        self.connection = connection
        if self.takes:
            self.begun.append(values)
        return self if self.takes else None

    def fall_back(self) -> None:
        self.leaves += 1
        self.connection.fall_back(monotonic(), self.usual)

    usual: Any = None


def a_body(client_id: int = 1, tool: str = "a", arguments: bytes = b"{}") -> bytes:
    call = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%b","arguments":%b}}'
    return call % (client_id, tool.encode(), arguments)


class FastWire(Wire):
    """A connection whose calls leave a path, once they were answered."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path()
        self.path.usual = self.usual

    def usual(self, request: Request) -> Answer:
        self.path.made_of.append(request)
        return cast("Answer", self.answer)

    async def call(self, request: Request) -> Answer:
        assert request.offer is not None
        request.offer.make(self.path.of)
        self.replies = self.answer.replies = ReplyQueue()
        self.replies.push(FINAL)
        return await super().call(request)

    def post(self, body: bytes, cut: int = 0) -> bool:
        data = HEAD.replace(b"%d" % len(BODY), b"%d" % len(body)) + body
        place = len(data) - cut
        return self.repeats.take(data[:place]) and (not cut or self.repeats.take(data[place:]))

    async def warm(self) -> "FastWire":
        """Answer a call, like which the next ones are sent."""
        self.learn()
        assert self.post(a_body())
        await self.settled()
        assert self.counts["direct"] == self.calls == 1 and len(self.path.made_of) == 1
        self.written, self.replies = b"", ReplyQueue()
        self.answer.replies = self.replies
        return self


@requirement("fast.same", "fast.falls-back")
@pytest.mark.parametrize("cut", [0, 3, len(a_body(7))])
async def test_a_call_like_the_last_one_is_sent_by_its_path_and_answered_once_its_client_reads(cut: int) -> None:
    wire = await FastWire().warm()
    assert wire.post(a_body(7, arguments=b'{"n":1}'), cut) and wire.repeats.is_answering
    assert wire.path.begun == [(b"7", b"", b'{"n":1}')] and wire.calls == 1
    wire.write_paused = True
    assert not wire.path.connection.answer_fast(b"{}", []) and not wire.written and wire.repeats.is_answering
    wire.write_paused = False
    assert wire.path.connection.answer_fast(b"{}", []) and wire.written == WRITTEN
    assert wire.counts["fast"] == 1 and wire.total_requests == 2 and not wire.repeats.is_answering
    assert not wire.path.connection.answer_fast(b"{}", []) and wire.written == WRITTEN, "once"
    assert wire.post(a_body(8)) and len(wire.path.begun) == 2, "and so is the next one"


@requirement("fast.same")
async def test_an_answer_behind_other_messages_is_written_as_one_event_stream() -> None:
    wire = await FastWire().warm()
    assert wire.post(a_body(7))
    frames = [Frame(b'{"n":1}'), FINAL]
    connection = wire.path.connection
    assert not connection.stream_fast(frames, lambda _: None, []), "the store has to be asked first"
    assert not connection.stream_fast([Frame(b"0" * (64 << 10)), FINAL], ids_of, []), "too much for one write"
    wire.write_paused = True
    assert not connection.stream_fast(frames, ids_of, []) and wire.repeats.is_answering and not wire.written
    wire.write_paused = False
    assert connection.stream_fast(frames, ids_of, [(b"a", b"b")])
    head, body = wire.written.split(b"\r\n\r\n", 1)
    assert b"content-type: text/event-stream\r\n" in head and b"\r\na: b\r\n" in head
    first, second, last = body.split(b"\r\n")[1].strip().split(b"\n\n")
    assert (first, second) == (b"id: 0\nretry: 500\ndata: ", b'id: 1\nevent: message\ndata: {"n":1}')
    assert last == b"id: 2\nevent: message\ndata: {}" and wire.written.endswith(b"\r\n0\r\n\r\n")
    assert wire.counts["fast"] == 1 and not wire.repeats.is_answering
    assert not connection.stream_fast(frames, ids_of, []), "once"


def ids_of(frames: Sequence[Frame]) -> list[str | None]:
    return [str(number) for number in range(len(frames))]


@requirement("fast.falls-back")
@pytest.mark.parametrize("why", ["other tool", "path", "over"])
async def test_a_call_that_its_path_does_not_take_is_served_in_the_usual_way(why: str) -> None:
    wire = await FastWire().warm()
    wire.path.takes, wire.path.is_over = why == "other tool", why == "over"
    body = a_body(2, "b" if why == "other tool" else "a")
    assert wire.post(body)
    await wire.settled()
    assert wire.calls == 2 and wire.counts["fast"] == 0
    wire.path.takes = True
    assert wire.post(body) and wire.calls == 2, "another path was made of it"


@requirement("fast.falls-back")
@pytest.mark.parametrize("body", [a_body(), a_body().replace(b',"arguments":{}', b"")], ids=["arguments", "none"])
async def test_a_call_that_its_path_does_not_take_leaves_no_second_path(body: bytes) -> None:
    wire = FastWire()
    wire.learn()
    for _ in range(3):
        assert wire.post(body)
        await wire.settled()
        wire.path.takes = False
    assert wire.calls == 3 and len(wire.path.made_of) == 1


@requirement("fast.falls-back")
@pytest.mark.parametrize("leaves", ["path", "next request", "client"])
async def test_a_call_that_leaves_goes_on_with_the_answer_that_it_gets(leaves: str) -> None:
    wire = await FastWire().warm()
    assert wire.post(a_body(7), cut=5)
    match leaves:
        case "path":
            wire.path.fall_back()
        case "next request":
            assert not wire.repeats.take(HEAD)
        case _:
            wire.repeats.forget()
    assert wire.path.leaves == 1 and wire.calls == 1, "it was sent already"
    message = wire.path.made_of[-1].message
    assert message is not None and message.id == 7
    if leaves == "path":
        wire.replies.push(FINAL)
        await wire.settled()
        assert wire.written == WRITTEN and wire.counts["direct"] == 2 and wire.ends == 2
    else:
        await wire.settled()
        (begun,) = wire.finished
        assert await begun.called() is wire.answer and not wire.written


@requirement("fast.falls-back")
async def test_a_call_that_cannot_go_on_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    wire = await FastWire().warm()
    assert wire.post(a_body(7))
    wire.path.usual = lambda request: 1 / 0
    wire.path.fall_back()
    assert wire.closes == 1 and not wire.repeats.is_answering and "cannot go on" in caplog.text
    wire.repeats.forget()
    assert wire.path.leaves == 1 and wire.calls == 1


@requirement("fast.same")
async def test_a_client_whose_calls_are_never_alike_costs_few_templates_and_one_with_some_tools_none() -> None:
    wire = await FastWire().warm()
    for turn in range(20):
        assert wire.post(a_body(2, f"tool-{turn}"))
        await wire.settled()
    assert len(wire.path.made_of) == 8
    wire = await FastWire().warm()
    for tool in "bcd" + "abcd" * 5:
        before = len(wire.path.begun)
        assert wire.post(a_body(2, tool))
        if len(wire.path.begun) > before:
            assert wire.path.connection.answer_fast(b"{}", [])
        await wire.settled()
    assert len(wire.path.made_of) == 4 and len(wire.path.begun) == 20


DATE: HeaderList = [(b"date", b"Sun, 22 Nov 2026 00:00:00 GMT"), (b"X-Of-Config", b"a b")]


async def of_uvicorn(status: int, defaults: HeaderList, headers: HeaderList, body: bytes) -> bytes:
    written = bytearray()
    transport: Any = SimpleNamespace(write=written.extend)
    flow: Any = SimpleNamespace(write_paused=False)
    cycle = RequestResponseCycle(
        scope={"method": "POST"},  # type: ignore[typeddict-item]  # what the writing reads
        transport=transport,
        flow=flow,
        logger=logging.getLogger(),
        access_logger=logging.getLogger(),
        access_log=False,
        default_headers=defaults,
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )
    await send_json(cycle.send, status, body, headers)  # type: ignore[arg-type]  # of other names for the same
    return bytes(written)


@pytest.mark.parametrize("status", [200, 400, 404])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"Mcp-Session-Id", b"t")],
        [(b"set-cookie", b"a=b; Path=/"), (b"set-cookie", b"c=d"), (b"vary", b"Origin"), (b"x", b"\xe9")],
    ],
)
async def test_a_response_has_the_bytes_of_uvicorn(status: int, headers: HeaderList) -> None:
    made = JsonHeads()
    for body in (b"{}", b"", b"x" * 100_000):
        expected = await of_uvicorn(status, DATE, headers, body)
        for _ in range(2):  # the second time from what was kept
            head = made.head(status, DATE, headers, len(body))
            assert head is not None and head + body == expected


async def test_what_changes_is_made_anew() -> None:
    made, later = JsonHeads(), [(b"date", b"later")]
    for status, defaults, headers in (
        *((200, DATE, []), (200, later, []), (400, later, []), (200, later, [(b"a", b"b")])),
        *((200, later, [(b"a", b"c")]), (200, [*later], [(b"a", b"c")]), (200, later, [])),
    ):
        assert made.head(status, defaults, headers, 0) == await of_uvicorn(status, defaults, headers, b"")


@requirement("wall.framing")
@pytest.mark.parametrize(
    "header",
    [
        *((name, b"x") for name in (b"connection", b"Connection", b"content-length", b"Transfer-Encoding")),
        *((b"x", value) for value in (b"a\r\nb: c", b"a\nb", b"\x00", b"\x7f")),
        *((name, b"x") for name in (b"a b", b"a:", b"a\r\n", b"\x00")),
    ],
)
def test_headers_that_uvicorn_has_to_judge_are_left_to_it(header: tuple[bytes, bytes]) -> None:
    assert JsonHeads().head(200, DATE, [header], 2) is None
    assert JsonHeads().head(200, [header], [], 2) is None
