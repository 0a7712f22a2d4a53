"""A TCP relay that can simulate a network partition: no byte passes, and no connection is closed.

It can also lose what the target answers, as a sidecar that dies does, or change it.
"""

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator


class Relay:
    """Relays from its own port, `port` or a free one, to `target` on this machine."""

    def __init__(self, target: int, port: int = 0) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._to_target: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._passes = threading.Event()
        self._passes.set()
        self.loses_answers = False
        """What the target sends is read, and goes nowhere."""
        self.changes: Callable[[bytes], bytes] = bytes
        """What becomes of what the target sends."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Stop relaying. Connections stay open, and the kernel still accepts new ones."""
        with self._lock:
            self._passes.clear()

    def mend(self) -> None:
        """Relay again, beginning with the bytes that were held up."""
        self._passes.set()

    def close(self) -> None:
        self._is_closed = True
        self._passes.set()
        self._thread.join(5)
        for connection in (self._listener, *self._pairs):
            connection.close()

    def _run(self) -> None:
        while not self._is_closed:
            self._passes.wait()
            readable, _, _ = select.select([self._listener, *self._pairs], [], [], 0.05)
            with self._lock:
                if self._passes.is_set():
                    for connection in readable:
                        self._pass_on(connection)

    def _pass_on(self, connection: socket.socket) -> None:
        if connection is self._listener:
            inside, _ = self._listener.accept()
            try:
                outside = socket.create_connection(("127.0.0.1", self._target), timeout=60)
            except OSError:
                inside.close()
                return
            self._pairs |= {inside: outside, outside: inside}
            self._to_target.add(outside)
            return
        other = self._pairs.get(connection)
        if other is None:
            return
        data = b""
        with contextlib.suppress(OSError):
            data = connection.recv(1 << 16)
            if connection not in self._to_target:
                other.sendall(data)
            elif not self.loses_answers:
                other.sendall(self.changes(data))
        if not data:
            for end in (connection, other):
                del self._pairs[end]
                self._to_target.discard(end)
                end.close()


@contextlib.contextmanager
def running_relay(target: int, port: int = 0) -> Iterator[Relay]:
    """A relay that is closed when the block ends."""
    relay = Relay(target, port)
    try:
        yield relay
    finally:
        relay.close()
