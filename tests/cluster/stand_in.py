"""In a gateway's place behind a shipped load balancer: keeps each request as it came, and answers, or dies with it."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.support.compose_topology import BALANCERS


class StandIn:
    """`requests` has head and body of each, but of probes. One that `dies` ends like a process that is killed with a
    request in hand."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.place = f"127.0.0.1:{listener.getsockname()[1]}"
        self.dies = False
        self.requests: list[tuple[str, bytes]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            file = connection.makefile("rb")
            while line := file.readline():
                head, length = line, 0
                while (header := file.readline()) not in (b"\r\n", b""):
                    head += header
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                body = file.read(length)
                if b"/readyz" not in line:
                    self.requests.append((head.decode("latin-1"), body))
                    if self.dies:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@contextlib.contextmanager
def balanced(kind: str) -> Iterator[tuple[int, StandIn]]:
    """The port of a load balancer, and who answers behind it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stand_in = StandIn(listener)
        with BALANCERS[kind]([stand_in.place] * 3) as url:
            yield int(url.rpartition(":")[2]), stand_in
