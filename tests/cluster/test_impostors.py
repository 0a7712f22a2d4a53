"""The port of an owner that was killed, and a process without keys that listens there."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import httpx
import psutil

from tests.cluster.test_lost_owners import demo_owner
from tests.cluster.test_replicas import Wandering, replicas, through
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway
from tests.support.mcp_clients import tool_text
from tests.support.redis_server import RunningRedis
from tests.support.waiting import eventually

CHALLENGE_BYTES = 43


@contextlib.contextmanager
def impostor(port: int, relayed_to: int) -> Iterator[list[bytearray]]:
    """A listener that keeps what each connection says, and has another gateway answer."""
    heard: list[bytearray] = []

    def serve(connection: socket.socket, said: bytearray) -> None:
        with contextlib.suppress(OSError), connection, socket.create_connection(("127.0.0.1", relayed_to)) as other:
            while data := connection.recv(1 << 16):
                said.extend(data)
                other.sendall(data)
                connection.sendall(other.recv(1 << 16))

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                heard.append(bytearray())
                threading.Thread(target=serve, args=(connection, heard[-1]), daemon=True).start()

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        try:
            yield heard
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def internal_port(gateway: RunningGateway) -> int:
    """The port that the other gateways reach it at."""
    listening = psutil.Process(gateway.pid).net_connections("inet")
    ports = {c.laddr.port for c in listening if c.status == "LISTEN"}
    [port] = ports - {int(gateway.base.rpartition(":")[2])}
    return port


@requirement("rep.sealed")
def test_who_listens_in_a_dead_owners_place_sees_nothing_and_answers_nothing(
    redis_server: RunningRedis, http: httpx.Client
) -> None:
    with contextlib.ExitStack() as stack:
        gateways = stack.enter_context(replicas(redis_server, 3, "demo"))
        client = Wandering(gateways, "demo", http).open()
        tool_text(client.tool("count"))
        owner = demo_owner(gateways)
        edge, third = (g for g in gateways if g is not owner)
        calling = through(edge, "demo", client)
        stack.callback(calling.http.close)
        assert tool_text(calling.tool("count")) == "2"
        port = internal_port(owner)
        owner.kill()
        heard = stack.enter_context(impostor(port, internal_port(third)))
        counts = [tool_text(answer) for answer in (calling.tool("count") for _ in range(20)) if answer.is_success]
        assert counts == [str(number + 1) for number in range(len(counts))], "the new owner's answers, and no other"
        assert eventually(lambda: calling.tool("count").is_success)
    assert heard, "the address of the dead owner was asked"
    assert all(len(said) <= CHALLENGE_BYTES for said in heard), "no one was told more than a challenge"
