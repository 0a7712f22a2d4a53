"""What the gate lets a process listen on."""

import errno
import select
import socket
from typing import Any, cast

from tests.requirements import requirement
from transports.upstream.walls.connecting import Connections
from transports.upstream.walls.network_calls import NetworkCalls
from transports.upstream.walls.notifications import Listener, Notification
from transports.upstream.walls.reach import ReachRules
from transports.upstream.walls.spec import Reach


class Moving(socket.socket):
    """A socket that another thread binds to every address at the moment it begins to listen."""

    def listen(self, backlog: int = 0) -> None:
        super().listen(backlog)
        port = self.getsockname()[1]
        self.shutdown(socket.SHUT_RDWR)
        self.bind(("0.0.0.0", port))
        super().listen(backlog)


def listened(theirs: socket.socket) -> tuple[int, list[tuple[str, str, str]]]:
    """The errno with which the process may listen, and what was refused."""
    refused: list[tuple[str, str, str]] = []
    listener = cast(Listener, None)
    calls = NetworkCalls(
        Reach(listen=(0,)),
        listener=listener,
        connections=Connections(listener, select.poll()),
        rules=ReachRules(Reach(), is_local=lambda _: True, clock=lambda: 0.0),
        refused=lambda *what: refused.append(what),
        resolve=lambda _: 0,
    )
    notification = cast(Notification, type("Made", (), {"arguments": (0, 5, 0, 0, 0, 0)}))
    return cast(Any, calls)._listen(notification, theirs), refused


@requirement("box.network")
def test_a_socket_that_is_bound_elsewhere_while_it_is_looked_at_does_not_listen() -> None:
    with socket.socket() as honest:
        honest.bind(("127.0.0.1", 0))
        assert listened(honest) == (0, [])
    with Moving() as moving:
        moving.bind(("127.0.0.1", 0))
        port = moving.getsockname()[1]
        assert listened(moving) == (errno.EACCES, [("listen", str(port), "bound to another address meanwhile")])
        assert not moving.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
