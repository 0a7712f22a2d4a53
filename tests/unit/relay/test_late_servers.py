"""Answers of several servers do not wait for a late one, and their client hears when it is up."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.exchange import Exchange
from gateway.calls.link_manager import LinkUsers
from gateway.calls.received_lists import Lists
from gateway.calls.server_start_failures import Backoff, with_output_tail
from gateway.errors import OutOfMemory
from gateway.protocol.subscription_filter import Filter, SubscriptionFilter
from gateway.relay import late_servers, subscriptions
from gateway.relay.late_servers import Asker, Gathered, LateServers
from gateway.relay.subscriptions import listen
from gateway.upstreams.server_facts import STARTING
from tests.requirements import requirement
from tests.support.paged_server import OneServer
from tests.support.virtual_time import skip_waits
from tests.unit.calls.parts import turns, until
from tests.unit.relay.parts import a_live
from transports.era import Era
from transports.jsonrpc import InvalidMessage, Message, Object, encode, encode_notification
from transports.reply_queue import ReplyQueue
from transports.upstream_port import UpstreamUnavailable

pytestmark = requirement("proc.late")

WAIT_S = 0.05
TOOLS = [{"name": "x"}]
NOBODY = Asker(None, Era.MODERN, None, "c")


class Server(OneServer):
    """A server, its conversation and its lists. It answers once `up` is set."""

    probed_tools = None

    def __init__(self, name: str, *, is_up: bool = True) -> None:
        self.name = name
        self.up = self.answered = asyncio.Event()
        if is_up:
            self.up.set()
        self.lists = self.known_lists = Lists(lambda: None)
        self.asked = 0
        self.failures = Backoff()

    @property
    def has_answered(self) -> bool:
        return self.up.is_set()

    @property
    def is_failing(self) -> bool:  # type: ignore[override]  # a fake
        return self.failures.count > 0

    def is_open_to(self, live: Any) -> bool:
        return False

    async def ready(self) -> None:
        await self.up.wait()

    async def ask(self, method: str, params: bytes) -> Message:
        return Message(jsonrpc="2.0", id=1, result=msgspec.Raw(encode({"tools": TOOLS})))

    async def page(self) -> str:
        self.asked += 1
        await self.up.wait()
        return self.name


async def listed(
    late: LateServers, *servers: Server, asker: Asker = NOBODY, page: Callable[[Any], Any] = Server.page
) -> Gathered[str]:
    return await late.gather(cast("Any", servers), asker, page, method="tools/list")


def of_a_session() -> Asker:
    """On behalf of a session."""
    return Asker(a_live(era="modern"), Era.MODERN, None, "c")


@pytest.fixture
async def late() -> AsyncIterator[LateServers]:
    found = LateServers(wait_s=WAIT_S, read_s=5)
    yield found
    await found.close()


class Listener:
    """An open `subscriptions/listen` of a modern client."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.filter = SubscriptionFilter(7, Filter(kinds=frozenset({"toolsListChanged"})), self._receive)
        self.filter.acknowledge(self.filter.wanted)
        self.frames.clear()

    def _receive(self, frame: bytes) -> None:
        self.frames.append(msgspec.json.decode(frame)["method"])


@requirement("proc.hang")
async def test_an_answer_comes_without_a_late_server_and_its_client_hears_of_it_once(
    late: LateServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = skip_waits(monkeypatch)
    good, slow, listener = Server("a"), Server("b", is_up=False), Listener()
    late.add(listener.filter)
    first = await listed(late, good, slow)
    assert first.answers == {"a": "a"}
    assert [(entry.server, entry.reason, entry.retry_s) for entry in first.missing] == [("b", STARTING, None)]
    before = clock()
    again = await listed(late, good, slow)
    assert again.answers == {"a": "a"} and slow.asked == 1 and clock() == before, "nobody waits for it a second time"
    slow.up.set()
    await until(lambda: listener.frames)
    assert listener.frames == ["notifications/tools/list_changed"]
    assert (await listed(late, good, slow)).answers == {"a": "a", "b": "b"} and len(listener.frames) == 1


async def test_a_server_that_is_left_out_is_missing_since_it_was_first_asked_for(
    late: LateServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Server("b", is_up=False)
    out.is_left_out = True
    out.failures.fail("left out", inf)
    monkeypatch.setattr(late_servers, "time", count(1_000.0).__next__)
    found = [(await listed(late, out)).missing[0].since for _ in range(3)]
    assert found == [1_000.0] * 3


@requirement("proc.backoff")
async def test_a_failure_is_reported_with_the_time_of_the_next_attempt(late: LateServers) -> None:
    errors: list[Exception] = [UpstreamUnavailable("no such command"), ValueError("a bug")]

    async def fails(_: Any) -> str:
        raise errors.pop(0)

    found = await listed(late, Server("b", is_up=False), page=fails)
    assert [entry.reason for entry in found.missing] == ["no such command"] and found.missing[0].retry_s is not None
    assert isinstance(found.failures["b"], UpstreamUnavailable)
    with pytest.raises(ValueError, match="a bug"):
        await listed(late, Server("a"), page=fails)


@pytest.mark.parametrize("error", [msgspec.DecodeError("1e400"), RecursionError(), InvalidMessage(0, "too deep")])
async def test_a_server_whose_answer_cannot_be_read_is_missing_and_the_others_are_listed(
    late: LateServers, error: Exception
) -> None:
    async def page(server: Any) -> str:
        if server.name == "b":
            raise error
        return str(server.name)

    found = await listed(late, Server("a"), Server("b"), page=page)
    assert found.answers == {"a": "a"} and "cannot be read" in found.missing[0].reason


@requirement("ops.memory")
async def test_a_server_without_memory_for_its_process_is_missing_and_the_others_are_listed(late: LateServers) -> None:
    async def page(server: Any) -> str:
        if server.name == "b":
            raise OutOfMemory("b")
        return str(server.name)

    found = await listed(late, Server("a"), Server("b", is_up=False), page=page, asker=of_a_session())
    assert found.answers == {"a": "a"}
    assert [(entry.server, "more memory" in entry.reason) for entry in found.missing] == [("b", True)]


async def test_sessions_whose_processes_fail_in_their_own_words_do_not_fill_the_log(
    late: LateServers, caplog: pytest.LogCaptureFixture
) -> None:
    bad, attempts = Server("b", is_up=False), count()

    class Gone:
        """A session that has just ended, so that no server is followed for it."""

        ended = True

    async def fails(_: Any) -> str:
        raise UpstreamUnavailable(with_output_tail("it exited", [f"pid {next(attempts)}"]))

    for _ in range(10):
        await late.gather(cast("Any", [bad]), Asker(cast("Any", Gone()), Era.MODERN, None, "c"), fails)
    assert [line for line in caplog.messages if "without server" in line] == [
        "answers for all servers come without server b: it exited"
    ]


async def test_servers_that_are_starting_are_logged_in_one_line_which_is_no_warning(
    late: LateServers, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        await listed(late, Server("a", is_up=False), Server("b", is_up=False), asker=of_a_session())
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "answers for all servers come without servers a, b: it has not answered yet")
    ]


async def test_a_list_that_came_too_late_is_used_while_the_server_is_too_slow(late: LateServers) -> None:
    slow, listener = Server("a"), Listener()
    late.add(listener.filter)

    async def never(_: Any) -> str:
        await asyncio.Event().wait()
        return ""

    assert len((await listed(late, slow, page=never)).missing) == 1
    await until(lambda: listener.frames)
    second = await listed(late, slow, page=never)
    assert second.known == {"a": TOOLS} and not second.missing
    await late._tasks.settled()
    assert len(listener.frames) == 1, "what the client has is what the server lists"
    slow.lists.forget("tools")
    assert len((await listed(late, slow, page=never)).missing) == 1, "the server has announced a change"


class Waiter:
    """What waits for a server. Its first `failures` attempts to use the server fail."""

    has_ended = False

    def __init__(self, failures: int = 0) -> None:
        self._failures = failures
        self.attempts = 0
        self.has_arrived = False

    async def arrived(self, upstream: Any, conversation: Any) -> None:
        self.attempts += 1
        if self.attempts <= self._failures:
            raise UpstreamUnavailable("it exited")
        self.has_arrived = True


@requirement("spec.cold-listen")
async def test_a_server_that_is_opened_behind_an_answer_is_not_late_for_lists() -> None:
    late, slow, waiter, asker = LateServers(wait_s=5, read_s=5), Server("a", is_up=False), Waiter(), of_a_session()
    late.connect(cast("Any", slow), asker, waiter)
    listing = asyncio.create_task(listed(late, slow, asker=asker))
    await until(lambda: slow.asked)
    slow.up.set()
    await until(lambda: waiter.has_arrived)
    assert (await listing).answers == {"a": "a"}
    await late.close()


@requirement("spec.cold-listen")
async def test_what_waits_for_a_server_that_fails_again_waits_for_the_next_attempt(late: LateServers) -> None:
    waiter = Waiter(failures=1)
    late.connect(cast("Any", Server("a")), of_a_session(), waiter)
    await until(lambda: waiter.has_arrived)
    assert waiter.attempts == 2


ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}


class Heard(OneServer):
    """A server that is up, and its conversation. It confirms nothing by itself: `pending` has the subscription at a
    modern one, and the answer to that at a legacy one."""

    known_capabilities = CAPABILITIES

    def __init__(self, era: Era) -> None:
        self.era = era
        self.initialize_result = encode({"capabilities": CAPABILITIES})
        self.pending: asyncio.Queue[Any] = asyncio.Queue()
        self.requested: list[str] = []
        self.users = LinkUsers()

    async def start(self, exchange: Exchange, params: Any, meta: Any) -> None:
        self.pending.put_nowait(exchange)

    def future_answer(self, method: str, params: bytes) -> asyncio.Future[Message]:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.pending.put_nowait(answer)
        return answer

    def request(self, method: str, params: bytes) -> None:
        self.requested.append(method)

    def confirm(self, pending: Any) -> None:
        if self.era is Era.MODERN:
            assert pending.take_acknowledgement()
        else:
            pending.set_result(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(b"{}")))


class Listening:
    """A client that listens at a server."""

    def __init__(self, server: Heard, uris: Sequence[str] = ("a",)) -> None:
        self.live = a_live(era="modern")
        self.replies = ReplyQueue()
        self.exchange = Exchange(method="subscriptions/listen", client_id=7, live=self.live, replies=self.replies)
        wanted = {"toolsListChanged": True, "resourceSubscriptions": uris}
        params: Object = {"notifications": msgspec.Raw(encode(wanted))}
        call: Any = SimpleNamespace(
            exchange=self.exchange, live=self.live, params=params, era=Era.MODERN, correlation="c"
        )
        late = LateServers(wait_s=5, read_s=5)
        self.acknowledged = asyncio.create_task(listen(cast("Any", [server]), call, late))

    async def got(self, count: int) -> list[Any]:
        """So many frames, which are all that there are."""
        async with asyncio.timeout(60):
            frames = [await self.replies.next() for _ in range(count)]
        assert self.has_nothing
        return [msgspec.json.decode(frame.data)["method"] for frame in frames if frame is not None]

    @property
    def has_nothing(self) -> bool:
        return not self.replies._frames


ERAS = pytest.mark.parametrize("era", [Era.LEGACY, Era.MODERN])


@ERAS
@requirement("spec.cold-listen")
async def test_an_acknowledgement_waits_for_a_server_that_is_up_and_comes_first(era: Era) -> None:
    server = Heard(era)
    client = Listening(server)
    pending = await server.pending.get()
    early = []
    if era is Era.MODERN:
        pending.emit(encode_notification(CHANGED, b"{}"))
        early = [CHANGED]
    await turns()
    assert client.has_nothing
    server.confirm(pending)
    await client.acknowledged
    assert await client.got(1 + len(early)) == [ACKNOWLEDGED, *early]


@ERAS
async def test_what_a_server_may_have_changed_before_it_had_the_subscription_is_notified_of(
    era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "CONFIRM_S", 0.01)
    server = Heard(era)
    client = Listening(server)
    await client.acknowledged
    assert await client.got(1) == [ACKNOWLEDGED]
    server.confirm(await server.pending.get())
    assert await client.got(2) == [CHANGED, UPDATED]
    server = Heard(Era.LEGACY)
    client = Listening(server)
    await client.acknowledged
    client.exchange.done()
    assert (await server.pending.get()).cancelled() and server.requested == ["resources/unsubscribe"]
    assert await client.got(1) == [ACKNOWLEDGED], "a stream that has ended waits for no answer"


@pytest.mark.parametrize("uris", [(), ("a",)])
async def test_the_end_of_a_stream_asks_no_session_of_a_shared_server_that_need_not_be_asked(uris: list[str]) -> None:
    server = Heard(Era.LEGACY)
    for _ in range(500):
        server.users.add(a_live(subscriptions=("a",)))
    client = Listening(server, uris)
    await turns()
    for _ in uris:
        server.confirm(await server.pending.get())
    await client.acknowledged
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, _: calls.update([event]))
    client.exchange.done()
    sys.setprofile(None)
    assert calls["call"] < 100 and not client.live.subscriptions and not server.requested
