"""What goes wrong while a request is served from memory ends neither the connection nor the answer."""

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from tests.requirements import requirement
from transports.inbound.begun_post import BegunPost, RepeatedHead
from transports.inbound.connection_memory import ConnectionMemory
from transports.inbound.head_offer import REPEATS
from transports.inbound.http import Guard
from transports.inbound.limits import Limits, Refusals
from transports.inbound.posts import Posts
from transports.inbound.repeats import Repeats
from transports.inbound.sizes import Sizes
from transports.inbound_port import Answer, Request
from transports.reply_queue import Frame, ReplyQueue
from transports.soon import Soon, arrived

pytestmark = pytest.mark.anyio

BODY = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HEAD = b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BODY)
HEADERS = [(b"host", b"a"), (b"content-length", b"%d" % len(BODY))]


class _Answer:
    is_doubtful = False
    ends = 0
    fault: Exception | None = None

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.replies = ReplyQueue()

    def cancel(self, reason: str) -> None:
        """Nothing is cancelled here."""

    def done(self) -> Soon[None]:
        self.ends += 1
        if self.fault is not None:
            raise self.fault
        return None


class _Endpoint:
    """Answers each request with `answer`, or with a coroutine if `later` is set."""

    later: asyncio.Event | None = None
    calls = 0

    def __init__(self) -> None:
        self.answer = _Answer()
        self.finished: list[BegunPost] = []

    def call(self, request: Request) -> Soon[Answer]:
        self.calls += 1
        answer = cast("Answer", self.answer)
        return answer if self.later is None else self._after(self.later, answer)

    async def _after(self, later: asyncio.Event, answer: Answer) -> Answer:
        await later.wait()
        return answer

    def quiet_after_s(self, request: Request) -> float:
        return 10.0

    def status_of(self, request: Request, frame: Frame) -> int:
        return 200

    async def finish(self, begun: BegunPost, scope: Any, receive: Any, send: Any) -> None:
        self.finished.append(begun)


class _Connection:
    """Parses nothing: it notes what it is given, and takes over what was begun if `starts` is set."""

    write_paused = False
    starts = True
    serves = True
    written = b""
    responses = 0

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.flow = self.transport = self.server_state = cast("Any", self)
        self.default_headers: list[tuple[bytes, bytes]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.parsed: list[bytes] = []
        self.counts = Counter[str]()
        self.endpoint = _Endpoint()
        self.answer = self.endpoint.answer
        self.repeats = Repeats(self, ConnectionMemory(self.counts, lambda: self.serves, Limits()))

    def is_between_requests(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return False

    def answered(self) -> None:
        self.responses += 1

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
        posts = Posts("/mcp", Guard(), Sizes(Limits(), Refusals()))
        scope: dict[str, Any] = {"headers": HEADERS, "client": None}
        head = posts.head(scope, {"host": "a"})
        for _ in range(2):
            assert not self.repeats.take(HEAD + BODY)
            self.repeats.parsed(scope, HEADERS)
            scope.pop(REPEATS).remember(lambda: RepeatedHead(cast("Any", self.endpoint), posts, head, []))
        self.parsed.clear()

    def take(self) -> bool:
        """Get the request once more. Whether it is served from memory."""
        return self.repeats.take(HEAD + BODY)

    async def settled(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)


@pytest.fixture
async def connection() -> _Connection:
    """One that remembers the head."""
    connection = _Connection()
    connection.learn()
    return connection


FINAL = Frame(b"{}", final=True)
WRITTEN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@requirement("hot.memory")
async def test_an_answer_is_written_once_and_its_end_is_reported_once(connection: _Connection) -> None:
    assert connection.repeats.take(HEAD + BODY[:3]) and connection.repeats.received == 3
    assert connection.repeats.take(BODY[3:]) and connection.repeats.received is None and connection.repeats.is_answering
    connection.answer.replies.push(FINAL)
    assert not connection.written, "an answer is not written while its server's messages are read"
    await connection.settled()
    assert connection.written == WRITTEN and connection.responses == connection.answer.ends == 1
    assert not connection.repeats.is_answering and not connection.parsed


@requirement("hot.memory")
async def test_a_fault_at_the_end_of_an_answer_harms_nobody(
    connection: _Connection, caplog: pytest.LogCaptureFixture
) -> None:
    connection.answer.fault = RuntimeError("broken")
    connection.answer.replies.push(FINAL)
    assert connection.take()
    assert connection.written == WRITTEN and connection.answer.ends == 1
    assert "could not be recorded" in caplog.text
    assert connection.take(), "the next request is served"


@requirement("hot.memory")
async def test_what_cannot_be_written_at_once_goes_on_with_what_was_begun(
    connection: _Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BegunPost, "status", lambda self, frame: 1 / 0)
    connection.answer.replies.push(FINAL)
    assert connection.take()
    await connection.settled()
    assert connection.parsed == [HEAD + BODY] and not connection.written
    assert len(connection.endpoint.finished) == connection.endpoint.calls == 1, "the handler was called once"


@requirement("hot.memory")
@pytest.mark.parametrize("is_late", [False, True])
async def test_what_was_begun_ends_even_if_no_task_takes_it(
    connection: _Connection, is_late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    connection.starts = False
    later = connection.endpoint.later = asyncio.Event() if is_late else None
    assert connection.take()
    await connection.settled()
    connection.repeats.forget()
    if later is not None:
        later.set()
    await connection.settled()
    assert connection.answer.ends == 1 and not connection.tasks and "cannot be parsed" in caplog.text


@requirement("hot.memory")
async def test_an_answer_that_comes_later_is_written_from_memory(connection: _Connection) -> None:
    later = connection.endpoint.later = asyncio.Event()
    assert connection.take() and connection.repeats.is_answering
    await connection.settled()
    later.set()
    await connection.settled()
    connection.answer.replies.push(FINAL)
    await connection.settled()
    assert connection.written == WRITTEN and not connection.tasks and connection.counts["direct"] == 1


@requirement("hot.memory")
@pytest.mark.parametrize("was_decided", [False, True])
async def test_a_client_that_leaves_hands_over_what_waits(connection: _Connection, was_decided: bool) -> None:
    later = connection.endpoint.later = asyncio.Event()
    assert connection.take()
    await connection.settled()
    if was_decided:
        later.set()
        await asyncio.sleep(0)
    connection.repeats.forget()
    later.set()
    await connection.settled()
    (begun,) = connection.endpoint.finished
    assert cast("Any", await arrived(begun.called())) is connection.answer
    connection.answer.replies.push(FINAL)
    await connection.settled()
    assert not connection.written and connection.answer.ends == 0, "the task will end it"


@requirement("hot.memory")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_client_that_reads_slowly_is_written_to_by_its_task(connection: _Connection, when: str) -> None:
    connection.write_paused = when == "before"
    assert connection.take() is (when == "meanwhile")
    connection.write_paused = True
    connection.answer.replies.push(FINAL)
    await connection.settled()
    assert not connection.written and connection.counts["direct"] == 0
    assert len(connection.endpoint.finished) == (when == "meanwhile")


@requirement("hot.memory")
async def test_nothing_is_taken_from_memory_while_the_process_hands_over(connection: _Connection) -> None:
    connection.serves = False
    assert not connection.take()
    connection.serves = True
    assert connection.take()
