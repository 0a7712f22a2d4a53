"""Walled processes, their gates, and the gateway's side of these: together, as in production."""

import asyncio
import json
import logging
import socket
import threading
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import tests.support.connecting_program
from gateway.sandbox.gates import SandboxGates
from gateway.sandbox.lookups import Lookups
from gateway.sandbox.refusals import Refusals, SessionRefusals
from tests.processes.children import Recorder
from tests.requirements import requirement
from tests.support.walled import python_for, python_grants
from transports.upstream.process import Command
from transports.upstream.spawn import ForkServer
from transports.upstream.walls.spec import Grant, Reach, Walls

pytestmark = pytest.mark.anyio
PROGRAM = Path(tests.support.connecting_program.__file__).read_text(encoding="utf-8")
NAMES = {"many.test": [f"2600::{n:x}" for n in range(30)], "api.test": ["127.0.0.1"], "rebound.test": ["10.0.0.5"]}


def resolve(name: str) -> list[str]:
    if name not in NAMES:
        raise socket.gaierror(socket.EAI_NONAME, name)
    return NAMES[name]


class Heard:
    """The gateway's side, with what it is told."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        self.events: list[dict[str, Any]] = []
        self.shown = SessionRefusals(monotonic)
        self.gates = SandboxGates(Refusals(self.counts, self._blocked, monotonic, self.shown), Lookups(resolve))

    def _blocked(self, **event: Any) -> None:
        self.events.append(event)


def command(reach: Reach, attempts: list[list[Any]], *, namespaces: bool = False) -> Command:
    """A program that makes these attempts behind walls with this reach."""
    files = (
        "/etc/hosts",
        "/etc/resolv.conf",
        "/etc/nsswitch.conf",
        "/etc/host.conf",
        "/etc/gai.conf",
        "/etc/protocols",
    )
    names = tuple(Grant(path=str(Path(path).resolve()), optional=True) for path in files)
    return Command(
        argv=(python_for(None), "-I", "-S", "-c", PROGRAM, json.dumps(attempts)),
        env={"PATH": "/usr/bin:/bin"},
        walls=Walls(profile="test", grants=(*python_grants(), *names), reach=reach, namespaces=namespaces),
    )


async def run(heard: Heard, reach: Reach, attempts: list[list[Any]], *, namespaces: bool) -> list[Any]:
    """What the attempts of a program behind walls with this reach came to."""
    recorder = Recorder()
    async with ForkServer(heard.gates) as fork_server:
        process = await fork_server.spawn(
            command(reach, attempts), recorder, fields=lambda: {"server": "x", "session": "abcdefgh"}
        )
        assert await asyncio.wait_for(process.wait(), 30) == 0, process.stderr_tail()
    found: list[Any] = json.loads(recorder.lines[-1])
    return found


def v4(host: str, port: int) -> str:
    return "0200" + port.to_bytes(2, "big").hex() + socket.inet_aton(host).hex() + "00" * 8


@requirement("box.network", "box.names", "box.refusals-seen")
@pytest.mark.parametrize("namespaces", [False, True])
async def test_a_walled_process_resolves_connects_and_is_refused(
    caplog: pytest.LogCaptureFixture, namespaces: bool
) -> None:
    """With namespaces of its own where the kernel allows them, the gate is within them."""
    heard = Heard()
    with socket.socket() as listener, caplog.at_level(logging.WARNING):
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(10)
                client.sendall(b"ok")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        results = await run(
            heard,
            Reach(hosts=("api.test", "many.test", "rebound.test:443", f"127.0.0.1:{port}"), listen=(0,)),
            [
                ["resolve", "api.test"],
                ["resolve", "other.test"],
                ["connect", 2, v4("127.0.0.1", port), {"bytes": True}],
                ["ask_by_datagram", "api.test", 1],
                ["ask_by_datagram", "other.test", 1],
                ["ask_by_datagram", "many.test", 28],
                ["datagrams"],
                ["resolve", "rebound.test"],
                ["flood", v4("10.0.0.5", 443), 50],
                ["connect", 2, v4("169.254.169.254", 80), {}],
                ["own_listener"],
                ["listen", 2, "0.0.0.0", 0],
                ["listen", 2, "127.0.0.1", 7657],
            ],
            namespaces=namespaces,
        )
        thread.join(5)
    unknown = results[1]
    assert results == [
        *(["127.0.0.1"], unknown, "ok"),
        *([0, False, "127.0.0.1"], [3, False, ""], [0, True, ""]),
        ["ENOTCONN", "ENOTCONN", "ENETUNREACH", "ENETUNREACH", "EINVAL", "ENOTCONN"],
        *(["10.0.0.5"], "EACCES", "EACCES"),
        *(["EACCES", "", "own", "EACCES"], "EACCES", "EACCES"),
    ]
    assert unknown == ["Name or service not known"]
    said = {record.getMessage() for record in caplog.records}
    for sentence in (
        "server 'x' was refused 10.0.0.5:443 (a private address); to allow it: sandbox.reach = [\"10.0.0.5:443\"]",
        "server 'x' was refused other.test (not listed); to allow it: sandbox.reach = [\"other.test\"]",
        "server 'x' was refused 169.254.169.254:80 (a metadata address); to allow it: "
        'sandbox.reach = ["169.254.169.254:80"]',
        "server 'x' was refused udp 10.0.0.5:443 (datagrams)",
        "server 'x' was refused to listen on port 7657 (not granted); to allow it: sandbox.listen = [7657]",
    ):
        assert sentence in said, said
        assert sentence in {event["reason"] for event in heard.events}
    assert heard.counts["connect"] >= 52 and heard.counts["name"] >= 1 and heard.counts["listen"] == 2
    assert {(event["session"], event["server"]) for event in heard.events} == {("abcdefgh", "x")}


@requirement("box.network")
async def test_a_stuck_connection_does_not_hold_up_the_end_of_its_process() -> None:
    """A blocking connection that never ends, and a gateway that kills."""
    heard = Heard()
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        port = listener.getsockname()[1]
        attempts = [["hang", v4("127.0.0.1", port), [["connect", 2, v4("127.0.0.1", port), {}]]]]
        async with ForkServer(heard.gates) as fork_server:
            begun = asyncio.Event()
            stuck = command(Reach(hosts=("localhost",)), attempts)
            process = await fork_server.spawn(stuck, Recorder(), stderr=lambda _: begun.set())
            await asyncio.wait_for(begun.wait(), 20)
            began = monotonic()
            process.kill()
            assert await asyncio.wait_for(process.wait(), 10) == -9
            assert monotonic() - began < 5
