"""A command behind a gate, whose channel leads to this process."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dns.message
import dns.rrset
import pytest

from transports.upstream.walls.wall_specification import Reach

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Gateway:
    """The gateway's end of a gate's channel. Answers questions of DNS with `names`, and keeps what is refused."""

    channel: socket.socket
    names: dict[str, list[str]]
    learn: bool
    refused: list[dict[str, Any]] = field(default_factory=list)

    def serve(self) -> None:
        while True:
            data, fds, _, _ = socket.recv_fds(self.channel, 65_536, 4)
            if not data:
                return
            packet = json.loads(data)
            self.refused += packet.get("refused", ())
            for fd in fds:
                threading.Thread(target=self.answer, args=(socket.socket(fileno=fd),), daemon=True).start()

    def answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(EOFError, OSError), client.makefile("rb") as stream:
            while head := stream.read(2):
                query = dns.message.from_wire(stream.read(int.from_bytes(head, "big")))
                response = dns.message.make_response(query)
                name, kind = query.question[0].name, query.question[0].rdtype
                for address in self.names.get(str(name).rstrip("."), ()):
                    if self.learn:
                        self.channel.send(json.dumps({"reachable": [[address, None, 60]]}).encode())
                    if kind == (28 if ":" in address else 1):
                        response.answer.append(dns.rrset.from_text(name, 60, "IN", kind, address))
                wire = response.to_wire()
                client.sendall(len(wire).to_bytes(2, "big") + wire)

    def shown(self) -> list[tuple[str, str, str]]:
        return [(each["kind"], each["what"], each["why"]) for each in self.refused]


def python_for(uid: int) -> str:
    """A Python that this user may run: another user may not get to the virtual environment."""
    found = os.path.realpath(sys.executable) if uid == os.getuid() else shutil.which("python3", path="/usr/bin:/bin")
    return found or pytest.skip("this machine has no Python that another user may run")


@dataclass
class Gated:
    """A command that runs behind a gate."""

    process: subprocess.Popen[str]
    gateway: Gateway
    served: threading.Thread

    def output(self, timeout_s: float = 30) -> str:
        """What the command has written, once it has ended; an error if it failed."""
        out, err = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, (self.process.returncode, out, err)
        self.served.join(5)
        return out


@contextlib.contextmanager
def gated(
    *command: str,
    reach: Reach,
    names: dict[str, list[str]] | None = None,
    learn: bool = False,
    uid: int = 0,
    cwd: str | None = None,
) -> Iterator[Gated]:
    """Run the command behind a gate with this reach, both as this user. `names` are the names that resolve."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {**os.environ, "RES_OPTIONS": "use-vc", "HOME": "/tmp", "PYTHONPATH": str(ROOT)}
    reaper = [
        python_for(uid),
        "-m",
        "tests.support.announcing",
        str(there.fileno()),
        json.dumps(asdict(reach)),
        str(uid),
    ]
    with here:
        process = subprocess.Popen(
            [*reaper, *command],
            pass_fds=[there.fileno()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=cwd,
            start_new_session=True,
        )  # fmt: skip
        there.close()
        gateway = Gateway(here, names or {}, learn)
        served = threading.Thread(target=gateway.serve, daemon=True)
        served.start()
        try:
            yield Gated(process, gateway, served)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            served.join(5)
