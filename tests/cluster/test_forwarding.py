"""Connections between replicas: how each side ends, and bounds for strangers at the internal listener."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.config.secrets import PeerTlsSettings, peer_tls
from tests.requirements import requirement
from tests.support.certificates import Authority
from transports import peer_server
from transports.peer_authentication import Asking
from transports.peer_channel import PeerCall, PeerChannel, open_channel
from transports.peer_frames import frame
from transports.peer_server import PeerIncomingCall, PeerServer, Rules
from transports.peer_tls import PeerTls

KEYS = [b"k" * 32]
ANSWER = b"\0\x04head"


def echo(call: PeerIncomingCall) -> None:
    call.end(b"a", ANSWER + call.body)


@contextlib.asynccontextmanager
async def answering(
    begin: Callable[[PeerIncomingCall], None] = echo, tls: PeerTls | None = None
) -> AsyncIterator[tuple[PeerServer, int, list[bool]]]:
    """A server, its port, and what it cut."""
    cut: list[bool] = []
    server = PeerServer(Rules(bytes, begin, lambda: cut.append(True)), own=(KEYS, "peer"), tls=tls)
    async with server.listening("127.0.0.1", 0) as port:
        yield server, port, cut


@contextlib.asynccontextmanager
async def opened(port: int, tls: PeerTls | None = None) -> AsyncIterator[PeerChannel]:
    channel = await open_channel(f"127.0.0.1:{port}", "peer", KEYS, tls)
    try:
        yield channel
    finally:
        channel.close()
        await asyncio.sleep(0)  # it closes with the loop's next turn


async def answer(call: PeerCall) -> bytes:
    """The body of an answer in one frame."""
    assert await call.next() == (b"h", b"head")
    return (await call.next())[1]


async def _ended(reader: asyncio.StreamReader) -> bytes:
    """What it said until it closed."""
    said = b""
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                said += data
    return said


@pytest.fixture
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> PeerTls | None:
    """Contexts of both sides, if the test wants them."""
    if not request.param:
        return None
    certificate = Authority(tmp_path).issue("peer")
    return peer_tls(PeerTlsSettings(certificate=certificate, authority=tmp_path / "ca.pem"))


encrypted = pytest.mark.parametrize("tls", [False, True], indirect=True, ids=["plain", "tls"])


@requirement("wall.before-auth")
@pytest.mark.parametrize("start", [
    b"q" + (1 << 30).to_bytes(4, "big") + bytes(4),
    frame(b"q", 1, b"head"),
    b"GET /mcp HTTP/1.1\r\n",
    b"mcp-peer/1\n" + bytes(32),  # a gateway of another version
    b"mcp-peer/2\n" + bytes(33),
])  # fmt: skip
async def test_a_stranger_is_cut_with_its_first_wrong_byte(start: bytes) -> None:
    async with answering() as (server, port, cut):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        assert await _ended(reader) == b"" and cut == [True] and not server.channels
        writer.close()


@requirement("wall.before-auth")
@encrypted
async def test_a_stranger_that_says_nothing_has_seconds_and_one_of_ours_may_be_idle(
    monkeypatch: pytest.MonkeyPatch, tls: PeerTls | None
) -> None:
    monkeypatch.setattr(peer_server, "PROVED_WITHIN_S", 0.2)
    async with answering(tls=tls) as (_, port, cut), opened(port, tls) as channel:
        for start in (b"", b"mcp-peer", Asking(KEYS, "peer").begin()):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            assert len(await _ended(reader)) < 100
            writer.close()
        assert len(cut) >= 3
        assert await answer(channel.ask(b"c", b"", b"again")) == b"again"
        refused = len(cut)
        monkeypatch.setattr(peer_server, "IDLE_S", 0.2)
        gone = asyncio.Event()
        monkeypatch.setattr(channel, "connection_lost", lambda _: gone.set())
        async with asyncio.timeout(60):
            await gone.wait()
        assert len(cut) == refused


@requirement("wall.before-auth")
@encrypted
async def test_strangers_in_any_number_leave_room_for_ours(
    monkeypatch: pytest.MonkeyPatch, tls: PeerTls | None
) -> None:
    monkeypatch.setattr(peer_server, "MOST_UNKNOWN", 8)
    async with answering(tls=tls) as (server, port, cut), contextlib.AsyncExitStack() as stack:
        for _ in range(40):
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(b"m")
        channels = [await stack.enter_async_context(opened(port, tls)) for _ in range(4)]
        for channel in channels:
            assert await answer(channel.ask(b"c", b"", b"in")) == b"in"
        assert len(server.channels) <= 8 + len(channels) and len(cut) >= 32
