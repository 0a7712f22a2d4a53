"""A gateway whose user has no watches of epoll left drops new connections, and serves again once there are some."""

import asyncio
import contextlib
import errno
import os
import select
import sys
from typing import Any

import pytest

from gateway.serving.uvicorn_server import counted_apart
from tests.requirements import requirement

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has epoll")


class Full:
    """An epoll of a user that has no watches left."""

    def register(self, fd: int, events: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """There is nothing."""


@requirement("box.hostile")
def test_a_loop_knows_whether_a_connection_can_be_watched() -> None:
    from gateway.serving.guarded_loop import GuardedLoop

    class Served(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            if not loop.reserve(transport.get_extra_info("socket").fileno()):
                transport.abort()

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    async def asked(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"there\n")
        try:
            return await asyncio.wait_for(reader.read(6), 10)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def main() -> None:
        server = await loop.create_server(Served, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            assert await asked(port) == b"there\n"
            own, loop._own = loop._own, [Full()]
            assert len(own) == 1
            assert isinstance(own[0], select.epoll)
            with pytest.raises(OSError, match="max_user_watches"):
                await asked(port)
            with contextlib.closing(await _plain(port)) as stream:
                assert await asyncio.wait_for(loop.sock_recv(stream, 9), 10) == b""
            loop._own = own
            assert await asked(port) == b"there\n"

    loop: Any = GuardedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


async def _plain(port: int) -> Any:
    import socket

    stream = socket.create_connection(("127.0.0.1", port), 10)
    stream.setblocking(False)
    return stream


@requirement("box.hostile")
def test_the_loop_of_root_is_counted_for_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(os, "getresuid", lambda: (0, 0, 0))
    monkeypatch.setattr(os, "setresuid", lambda *ids: seen.append(ids))

    def fail() -> asyncio.AbstractEventLoop:
        seen.append("made")
        raise OSError(errno.EMFILE, "too many")

    with pytest.raises(OSError, match="too many"):
        counted_apart(fail)
    assert seen == [(65_533, -1, -1), "made", (0, -1, -1)]
    monkeypatch.setattr(os, "getresuid", lambda: (1_000, 1_000, 1_000))
    with pytest.raises(OSError, match="too many"):
        counted_apart(fail)
    assert seen[3:] == ["made"]
