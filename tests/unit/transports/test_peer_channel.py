"""Calls on a channel between replicas: shared writes, what is known of lost calls, bounds, and faulty peers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.requirements import requirement
from transports import peer_channel
from transports.peer_channel import CALL, MAX_CALLS, MAX_DEFINITION_BYTES, SMALL_BYTES, PeerCall, PeerChannel
from transports.peer_channel_server import AnsweringChannel, Call, CallFaulty, CallLeft, Rules
from transports.replica_wire import PeerConnectionLost, PeerTimedOut, frame

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


def seal(number: int, content: bytes) -> bytes:
    return f"{number:04}".encode()


def verify(number: int, content: bytes, mac: bytes) -> bool:
    return mac == seal(number, content)


def define(packed: bytes) -> bytes:
    if packed == b"bad":
        raise CallFaulty
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
        self.came: list[Call] = []
        self.left: list[int] = []
        self.cut: list[bool] = []
        self.ended = asyncio.Event()
        self.begin: Callable[[Call], None] = self.came.append
        self.asking: PeerChannel
        self.answering: AnsweringChannel
        self.reads: list[bytes] = []

    def attend(self, call: Call) -> None:
        """Begin a call, and note in `left` when its client has left."""
        self.came.append(call)
        self.answering.attend(call.number, lambda: self.left.append(call.number))

    async def arrived(self, number: int) -> None:
        await until(lambda: len(self.came) >= number)


@contextlib.asynccontextmanager
async def both() -> AsyncIterator[Both]:
    found, loop = Both(), asyncio.get_running_loop()
    made: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            made.set_result(transport)

    server = await loop.create_server(Accepting, "127.0.0.1", 0)
    transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
    found.asking = PeerChannel(transport, "name", seal)
    rules = Rules(4, verify, define, lambda call: found.begin(call), lambda: found.cut.append(True))
    found.answering = AnsweringChannel(await made, "name", rules, lambda _: found.ended.set())
    read = found.answering.data_received

    def noting(data: bytes) -> None:
        found.reads.append(data)
        read(data)

    found.answering.data_received = noting  # type: ignore[method-assign]
    try:
        yield found
    finally:
        found.asking.close()
        found.answering.abort()
        server.close()
        await found.ended.wait()
        await asyncio.sleep(0)


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
        for call in reversed(found.came):
            found.answering.end(b"a", call.number, packed(call.body))
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
        found.answering.send(b"n", 2)
        found.answering.send(b"n", 3)
        await found.answering.agreed(3)
        found.answering.end(b"m", 1000)  # of a call that is over
        asked = found.asking.ask(b"c", b"", b"")
        await found.arrived(4)
        found.answering.close()
        calls = (began, waiting, going, asked)
        assert [await _events(call) for call in calls] == [[]] * 4 and not found.asking.has_room
        assert [call.may_have_run for call in calls] == [True, False, True, True]
    async with both() as found:
        unsent = found.asking.ask(b"c", b"", b"")
        found.asking.connection_lost(None)
        assert await _events(unsent) == [] and not unsent.may_have_run


@requirement("rep.honest")
async def test_a_call_that_has_waited_begins_only_when_the_asking_side_counts_on_it() -> None:
    async with both() as found:
        calls = [found.asking.ask(b"c", b"", b"") for _ in range(3)]
        await found.arrived(3)
        for number in (1, 2, 3):
            found.answering.send(b"n", number)
        transport, found.answering._transport = found.answering._transport, None  # what it writes is lost
        assert transport is not None
        with pytest.raises(CallLeft):
            await found.answering.agreed(1)
        found.answering._transport = transport
        calls[1].close()
        await until(lambda: 2 not in found.answering._open)
        with pytest.raises(CallLeft):
            await found.answering.agreed(2)
        await found.answering.agreed(3)
        assert calls[2].may_have_run
        waiting = asyncio.ensure_future(found.answering.agreed(1))
        await asyncio.sleep(0)
        found.answering.abort()
        with pytest.raises(CallLeft):
            await waiting


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
        found.begin = lambda call: found.answering.attend(call.number, lambda: None)
        call = found.asking.ask(b"c", b"", b"")
        until = asyncio.get_running_loop().time() + 0.5
        waiting = asyncio.ensure_future(call.next())
        while asyncio.get_running_loop().time() < until:
            found.answering.heartbeat()
            await asyncio.wait((waiting,), timeout=0.01)
            assert not waiting.done()
        with pytest.raises(PeerTimedOut):
            await waiting
        assert call.quiet_for_s >= 0.2


def record(*frames: bytes, number: int = 0, mac: bytes | None = None) -> bytes:
    content = b"".join(frames)
    return len(content).to_bytes(4, "big") + (mac or seal(number, content)) + content


def a_call(number: int = 1, place: int = 0xFFFF, defined: bytes = b"c", facts: bytes = b"", body: bytes = b"") -> bytes:
    return frame(b"q", CALL.pack(number, place, len(defined), len(facts)) + defined + facts + body)


@requirement("wall.before-auth", "rep.any")
@pytest.mark.parametrize("data", [
    record(a_call(), mac=b"9999"),
    record(a_call()) + record(a_call(2)),  # the number of the first record again
    record(a_call(2)),
    record(a_call(), a_call()),
    record(a_call(place=1024)),
    record(a_call(place=7, defined=b"")),
    record(a_call(defined=b"bad")),
    record(a_call(defined=b"x" * (MAX_DEFINITION_BYTES + 1))),
    record(a_call(body=b"x" * (SMALL_BYTES + 1))),
    record(frame(b"q", b"\0" * 8)),
    record(frame(b"q", CALL.pack(1, 0, 9, 0))),
    record(frame(b"z", b"\0" * 4)),
    record(frame(b"c", b"\0" * 5)),
    record(b"q\0\0\0\x09"),
    record(*(frame(b"c", b"\0" * 4) for _ in range(2 * MAX_CALLS + 1))),
    record(a_call(), frame(b"c", b"\0\0\0\2")),  # a call that was not sent yet
    record(a_call(), *[frame(b"c", b"\0\0\0\1")] * 2),
    record(*(a_call(number) for number in range(1, MAX_CALLS + 2))),
    record(*map(a_call, range(1, MAX_CALLS + 1)), frame(b"c", b"\0\0\0\1"), a_call(1_025), a_call(1_026)),
    (2 << 20).to_bytes(4, "big") + bytes(4),
])  # fmt: skip
async def test_a_peer_that_breaks_a_rule_is_cut(data: bytes) -> None:
    async with both() as found:
        transport = found.asking._transport
        assert transport is not None
        transport.write(data)
        await found.ended.wait()
        assert found.cut == [True] and not found.came


@requirement("rep.any")
async def test_records_and_answers_arrive_in_any_pieces() -> None:
    async with both() as found:
        data = record(a_call(1, body=b"one"), a_call(2, body=b"two")) + record(a_call(3, body=b"three"), number=1)
        for at in range(len(data)):
            found.answering.data_received(data[at : at + 1])
        await found.arrived(3)
        assert [call.body for call in found.came] == [b"one", b"two", b"three"]
        calls = [found.asking.ask(b"c", b"", b"") for _ in range(2)]
        answers = b"".join(frame(b"a", n.to_bytes(4, "big") + packed(b"%d" % n)) for n in (2, 1))
        for at in range(len(answers)):
            found.asking.data_received(answers[at : at + 1])
        assert [(await call.next(), await call.next())[1] for call in calls] == [(b"e", b"1"), (b"e", b"2")]


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
        last = found.asking.ask(b"c", b"", b"last")
        await found.arrived(4 * MAX_CALLS + 1)
        found.answering.end(b"a", last.number, packed(b"answered"))
        assert await last.next() == (b"h", b"head") and await last.next() == (b"e", b"answered")
        assert not found.cut and sorted(found.left) == list(range(1, 4 * MAX_CALLS + 1))
