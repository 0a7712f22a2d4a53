"""A session's socket serves the user of the gateway."""

import os
import socket

import pytest

from tests.requirements import requirement
from transports.inbound import unix_app_server


@requirement("wall.secrets", "ctx.state")
@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not say who connects")
def test_a_sessions_socket_serves_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert unix_app_server.process_behind(theirs) == (os.getpid(), os.geteuid())
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    assert [unix_app_server.may_connect(uid) for uid in (1_000, 0, 1_001, 65_534)] == [True, True, False, False]
