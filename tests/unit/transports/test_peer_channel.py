"""Calls on a channel between replicas: shared writes, streams, what is known of lost calls, bounds, faulty peers."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.requirements import requirement
from transports import peer_channel, peer_server
from transports.peer_channel import PeerCall, PeerChannel, PeerConnectionLost, PeerTimedOut, open_channel
from transports.peer_frames import (
    CALL,
    CREDIT_BYTES,
    MAX_CALLS,
    MAX_DEFINITION_BYTES,
    MAX_HEAD_BYTES,
    NUMBER,
    SMALL_BYTES,
    LogLimit,
    PeerFault,
    frame,
)
from transports.peer_server import AnsweringChannel, CallLeft, PeerIncomingCall, PeerServer, Rules

pytestmark = pytest.mark.timeout(60)

KEYS = [b"k" * 32]


def define(packed: bytes) -> bytes:
    if packed == b"bad":
        raise PeerFault("a bad definition")
    return packed


class Common:
    """What calls have in common."""

    def __init__(self, packed: bytes) -> None:
        self.place: Any = None
        self._packed = packed

    def packed(self) -> bytes:
        return self._packed


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - each turn is looked at
        await asyncio.sleep(0)


class Both:
    """Both sides of a channel, and the writes of each."""

    def __init__(self) -> None:
        self.came: list[PeerIncomingCall] = []
        self.left: list[int] = []
        self.cut: list[bool] = []
        self.ended = asyncio.Event()
        self.begin: Callable[[PeerIncomingCall], None] = self.came.append
        self.asking: PeerChannel
        self.answering: AnsweringChannel
        self.reads: list[bytes] = []

    def attend(self, call: PeerIncomingCall) -> None:
        """Begin a call, and note in `left` when its client has left."""
        self.came.append(call)
        call.attend(lambda: self.left.append(call.number))

    async def arrived(self, number: int) -> None:
        await until(lambda: len(self.came) >= number)

    def write(self, data: bytes) -> None:
        """Write these bytes as the asking side."""
        assert self.asking._transport is not None
        self.asking._transport.write(data)

    async def call(self, body: bytes = b"") -> tuple[PeerCall, PeerIncomingCall]:
        """Both sides of a new call."""
        number = len(self.came)
        asked = self.asking.ask(b"c", b"", body)
        await self.arrived(number + 1)
        return asked, self.came[-1]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine nobody gives up before a test is about that."""
    monkeypatch.setattr(peer_channel, "CONNECT_S", 30.0)


@contextlib.asynccontextmanager
async def both() -> AsyncIterator[Both]:
    found = Both()
    rules = Rules(define, lambda call: found.begin(call), lambda: found.cut.append(True))
    server = PeerServer(rules, own=(KEYS, "peer"))
    async with server.listening("127.0.0.1", 0) as port:
        found.asking = await open_channel(f"127.0.0.1:{port}", "peer", KEYS)
        await until(lambda: any(channel.name for channel in server.channels))
        [found.answering] = server.channels
        read, lost = found.answering.data_received, found.answering.connection_lost

        def noting(data: bytes) -> None:
            found.reads.append(data)
            read(data)

        def ending(exc: Exception | None) -> None:
            lost(exc)
            found.ended.set()

        found.answering.data_received = noting  # type: ignore[method-assign]  # to look in
        found.answering.connection_lost = ending  # type: ignore[method-assign]  # to look in
        try:
            yield found
        finally:
            found.asking.close()
            found.answering.abort()
            await found.ended.wait()


def packed(body: bytes) -> bytes:
    return b"\x00\x04head" + body


@requirement("hot.forwarded")
async def test_calls_and_answers_of_one_turn_share_a_write_and_what_they_have_in_common_is_sent_once() -> None:
    async with both() as found:
        common = Common(b"common" * 100)
        calls = [found.asking.ask(common, b"facts", b"%d" % number) for number in range(32)]
        await found.arrived(32)
        assert len(found.reads) == 1 and found.reads[0].count(b"common" * 100) == 1
        assert [call.body for call in found.came] == [b"%d" % number for number in range(32)]
        assert {(call.definition, call.facts) for call in found.came} == {(b"common" * 100, b"facts")}
        for came in reversed(found.came):
            came.end(b"a", packed(came.body))
        for number, call in enumerate(calls):
            assert await call.next() == (b"h", b"head") and await call.next() == (b"e", b"%d" % number)
            call.done()
        assert not found.cut


@requirement("hot.forwarded")
async def test_the_oldest_definitions_make_room_and_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_channel, "KEPT", 2)
    async with both() as found:
        known = [Common(b"c%d" % number) for number in range(3)]
        for common in (*known, known[0], known[2]):
            found.asking.ask(common, b"", b"")
        await found.arrived(5)
        assert [call.definition for call in found.came] == [b"c0", b"c1", b"c2", b"c0", b"c2"]
        assert found.reads[0].count(b"c2") == 1 and found.reads[0].count(b"c0") == 2


async def _events(call: PeerCall) -> list[bytes]:
    kinds = []
    with contextlib.suppress(PeerConnectionLost):
        while True:
            kinds.append((await call.next())[0])
    return kinds


@requirement("rep.honest")
async def test_a_lost_channel_says_which_calls_may_have_taken_effect() -> None:
    async with both() as found:
        began, waiting, going = (found.asking.ask(b"c", b"", b"") for _ in range(3))
        await found.arrived(3)
        found.came[1].send(b"n")
        found.came[2].send(b"n")
        await found.came[2].agreed()
        asked, _ = await found.call()
        partial, _ = await found.call(b"x" * (SMALL_BYTES + 1))
        found.answering.close()
        calls = (began, waiting, going, asked, partial)
        assert [await _events(call) for call in calls] == [[]] * 5 and not found.asking.has_room
        assert [call.may_have_run for call in calls] == [True, False, True, True, False]
    async with both() as found:
        unsent = found.asking.ask(b"c", b"", b"")
        found.asking.connection_lost(None)
        assert await _events(unsent) == [] and not unsent.may_have_run


@requirement("rep.honest")
async def test_a_call_that_has_waited_begins_only_when_the_asking_side_counts_on_it() -> None:
    async with both() as found:
        calls = [await found.call() for _ in range(3)]
        for _, answering in calls:
            answering.send(b"n")
        calls[1][0].close()
        await until(lambda: not calls[1][1].is_open)
        with pytest.raises(CallLeft):
            await calls[1][1].agreed()
        await calls[2][1].agreed()
        assert calls[2][0].may_have_run
        waiting = asyncio.ensure_future(calls[0][1].agreed())
        await asyncio.sleep(0)
        found.answering.abort()
        with pytest.raises(CallLeft):
            await waiting


@requirement("rep.any", "wall.memory")
@pytest.mark.parametrize("size", [SMALL_BYTES, SMALL_BYTES + 1, 2_000_000])
async def test_bodies_and_answers_of_any_size_arrive_whole_and_credit_bounds_what_is_under_way(size: int) -> None:
    sent = bytes(range(251)) * (size // 251 + 1)
    async with both() as found:
        asked, answering = await found.call(sent[:size])
        body, follows = b"", True
        while follows:
            piece, follows = await answering.read()
            assert answering._unread <= CREDIT_BYTES
            body += piece
        assert body == sent[:size] and asked.may_have_run
        answering.send(b"h", b"head")
        writing = asyncio.ensure_future(answering.write(body))
        assert await asked.next() == (b"h", b"head")
        back = b""
        while len(back) < size:
            kind, piece = await asked.next()
            assert kind == b"b" and asked._unread <= CREDIT_BYTES
            back += piece
        await writing
        answering.end(b"e")
        assert await asked.next() == (b"e", b"") and back == body and not found.cut


@requirement("rep.any", "wall.memory")
async def test_a_slow_reader_holds_up_its_own_answer_and_nobody_else() -> None:
    async with both() as found:
        slow, endless = await found.call()
        endless.send(b"h", b"head")
        writing = asyncio.ensure_future(endless.write(b"x" * (1 << 20)))
        quick, answering = await found.call()
        answering.end(b"a", packed(b"answer"))
        assert await quick.next() == (b"h", b"head") and await quick.next() == (b"e", b"answer")
        await until(lambda: slow._unread == CREDIT_BYTES)
        assert not writing.done()
        slow.close()
        await writing
        assert not endless.is_open, "who waits to write learns that the reader has left"


@requirement("rep.honest")
async def test_an_answer_without_an_end_is_told_behind_what_was_sent_of_it() -> None:
    async with both() as found:
        asked, answering = await found.call()
        answering.send(b"h", b"head")
        await answering.write(b"piece")
        answering.end(b"x")
        assert await _events(asked) == [b"h", b"b"] and asked.may_have_run
        assert found.asking.has_room, "only this call has ended"


@requirement("wall.before-auth")
async def test_a_body_that_stops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_server, "BODY_WITHIN_S", 0.05)
    async with both() as found:
        found.write(a_call(goes_on=True))
        await found.arrived(1)
        assert await found.came[0].read() == (b"", True)
        with pytest.raises(CallLeft):
            await found.came[0].read()


@requirement("rep.honest")
@pytest.mark.parametrize("address", ["", "here", "h:", "h:x", "127.0.0.1:99999", f"{'x' * 300}.example:80"])
async def test_what_is_no_address_is_a_peer_that_does_not_answer(address: str) -> None:
    with pytest.raises(PeerTimedOut):
        await open_channel(address, "r1", [b"k" * 32])


@requirement("rep.honest")
async def test_a_quiet_peer_is_asked_for_a_sign_of_life_before_a_call_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_channel, "HEARD_S", 0.0)
    monkeypatch.setattr(peer_channel, "CONNECT_S", 0.1)
    async with both() as found:
        assert not found.asking.is_heard
        await asyncio.gather(found.asking.hear(), found.asking.hear())
        assert len(found.reads) == 1 and not found.came
        found.answering.data_received = lambda data: None  # type: ignore[method-assign]  # it is paused
        with pytest.raises(PeerTimedOut):
            await found.asking.hear()
        found.answering.abort()
        with pytest.raises(PeerConnectionLost):
            await found.asking.hear()


@requirement("rep.honest")
async def test_a_call_is_cancelled_even_if_it_has_not_begun_and_a_peer_that_is_gone_cancels_all() -> None:
    async with both() as found:
        found.begin = found.attend
        found.asking.ask(b"c", b"", b"").close()  # with the call in one record
        second = found.asking.ask(b"c", b"", b"")
        found.asking.ask(b"c", b"", b"")
        await found.arrived(3)
        assert found.left == [1]
        second.close()
        found.asking.ask(b"c", b"", b"")
        await found.arrived(4)
        assert found.left == [1, 2]
        found.asking.close()
        await found.ended.wait()
        assert found.left == [1, 2, 3, 4]


@requirement("rep.honest")
async def test_a_peer_that_is_silent_times_out_and_heartbeats_keep_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_channel, "CHECKED_S", 0.02)
    monkeypatch.setattr(peer_channel, "TIMED_OUT_AFTER_S", 0.2)
    async with both() as found:
        call, _ = await found.call()
        until = asyncio.get_running_loop().time() + 0.5
        waiting = asyncio.ensure_future(call.next())
        while asyncio.get_running_loop().time() < until:
            found.answering.check(0.0)
            await asyncio.wait((waiting,), timeout=0.01)
            assert not waiting.done()
        with pytest.raises(PeerTimedOut):
            await waiting
        assert call.quiet_for_s >= 0.2


def a_call(
    number: int = 1, place: int = 0xFFFF, defined: bytes = b"c", *, body: bytes = b"", goes_on: bool = False
) -> bytes:
    return frame(b"q", number, CALL.pack(place, len(defined), 0, goes_on) + defined + body)


def credit(size: int) -> bytes:
    return frame(b"w", 1, NUMBER.pack(size))


@requirement("wall.before-auth", "rep.any")
@pytest.mark.parametrize("data", [
    a_call(2), a_call() + a_call(), a_call(place=1024), a_call(place=7, defined=b""), a_call(defined=b"bad"),
    a_call(place=7, defined=b"x" * (MAX_DEFINITION_BYTES + 1)), a_call(body=b"x" * (SMALL_BYTES + 1)),
    frame(b"q", 1, b"\0" * 8), frame(b"q", 1, CALL.pack(1, 9, 0, False)),
    frame(b"z", 1), frame(b"c"), frame(b"p", 0, b"x"),
    a_call() + frame(b"c", 2),  # a call that was not sent yet
    a_call() + frame(b"c", 1) * 2,
    a_call() + frame(b"b", 1, b"x"),  # its body is complete
    a_call(goes_on=True) + frame(b"b", 1),
    a_call(goes_on=True) + frame(b"b", 1, b"x" * CREDIT_BYTES) + frame(b"B", 1, b"x"),
    a_call(goes_on=True) + frame(b"B", 1, b"x") * 2,
    a_call() + frame(b"g", 1, b"x"), a_call() + frame(b"w", 1, b"\0"), a_call() + credit(1), a_call() + credit(0),
    b"".join(a_call(number) for number in range(1, MAX_CALLS + 2)),
    b"".join(map(a_call, range(1, MAX_CALLS + 1))) + frame(b"c", 1) + a_call(1_025) + a_call(1_026),
    b"q" + (MAX_HEAD_BYTES + (1 << 17)).to_bytes(4, "big") + bytes(4),
])  # fmt: skip
async def test_a_peer_that_breaks_a_rule_is_cut_and_it_is_said(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with both() as found:
        found.begin = found.attend
        found.write(data)
        await found.ended.wait()
        assert found.cut == [True] and not found.answering.calls
        assert found.left == [call.number for call in found.came], "what had begun is cancelled"
        found.answering._cut("it did it again")
    [told] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "127.0.0.1 breaks the protocol between replicas" in told.getMessage(), "a peer does not fill the log"


HEAD = frame(b"h", 1, b"head")


@requirement("wall.return", "rep.any")
@pytest.mark.parametrize("data", [
    frame(b"a", 2, packed(b"")),  # a call that was not asked
    frame(b"z", 1), frame(b"h"), credit(1),
    frame(b"b", 1, b"x"), frame(b"e", 1),  # before its head
    HEAD * 2, HEAD + frame(b"a", 1, packed(b"")), HEAD + frame(b"m", 1), HEAD + frame(b"b", 1),
    HEAD + frame(b"b", 1, b"x" * CREDIT_BYTES) + frame(b"b", 1, b"x"),
    HEAD + frame(b"e", 1) * 2, HEAD + frame(b"e", 1) + frame(b"b", 1, b"x"),
    frame(b"S", 1) * 2, frame(b"S", 1) + frame(b"n", 1),
    b"a" + (3 * SMALL_BYTES).to_bytes(4, "big") + bytes(4),
])  # fmt: skip
async def test_an_answer_that_breaks_a_rule_ends_the_channel_and_it_is_said(
    data: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_channel, "_breaches", LogLimit())
    async with both() as found:
        call, _ = await found.call()
        assert found.answering._transport is not None
        found.answering._transport.write(data)
        await found.ended.wait()
        assert not found.asking.is_open and not found.asking.has(call)
        found.asking.fault("it did it again")
    [told] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "the replica at 127.0.0.1:" in told.getMessage(), "a peer does not fill the log"


@requirement("rep.any")
async def test_what_comes_about_a_call_that_is_over_changes_nothing() -> None:
    async with both() as found:
        call, answering = await found.call()
        call.close()
        answering.end(b"a", packed(b"late"))
        other, answers = await found.call()
        found.write(credit(1) + frame(b"b", 1, b"x") + frame(b"g", 1))
        answers.end(b"a", packed(b"answer"))
        assert await other.next() == (b"h", b"head") and not found.cut


@requirement("wall.memory")
@pytest.mark.parametrize(("bound", "most"), [("MAX_NUMBER", 2), ("MAX_CALLS", MAX_CALLS)])
async def test_a_channel_takes_so_many_calls_and_has_so_many_numbers_and_no_more(
    bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_channel, bound, most)
    async with both() as found:
        for _ in range(most):
            assert found.asking.has_room
            found.asking.ask(b"c", b"", b"")
        assert not found.asking.has_room


@requirement("wall.memory", "rep.any")
async def test_a_sender_that_keeps_to_the_bound_is_not_cut_whatever_it_cancels() -> None:
    async with both() as found:
        found.begin = found.attend
        calls: list[PeerCall] = []
        for begun in range(1, 4):
            calls = [found.asking.ask(b"c", b"", b"") for _ in range(MAX_CALLS)]
            await found.arrived(begun * MAX_CALLS)
            for call in calls:
                call.close()
        for call in [found.asking.ask(b"c", b"", b"") for _ in range(MAX_CALLS)]:
            call.close()  # in the turn that asks it
        last, answering = found.asking.ask(b"c", b"", b"last"), 4 * MAX_CALLS + 1
        await found.arrived(answering)
        found.came[-1].end(b"a", packed(b"answered"))
        assert await last.next() == (b"h", b"head") and await last.next() == (b"e", b"answered")
        assert not found.cut and sorted(found.left) == list(range(1, 4 * MAX_CALLS + 1))
