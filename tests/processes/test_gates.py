"""Walled processes, their gates, and the gateway's side of these: together, as in production."""

import asyncio
import json
import logging
import signal
import socket
import sys
import threading
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import tests.support.connecting_program
from gateway.sandbox.gate_channels import SandboxGates
from gateway.sandbox.host_name_lookups import Lookups
from gateway.sandbox.refusal_reports import Refusals, SessionRefusals
from tests.processes.children import Recorder
from tests.processes.places import needs_walls
from tests.requirements import requirement
from tests.support.walled import ROOT, Outcome, python_for, python_grants, run_here
from transports.upstream import fork_server_client
from transports.upstream.child_process import Command
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.walls.kernel_support import probe
from transports.upstream.walls.wall_specification import Grant, Reach, Walls

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


def reaching(reach: Reach, *, namespaces: bool = False) -> Walls:
    """Walls with this reach, and what a look-up of names reads."""
    names = ("hosts", "resolv.conf", "nsswitch.conf", "host.conf", "gai.conf", "protocols")
    files = (Grant(path=str(Path("/etc", name).resolve()), optional=True) for name in names)
    return Walls(profile="test", grants=(*python_grants(), *files), reach=reach, namespaces=namespaces)


def command(walls: Walls, script: str, *arguments: str) -> Command:
    argv = (python_for(None), "-I", "-S", "-c", script, *arguments)
    return Command(argv=argv, env={"PATH": "/usr/bin:/bin"}, walls=walls)


async def run(heard: Heard, walls: Walls, script: str, *arguments: str) -> list[Any]:
    """What a script behind walls has found."""
    recorder = Recorder()
    fields = {"server": "x", "session": "abcdefgh"}
    async with ForkServer(heard.gates) as fork_server:
        process = await fork_server.spawn(command(walls, script, *arguments), recorder, fields=lambda: fields)
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
        reach = Reach(hosts=("api.test", "many.test", "rebound.test:443", f"127.0.0.1:{port}"), listen=(0,))
        attempts = [
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
        ]
        results = await run(heard, reaching(reach, namespaces=namespaces), PROGRAM, json.dumps(attempts))
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
            stuck = command(reaching(Reach(hosts=("localhost",))), PROGRAM, json.dumps(attempts))
            process = await fork_server.spawn(stuck, Recorder(), stderr=lambda _: begun.set())
            await asyncio.wait_for(begun.wait(), 60)
            began = monotonic()
            process.kill()
            assert await asyncio.wait_for(process.wait(), 60) == -9
            assert monotonic() - began < 5


# -- uses of files that walls refuse are told where the walls say so

watched = pytest.mark.skipif(bool(probe().gate), reason=f"files cannot be watched here: {probe().gate}")
TRIES = """
import json, os, subprocess, sys
home = sys.argv[1]
def tried(work):
    try:
        work()
        return ""
    except OSError as error:
        return type(error).__name__
os.chdir(home + "/open")
print(json.dumps([
    tried(lambda: open("note").close()),
    tried(lambda: open(home + "/closed/note").close()),
    tried(lambda: open("../closed/note").close()),
    tried(lambda: open("link").close()),
    tried(lambda: open(home + "/closed/none").close()),
    tried(lambda: open(home + "/open/note", "a").close()),
    tried(lambda: open(home + "/closed/new", "w").close()),
    tried(lambda: os.mkdir(home + "/closed/folder")),
    tried(lambda: os.rename(home + "/write/here", home + "/closed/there")),
    tried(lambda: os.unlink(home + "/closed/note")),
    tried(lambda: open(home + "/write/new", "w").close()),
    tried(lambda: subprocess.run([home + "/open/program"])),
]), flush=True)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("open", "closed", "write"):
        (tmp_path / name).mkdir()
    for name in ("open/note", "closed/note", "write/here"):
        (tmp_path / name).write_text("x")
    (tmp_path / "open/link").symlink_to(tmp_path / "closed/note")
    (tmp_path / "open/program").write_text("#!/bin/sh\n")
    (tmp_path / "open/program").chmod(0o755)
    return tmp_path.resolve()


@watched
@requirement("box.files-seen")
async def test_what_landlock_refuses_is_told_and_nothing_else(home: Path) -> None:
    heard = Heard()
    grants = (Grant(path=str(home / "open")), Grant(path=str(home / "write"), mode="rw"))
    walls = Walls(profile="test", grants=(*python_grants(), *grants), reach=Reach(), watch="refused")
    results = await run(heard, walls, TRIES, str(home))
    no = "PermissionError"
    assert results == ["", no, no, no, "FileNotFoundError", no, no, no, no, no, "", no]
    told: Counter[tuple[str, str]] = Counter()
    for row in heard.shown.of("abcdefgh"):
        if row.what.startswith(f"{home}/"):  # Python looks for files of its own as well
            told[row.what.removeprefix(f"{home}/"), row.why] += row.count
    assert told == {
        ("closed/note", "not granted"): 3,
        ("open/note", "not granted to be written"): 1,
        ("closed", "not granted to be written"): 4,
        ("open/program", "not granted to be executed"): 1,
    }


@watched
@requirement("box.files-seen")
async def test_without_a_watch_files_are_not_looked_at(home: Path) -> None:
    heard = Heard()
    walls = Walls(profile="test", grants=(*python_grants(), Grant(path=str(home / "open"))), reach=Reach())
    await run(heard, walls, TRIES, str(home))
    assert not [row for row in heard.shown.of("abcdefgh") if row.kind == "file"]


# -- a gate that fails, by a fault of its own, ends its server: nothing is left that could decide its calls

FAULT = f"""
import sys
sys.path.append({str(ROOT)!r})
from transports.upstream import fork_server
from transports.upstream.walls import system_call_gate
def fail(self):
    raise RuntimeError("a fault of the gate")
{{patch}}
fork_server.main()
"""
SCRIPT = """
import json, os, socket, sys, time
if os.fork() == 0:
    os.setsid()
try:
    socket.socket().connect(("127.0.0.1", 9))
except OSError as error:
    print(json.dumps(error.errno), flush=True)
time.sleep(30)
"""


def run_with(patch: str, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    program = (sys.executable, "-I", "-S", "-X", "utf8", "-c", FAULT.format(patch=patch))
    monkeypatch.setattr(fork_server_client, "_PROGRAM", program)
    walls = Walls(profile="", grants=python_grants(), reach=Reach())
    argv = [sys.executable, "-I", "-S", "-c", SCRIPT]
    return asyncio.run(asyncio.wait_for(run_here(argv, walls.to_json(), None, "off"), 60))


@needs_walls
@requirement("box.network")
@pytest.mark.parametrize("patch", ["gate.Gate._turn = fail", "gate.Gate.start = fail"], ids=["running", "starting"])
def test_a_server_ends_with_its_gate_before_any_call_is_answered(patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_with(patch, monkeypatch)
    assert outcome.said == []
    assert outcome.code in (-signal.SIGKILL, None)
