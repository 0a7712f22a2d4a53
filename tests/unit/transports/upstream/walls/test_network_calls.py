"""What the gate lets a process listen on."""

import errno
import select
import socket
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.requirements import requirement
from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener
from transports.upstream.walls.network_calls import NetworkCalls
from transports.upstream.walls.network_rules import ReachRules
from transports.upstream.walls.pending_connections import PendingConnections
from transports.upstream.walls.wall_specification import Reach

pytestmark = requirement("box.network")


class Moving(socket.socket):
    """A socket that another thread binds to every address at the moment it begins to listen."""

    def listen(self, backlog: int = 0) -> None:
        super().listen(backlog)
        port = self.getsockname()[1]
        self.shutdown(socket.SHUT_RDWR)
        self.bind(("0.0.0.0", port))
        super().listen(backlog)


def network_calls(refused: list[tuple[str, str, str]], touched: Callable[[str, str], None] | None = None) -> Any:
    listener = cast(Listener, None)
    return NetworkCalls(
        Reach(listen=(0,)),
        listener=listener,
        connections=PendingConnections(listener, select.poll()),
        rules=ReachRules(Reach(), is_local=lambda _: True, clock=lambda: 0.0),
        refused=lambda *what: refused.append(what),
        resolve=lambda _: 0,
        touched=touched,
        kernel_binds=True,
    )


def listened(
    theirs: socket.socket, touched: Callable[[str, str], None] | None = None
) -> tuple[int, list[tuple[str, str, str]]]:
    """The errno with which the process may listen, and what was refused."""
    refused: list[tuple[str, str, str]] = []
    made = cast(InterceptedCall, type("Made", (), {"arguments": (0, 5, 0, 0, 0, 0)}))
    return network_calls(refused, touched)._listen(made, theirs), refused


def test_a_socket_that_is_bound_elsewhere_while_it_is_looked_at_does_not_listen() -> None:
    with socket.socket() as honest:
        honest.bind(("127.0.0.1", 0))
        assert listened(honest) == (0, [])
    with Moving() as moving:
        moving.bind(("127.0.0.1", 0))
        port = moving.getsockname()[1]
        assert listened(moving) == (errno.EACCES, [("listen", str(port), "bound to another address meanwhile")])
        assert not moving.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


@requirement("box.learn")
def test_a_watched_server_may_listen_without_a_port_of_its_own() -> None:
    touched: list[tuple[str, str]] = []
    with socket.socket() as unbound:
        assert listened(unbound, lambda *what: touched.append(what)) == (0, [])
        assert touched == [("listen", "0.0.0.0 0")] and unbound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_strangers_at_the_port_of_the_resolver_hold_the_gate_up_for_half_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, met = [0.0], list[socket.socket]()

    def accept(_: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
        assert len(met) < 20
        now[0] += 0.1
        met.append(socket.socket())
        return met[-1], ("127.0.0.1", 1)

    monkeypatch.setattr(socket.socket, "accept", accept)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with socket.socket() as theirs:
        assert network_calls([])._connect_resolver(theirs) == errno.ECONNREFUSED
    assert 4 < len(met) < 8 and all(one.fileno() == -1 for one in met)
