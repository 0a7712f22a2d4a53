"""Whose turns the names of walled processes take."""

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from time import monotonic

import dns.message
import pytest

from gateway.sandbox.host_name_lookups import MAX_THREADS, Lookups
from gateway.sandbox.refusals import Refusals, SessionRefusals
from gateway.sandbox.system_call_gates import SandboxGates
from tests.requirements import requirement
from transports.upstream.walls.wall_specification import Reach

pytestmark = pytest.mark.anyio


def asked(gates: SandboxGates, opened: contextlib.ExitStack, principal: str, name: str) -> socket.socket:
    """Have a new session of a principal ask for a name. Returns where the answer arrives."""
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


@requirement("box.names")
async def test_slow_names_of_many_sessions_of_a_principal_do_not_hold_up_others() -> None:
    name_server_answers = threading.Event()

    def resolve(name: str) -> list[str]:
        if name.startswith("slow"):
            name_server_answers.wait(30)
        return ["93.184.216.34"]

    async def answer(program: socket.socket) -> dns.message.Message:
        receiving = asyncio.get_running_loop().sock_recv(program, 4096)
        return dns.message.from_wire(await asyncio.wait_for(receiving, 60))

    refusals = Refusals(Counter(), lambda **_: None, monotonic, SessionRefusals(monotonic))
    gates = SandboxGates(refusals, Lookups(resolve))
    try:
        with contextlib.ExitStack() as opened:
            waiting = [asked(gates, opened, "mallory", f"slow{n}.test") for n in range(MAX_THREADS + 16)]
            reply = await answer(asked(gates, opened, "ann", "quick.test"))
            assert [str(record[0]) for record in reply.answer] == ["93.184.216.34"]
            name_server_answers.set()
            for each in waiting:
                assert await answer(each)
    finally:
        name_server_answers.set()
        await gates.close()
