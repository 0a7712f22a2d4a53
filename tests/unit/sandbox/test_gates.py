"""Whose turns the names of walled processes take."""

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

import dns.message
import pytest

from gateway.sandbox.gates import SandboxGates
from gateway.sandbox.lookups import MAX_THREADS, Lookups
from gateway.sandbox.refused import Refusals
from gateway.sandbox.session_refusals import SessionRefusals
from tests.requirements import requirement
from transports.upstream.walls.spec import Reach

pytestmark = pytest.mark.anyio
Asks = Callable[[str, str], socket.socket]


@contextlib.contextmanager
def asking(gates: SandboxGates) -> Any:
    """A function that has a new session of a principal ask for a name. It returns where the answer arrives."""
    with contextlib.ExitStack() as opened:

        def ask(principal: str, name: str) -> socket.socket:
            gate, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            program, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(gate)
            opened.enter_context(program)
            fields = {"server": "files", "principal": principal, "session": f"{principal} {name}"}
            gates.open(channel, reach=Reach(names=True), fields=lambda: fields)
            with client:
                socket.send_fds(gate, [b'{"resolve": true}'], [client.fileno()])
            program.setblocking(False)
            program.send(dns.message.make_query(name, "A").to_wire())
            return program

        yield ask


@requirement("box.names")
async def test_slow_names_of_many_sessions_of_a_principal_do_not_hold_up_others() -> None:
    name_server_answers = threading.Event()

    def resolve(name: str) -> list[str]:
        if name.startswith("slow"):
            name_server_answers.wait(30)
        return ["93.184.216.34"]

    refusals = Refusals(Counter(), lambda **_: None, monotonic, SessionRefusals(monotonic))
    gates = SandboxGates(refusals, Lookups(resolve))
    try:
        with asking(gates) as ask:
            waiting = [ask("mallory", f"slow{number}.test") for number in range(MAX_THREADS + 16)]
            answer = ask("ann", "quick.test")
            loop = asyncio.get_running_loop()
            reply = dns.message.from_wire(await asyncio.wait_for(loop.sock_recv(answer, 4096), 10))
            assert [str(record[0]) for record in reply.answer] == ["93.184.216.34"]
            name_server_answers.set()
            for each in waiting:
                assert await asyncio.wait_for(loop.sock_recv(each, 4096), 10)
    finally:
        name_server_answers.set()
        await gates.close()
