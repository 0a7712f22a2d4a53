"""The life of a link: opened once, replaced when lost, closed when idle, and never two at a time."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest

from gateway.calls.lifecycles import Deadlines, LinkState
from gateway.calls.link_manager import LinkLifecycle, LinkUser, LinkUsers
from gateway.calls.server_start_failures import (
    MOST_LINES,
    MOST_S,
    Backoff,
    FirstAnswerTimeout,
    newest,
    with_output_tail,
)
from gateway.context.resources_for_links import LinkResources
from gateway.errors import OutOfMemory, StartRefused
from gateway.protocol.handshake import HandshakeRefused
from tests.requirements import requirement
from tests.support.fake_upstream import FakeLink, FakeUpstream, a_live
from tests.support.virtual_time import skip_waits
from tests.unit.calls.parts import turns, until
from transports.era import Era
from transports.jsonrpc import Message, encode, parse
from transports.upstream_port import ConnectOptions, Link, LinkClosed, LinkEvents, LinkFull, UpstreamUnavailable


class HeldLink(FakeLink):
    """Closes once it may."""

    resume = "its session"
    may_forget = False

    def __init__(self, user: "User", source: "Source") -> None:
        super().__init__(cast("LinkEvents", user))
        self.output_tail = ["a line"]
        self.may_close = asyncio.Event()
        self.may_close.set()
        self._source = source
        source.open_links += 1
        assert source.open_links == 1, "there are two links"

    async def close(self) -> None:
        await self.may_close.wait()
        self.end()

    def end(self) -> None:
        self._source.open_links -= 1
        self.events.closed("it ended")


class User:
    """Answers the handshake itself, and has calls when the test says so."""

    def __init__(self) -> None:
        self.has_calls = False
        self.answer = parse(b'{"jsonrpc":"2.0","id":1,"result":{"serverInfo":{}}}')
        self.reasons: list[str] = []
        self.greeted: list[Link | None] = []  # the link that the client's notifications may have used, at each request
        self.stops = 0
        self.turns: list[bool] = []
        self.links: LinkLifecycle

    @property
    def is_idle(self) -> bool:
        return not self.has_calls

    async def ask(self, method: str, params: bytes | None) -> Message:
        self.greeted.append(self.links.greeted)
        self.links.require().send(encode([method]))
        await asyncio.sleep(0)
        self.links.require()
        return self.answer

    def restarted(self, reason: str) -> None:
        self.reasons.append(reason)

    def link_changed(self) -> None:
        self.turns.append(self.links.is_open)

    def stopped(self) -> None:
        self.stops += 1

    def closed(self, reason: str) -> None:
        self.links.lost()

    def put(self, frame: bytes) -> None:
        self.links.require().send(frame)


class Source(FakeUpstream):
    """Opens links once it may, and counts them."""

    def __init__(self, user: User, era: Era = Era.LEGACY) -> None:
        super().__init__()
        self.user = user
        self.era = era
        self.open_links = 0
        self.made: list[HeldLink] = []
        self.given: list[ConnectOptions] = []
        self.options = ConnectOptions()
        self.resumable: list[str] = []
        self.restarts: Counter[str] = Counter()
        self.taken_back = 0
        self.failure: Exception | None = None
        self.tried = 0
        self.may_connect = asyncio.Event()
        self.may_connect.set()

    async def resources(self) -> LinkResources:
        def close() -> None:
            self.taken_back += 1

        return LinkResources(given=self.options, close=close)

    async def connect(self, options: ConnectOptions, events: LinkEvents) -> Link:
        self.tried += 1
        await self.may_connect.wait()
        if self.failure is not None:
            raise self.failure
        self.given.append(options)
        self.made.append(HeldLink(self.user, self))
        return self.made[-1]

    def handshake(self) -> bytes | None:
        return b"{}" if self.era is Era.LEGACY else None

    def known_handshake(self) -> bytes | None:
        return b'{"known":true}'

    def replay(self) -> list[bytes]:
        return [b'"initialized"']

    async def remote_session_changed(self, resume: str) -> None:
        self.resumable.append(resume)

    def restarted(self, reason: str) -> None:
        self.restarts[reason] += 1


def lifecycle(
    era: Era = Era.LEGACY, *, start_s: float = 5.0, idle_stop_s: float | None = None
) -> tuple[LinkLifecycle, Source, User]:
    user = User()
    source = Source(user, era)
    deadlines = Deadlines(start_s=start_s, call_s=5.0, suspended_s=5.0, idle_stop_s=None)
    user.links = LinkLifecycle(source, cast("LinkUser", user), deadlines, idle_stop_s=idle_stop_s)
    return user.links, source, user


async def test_concurrent_callers_share_one_opening_and_its_handshake() -> None:
    links, source, user = lifecycle()
    source.may_connect.clear()
    impatient, *patient = [asyncio.create_task(links.ready()) for _ in range(3)]
    await turns()
    impatient.cancel()
    await turns()
    source.may_connect.set()
    await asyncio.gather(*patient)
    assert impatient.cancelled(), "and it does not end the opening"
    assert links.is_open and len(source.made) == 1
    assert source.made[0].sent == [["initialize"], "initialized"]
    assert links.initialize_result == b'{"serverInfo":{}}' and source.resumable == ["its session"]
    assert user.greeted == [None] and links.greeted is source.made[0], "notifications of the client wait for it"


@pytest.mark.parametrize(
    ("era", "resume", "result"), [(Era.MODERN, "", None), (Era.LEGACY, "its session", b'{"known":true}')]
)
async def test_a_modern_link_and_one_that_resumes_a_session_make_no_handshake(
    era: Era, resume: str, result: bytes | None
) -> None:
    links, source, _ = lifecycle(era)
    source.options = ConnectOptions(resume=resume)
    await links.ready()
    assert links.is_open and source.made[0].sent == [] and links.initialize_result == result


@requirement("spec.complete")
async def test_subscriptions_that_are_too_many_for_one_turn_are_restored_as_the_server_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shared server could not be started any more, whoever had subscribed."""
    monkeypatch.setattr("gateway.calls.link_manager.FULL_S", 0.0)
    links, source, user = lifecycle()
    wanted = [b'"%d"' % number for number in range(10)]
    unread: list[bytes] = []

    def put(frame: bytes) -> None:
        if len(unread) == 4:
            unread.clear()
            wanted[0:1] = [b'"added"']
            raise LinkFull("it does not read its input")
        unread.append(frame)
        links.require().send(frame)

    monkeypatch.setattr(source, "replay", lambda: list(wanted))
    monkeypatch.setattr(user, "put", put)
    await links.ready()
    assert source.made[0].sent == [["initialize"], *"0123", "added", *"456789"]


async def test_an_opening_that_fails_leaves_no_link() -> None:
    links, source, user = lifecycle()
    user.answer = parse(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"no"}}')
    with pytest.raises(HandshakeRefused):
        await links.ready()
    assert (links.state, links.link, source.open_links, source.taken_back) == (LinkState.ABSENT, None, 0, 1)

    slow, source, _ = lifecycle(start_s=0.001)
    source.may_connect.clear()
    with pytest.raises(UpstreamUnavailable, match=r"did not start within 0\.001 s"):
        await slow.ready()
    assert slow.state is LinkState.ABSENT

    lost, source, _ = lifecycle()
    opening = asyncio.create_task(lost.ready())
    await until(lambda: bool(source.made))
    source.made[0].end()
    with pytest.raises(UpstreamUnavailable, match="ended while it was starting"):
        await opening
    assert lost.state is LinkState.ABSENT and lost.link is None


@requirement("ops.memory")
async def test_a_refused_start_is_no_failure_to_remember() -> None:
    links, source, _ = lifecycle()
    source.failure = StartRefused(OutOfMemory("s"))
    for _ in range(3):
        with pytest.raises(StartRefused):
            await links.ready()
    assert source.tried == 3, "each caller gets the refusal itself"


@requirement("proc.hang", "proc.backoff")
async def test_a_server_that_cannot_be_reached_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    links, source, _ = lifecycle()
    source.failure = UpstreamUnavailable("no such command")
    for _ in range(3):
        with pytest.raises(UpstreamUnavailable, match="no such command"):
            await links.ready()
    assert source.tried == 1, "the failure of just now is remembered"
    assert links.failures is not None and links.failures.count == 1
    monkeypatch.setattr("gateway.calls.link_manager.JUST_S", 0.0)
    source.failure = None
    await links.ready()
    assert links.is_open and not source.restarts and links.failures is None


async def test_a_crash_is_counted_and_reported_once_the_next_link_is_open() -> None:
    links, source, user = lifecycle()
    await links.ready()
    source.made[0].end()
    assert (links.state, links.output_tail, user.reasons) == (LinkState.ABSENT, ("a line",), [])
    assert links.greeted is None
    with pytest.raises(LinkClosed):
        links.require()
    await links.ready()
    assert (links.restarts, source.restarts, user.reasons) == (1, {"crash": 1}, ["crash"])


async def test_a_forgotten_session_is_not_resumed() -> None:
    links, source, user = lifecycle()
    source.options = ConnectOptions(resume="its session")
    await links.ready()
    old = links.require()
    links.forgotten(old)
    source.open_links = 0
    await links.ready()
    links.forgotten(old)
    assert [options.resume for options in source.given] == ["its session", ""]
    assert links.is_open and user.reasons == ["upstream_session"]


async def test_an_idle_link_is_closed_and_the_next_opening_waits_for_its_end() -> None:
    links, source, user = lifecycle(idle_stop_s=0.0)
    await links.ready()
    source.made[0].may_close.clear()
    await until(lambda: links.state is LinkState.CLOSING)
    assert links.link is None
    opening = asyncio.create_task(links.ready())
    user.has_calls = True
    await turns()
    assert links.state is LinkState.CLOSING and len(source.made) == 1
    source.made[0].may_close.set()
    await opening
    assert links.is_open and user.reasons == ["idle_stop"] and (source.taken_back, user.stops) == (1, 1)
    links.start_idle_timer()
    await turns()
    assert links.is_open, "it has calls"


@requirement("fast.same")
async def test_a_link_that_takes_no_message_is_discarded_once_and_whoever_decides_on_calls_learns_of_each_turn() -> (
    None
):
    links, source, user = lifecycle()
    await links.ready()
    source.made[0].end()
    await links.ready()
    assert user.turns == [True, False, True]
    for _ in range(2):
        links.discard()
        assert (links.state, links.link, user.turns) == (LinkState.CLOSING, None, [True, False, True, False])
    await turns()
    assert (links.state, source.open_links) == (LinkState.ABSENT, 0)
    await links.close()
    assert user.turns == [True, False, True, False], "it was open no longer"


@pytest.mark.parametrize("is_open", [False, True])
async def test_nothing_is_left_after_close_and_nothing_opens_again(is_open: bool) -> None:
    links, source, _ = lifecycle()
    if not is_open:
        source.may_connect.clear()
    opening = asyncio.create_task(links.ready())
    await turns()
    assert links.is_open is is_open
    for _ in range(2):
        await links.close()
    for ready in (links.ready(),) if is_open else (opening, links.ready()):
        with pytest.raises(UpstreamUnavailable, match="has ended"):
            await ready
    assert (links.state, links.link, source.open_links, source.taken_back) == (LinkState.ENDED, None, 0, 1)
    assert len(source.made) == int(is_open)


@requirement("cli.idle")
async def test_the_time_until_an_idle_link_is_closed_can_change() -> None:
    links, _, user = lifecycle(idle_stop_s=60.0)
    await links.ready()
    links.stop_idle_after(0.0)
    links.stop_idle_after(None)
    await turns()
    assert links.is_open, "its timer is off"
    links.stop_idle_after(0.0)
    await until(lambda: links.state is LinkState.ABSENT)
    links.stop_idle_after(None)
    await links.ready()
    await turns()
    assert links.is_open and user.reasons == ["idle_stop"]


class Timers:
    """The timers of a loop, and its clock. Each is `(when, callback)`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.made: list[tuple[float, Callable[[], None]]] = []
        self.cancelled = 0
        patch.setattr("gateway.calls.link_manager.monotonic", lambda: self.now)
        patch.setattr(asyncio.get_running_loop(), "call_later", self._later)

    def _later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.made.append((self.now + delay_s, callback))
        return cast("asyncio.TimerHandle", self)

    def cancel(self) -> None:
        self.cancelled += 1

    def fire(self) -> None:
        """The time of the last timer has come."""
        when, callback = self.made[-1]
        self.now = max(self.now, when)
        callback()


async def idle_link(patch: pytest.MonkeyPatch) -> tuple[LinkLifecycle, User, Timers]:
    """An open link that is closed after a minute without calls."""
    links, _, user = lifecycle(idle_stop_s=60.0)
    await links.ready()
    links.stop_idle_after(None)
    timers = Timers(patch)
    links.stop_idle_after(60.0)
    return links, user, timers


@requirement("fast.same", "cli.idle")
async def test_a_link_is_closed_when_it_was_idle_since_its_last_call_and_no_call_makes_a_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links, _, timers = await idle_link(monkeypatch)
    for _ in range(100):
        timers.now += 0.5
        links.start_idle_timer()
    assert len(timers.made) == 1 and timers.cancelled == 0
    timers.fire()
    assert links.is_open and [when for when, _ in timers.made] == [1_060.0, 1_110.0], "a minute after the last call"
    timers.fire()
    await turns()
    assert links.state is LinkState.ABSENT and len(timers.made) == 2


@requirement("fast.same", "cli.idle")
async def test_a_call_that_outlasts_the_timer_keeps_its_link_and_begins_the_time_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links, user, timers = await idle_link(monkeypatch)
    user.has_calls = True
    timers.fire()
    assert links.is_open and len(timers.made) == 1, "nothing is to be stopped while there is a call"
    user.has_calls, timers.now = False, 5_000.0
    links.start_idle_timer()
    assert timers.made[-1][0] == 5_060.0
    timers.fire()
    await turns()
    assert links.state is LinkState.ABSENT


def test_every_user_learns_once_that_the_server_was_restarted() -> None:
    users, first, second, over = LinkUsers(), a_live(), a_live(), a_live()
    for user in (first, None, over):
        users.add(user)
    users.restarted("crash")
    users.add(second)
    users.discard(over)
    assert [users.take_notice(user) for user in (first, None, second, over)] == ["crash", "crash", None, None]
    assert users.take_notice(first) is None
    assert first in users and over not in users and set(users) == {first, second, None}
    users.notify(first, "gateway_restart")
    users.notify(first, "context")
    assert users.has_notice(first) and not users.has_notice(second)
    assert users.take_notice(first) == "gateway_restart", "the reason that waits already stands"


# -- starts of servers


@requirement("proc.backoff")
def test_the_time_to_the_next_attempt_doubles_and_is_bounded() -> None:
    failures = Backoff()
    assert failures.left_s(0.0) == failures.delay_s == 0.0
    delays = []
    for _ in range(10_000):
        failures.fail("it exited", 100.0)
        delays.append(failures.delay_s)
    assert delays[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, MOST_S] and set(delays[7:]) == {MOST_S}
    assert failures.left_s(130.0) == MOST_S - 30.0 and failures.left_s(1_000.0) == 0.0


@requirement("proc.garbage")
async def test_the_first_line_that_is_no_message_shortens_the_time_to_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeout, clock = FirstAnswerTimeout(5.0), skip_waits(monkeypatch)
    began = clock()
    with pytest.raises(TimeoutError):
        async with timeout.within(30.0):
            for _ in range(6):
                timeout.noise()  # later lines do not prolong it
                await asyncio.sleep(0)
            await asyncio.Event().wait()
    assert clock() - began == pytest.approx(5.0)
    assert timeout.late("files", 30.0) == (
        "server 'files' writes lines to stdout that are not MCP messages, and did not answer within 5 s"
    )


async def test_it_never_prolongs_the_time_and_counts_from_each_beginning() -> None:
    timeout = FirstAnswerTimeout(30.0)
    with pytest.raises(TimeoutError):
        async with timeout.within(0.01):
            timeout.noise()
            await asyncio.Event().wait()
    async with timeout.within(5.0):
        assert not timeout.is_noisy
    timeout.noise()  # of a server that has answered
    assert not timeout.is_noisy and timeout.late("files", 5.0) == "server 'files' did not start within 5 s"


@requirement("proc.last-words")
def test_the_last_line_with_text_is_quoted_and_cut() -> None:
    assert with_output_tail("it exited", []) == with_output_tail("it exited", ["", "  "]) == "it exited"
    lines = ["Traceback (most recent call last):", "ValueError: no such index", ""]
    assert with_output_tail("it exited", lines) == "it exited; its last output: 'ValueError: no such index'"
    assert len(with_output_tail("it exited", ["x" * 5_000])) < 250
    assert "\n" not in with_output_tail("it exited", ["a\rb\x1b[31m\n"]), "control characters are escaped"


@requirement("proc.last-words")
def test_what_is_kept_has_the_cause_of_a_traceback_and_a_bound() -> None:
    cause = "PermissionError: [Errno 13] Permission denied: '/srv/secret'"
    lines = ["an early line", *(["older"] * 30), cause, *(f"  at frame {number}" for number in range(30)), "ToolError"]
    assert cause in newest(lines) and newest(lines)[-1] == "ToolError" and len(newest(lines)) == MOST_LINES
    long = ["x" * 500] * 100
    assert sum(map(len, newest(long))) <= 8 << 10 and newest(["y" * 20_000]) == ["y" * 20_000]
    assert newest([]) == [] and newest(["a", "b", "c"], 2) == ["b", "c"]
