"""The proof and the seals of a connection between replicas: only the replica that is wanted, and only its own bytes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirements import requirement
from transports.peer_authentication import Answering, Asking, OtherKeys, Sealed, Seals, Unproven
from transports.peer_channel import PeerCall, PeerConnectionLost, PeerReplaced, PeerUnproven, open_channel
from transports.peer_server import PeerIncomingCall, PeerServer, Rules

pytestmark = [pytest.mark.timeout(60), requirement("rep.sealed")]

Change = Callable[[bytes], bytes]
OLD, NEW = b"o" * 32, b"n" * 32


def _answer(asking: Asking, answering: Answering) -> bytes:
    """The answer to the first message."""
    answer = answering.step(bytearray(asking.begin()))
    assert isinstance(answer, bytes)
    return answer


def _proof(asking: Asking, answer: bytes) -> tuple[bytes, Seals]:
    """What the asking side sends and keeps once it knows the other."""
    asked = asking.step(bytearray(answer))
    assert isinstance(asked, tuple)
    return asked


def _shaken(asking: Asking, answering: Answering) -> tuple[Seals, Seals]:
    """The seals of both sides after their handshake."""
    proof, seals = _proof(asking, _answer(asking, answering))
    answered = answering.step(bytearray(proof))
    assert isinstance(answered, tuple)
    return seals, answered[1]


@pytest.mark.parametrize("asking", [[OLD], [NEW, OLD], [OLD, NEW]])
@pytest.mark.parametrize("answering", [[OLD], [OLD, NEW]])
def test_both_sides_have_the_same_seals_while_keys_are_replaced(asking: list[bytes], answering: list[bytes]) -> None:
    one, other = _shaken(Asking(asking, "a"), Answering(answering, "a"))
    assert [one.sent.next(b"x") for _ in range(2)] == [other.received.next(b"x") for _ in range(2)]
    assert other.sent.next(b"x") == one.received.next(b"x") and one.name == other.name


def test_a_seal_is_for_one_connection_direction_and_place() -> None:
    seals = [_shaken(Asking([OLD], "a"), Answering([OLD], "a"))[0] for _ in range(2)]
    assert seals[0].name != seals[1].name
    made = [seal.next(b"x") for one in seals for seal in (one.sent, one.received, one.sent)]
    assert len(set(made)) == len(made)


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), turn=st.integers(0, 2))
def test_a_changed_byte_ends_the_handshake(at: int, bit: int, turn: int) -> None:
    asking, answering = Asking([OLD], "replica"), Answering([OLD], "replica")

    def passed(number: int, data: bytes) -> bytearray:
        changed = bytearray(data)
        if number == turn:
            changed[at % len(data)] ^= 1 << bit
        return changed

    with pytest.raises(Unproven):
        answer = answering.step(passed(0, asking.begin()))
        assert isinstance(answer, bytes)
        asked = asking.step(passed(1, answer))
        if isinstance(asked, bytes):
            raise Unproven  # the name has become longer: it waits for the rest, which does not come
        answering.step(passed(2, asked[0]))


def test_what_was_said_on_one_connection_proves_nothing_on_another() -> None:
    asking, answering = Asking([OLD], "a"), Answering([OLD], "a")
    answer = _answer(asking, answering)
    proof, _ = _proof(asking, answer)
    with pytest.raises(OtherKeys):
        Asking([OLD], "a").step(bytearray(answer))
    again = Answering([OLD], "a")
    _answer(asking, again)
    for reflected in (proof, answer[43:75]):
        with pytest.raises(Unproven):
            again.step(bytearray(reflected))
    with pytest.raises(Unproven):
        Answering([OLD], "a").step(bytearray(asking.begin() + b"q"))


# -- whole connections


def peer_server(answer: Callable[[PeerIncomingCall], None] = lambda call: None) -> PeerServer:
    return PeerServer(Rules(bytes, answer, lambda: None), own=([OLD], "peer"))


@contextlib.asynccontextmanager
async def asked(change: Change) -> AsyncIterator[PeerCall]:
    """A call whose answer, two records, is changed on its way by somebody who has no keys."""

    def answer(call: PeerIncomingCall) -> None:
        call.send(b"h", b"one")
        call._channel._batch.flush()
        call.end(b"e")
        call._channel._batch.flush()

    async with peer_server(answer).listening("127.0.0.1", 0) as port:
        channel = await open_channel(f"127.0.0.1:{port}", "peer", [OLD])
        sealed: Any = channel._transport
        read = sealed.data_received
        sealed.data_received = lambda data: read(change(data))
        try:
            yield channel.ask(b"c", b"", b"")
        finally:
            channel.close()


def _swapped(data: bytes) -> bytes:
    """The two records of an answer, in the other order."""
    ends = 36 + int.from_bytes(data[:4], "big")
    return data[ends:] + data[:ends]


@requirement("wall.return")
@pytest.mark.parametrize("change", [
    lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    lambda data: data[:40] + data[:40],
    _swapped,
    lambda data: data[36 + int.from_bytes(data[:4], "big"):],
    lambda data: b"e\0\0\0\0\0\0\0\x01" + bytes(40),
    lambda data: b"\0\0\0\x09" + bytes(32) + b"e\0\0\0\0\0\0\0\x01",
], ids=["changed", "repeated", "moved", "left out", "bare", "forged"])  # fmt: skip
async def test_an_answer_that_a_relay_changes_is_never_complete(change: Change) -> None:
    frames: list[tuple[bytes, bytes]] = []
    async with asked(change) as call:
        with pytest.raises(PeerConnectionLost):
            while True:
                frames.append(await call.next())
    assert frames in ([], [(b"h", b"one")]), "what came before the change is as it was sent"


async def test_an_answer_that_nobody_changes_is_complete() -> None:
    async with asked(bytes) as call:
        assert [await call.next() for _ in range(2)] == [(b"h", b"one"), (b"e", b"")]


async def test_a_challenge_that_is_relayed_to_another_replica_is_not_met() -> None:
    async with peer_server().listening("127.0.0.1", 0) as port:
        with pytest.raises(PeerReplaced):
            await open_channel(f"127.0.0.1:{port}", "owner", [OLD])


@pytest.mark.parametrize("says", ["nothing", "the challenge", "an answer"])
async def test_a_listener_without_keys_sees_a_challenge_and_nothing_else(says: str) -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read(1 << 16)
        answer: Any = Answering([NEW], "peer").step(bytearray(said))
        writer.write({"nothing": b"", "the challenge": said * 8, "an answer": answer}[says])
        if says == "nothing":
            writer.write_eof()
        with contextlib.suppress(OSError):
            said += await reader.read()
        writer.close()
        heard.set_result(said)

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(PeerUnproven):
            await open_channel(address, "peer", [OLD])
        assert len(await heard) == len(Asking([OLD], "peer").begin())


async def test_a_proof_that_comes_when_its_asker_has_left_is_no_fault() -> None:
    sent, proved = [b""], list[str]()
    sealed = Sealed(asyncio.Protocol(), Asking([OLD], "a"), when_proved=proved.append)
    sealed.connection_made(cast("asyncio.Transport", SimpleNamespace(write=sent.append)))
    asker = asyncio.ensure_future(sealed.proved())
    await asyncio.sleep(0)
    asker.cancel()
    answer = Answering([OLD], "a").step(bytearray(sent[-1]))
    assert isinstance(answer, bytes)
    sealed.data_received(answer)
    assert proved
    with pytest.raises(asyncio.CancelledError):
        await asker
