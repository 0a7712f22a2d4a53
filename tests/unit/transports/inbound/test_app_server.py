"""A session's socket serves the user of the gateway."""

import socket
import struct

import pytest

from tests.requirements import requirement
from transports.inbound import app_server


class Peer:
    """A connection from a process of that user."""

    def __init__(self, uid: int) -> None:
        self._uid = uid

    def getsockopt(self, *_: int) -> bytes:
        return struct.pack("3i", 1, self._uid, self._uid)


@requirement("wall.secrets", "ctx.state")
@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not say who connects")
def test_a_sessions_socket_serves_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert app_server.may_connect(theirs)
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    assert [app_server.may_connect(Peer(uid)) for uid in (1_000, 0, 1_001, 65_534)] == [True, True, False, False]  # type: ignore[arg-type]  # what it asks of a socket
