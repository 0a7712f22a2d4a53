"""A gate that fails, by a fault of its own, ends its server: nothing is left that could decide the server's calls."""

import asyncio
import signal
import sys

import pytest

from tests.processes.places import needs_walls
from tests.requirements import requirement
from tests.support.walled import ROOT, Outcome, python_grants, run_here
from transports.upstream import spawn
from transports.upstream.walls.spec import Reach, Walls

pytestmark = needs_walls

FAULT = f"""
import sys
sys.path.append({str(ROOT)!r})
from transports.upstream import fork_server
from transports.upstream.walls import gate
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


def run(patch: str, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    program = (sys.executable, "-I", "-S", "-X", "utf8", "-c", FAULT.format(patch=patch))
    monkeypatch.setattr(spawn, "_PROGRAM", program)
    walls = Walls(profile="", grants=python_grants(), reach=Reach())
    argv = [sys.executable, "-I", "-S", "-c", SCRIPT]
    return asyncio.run(asyncio.wait_for(run_here(argv, walls.to_json(), None, "off"), 20))


@requirement("box.network")
@pytest.mark.parametrize("patch", ["gate.Gate._turn = fail", "gate.Gate.start = fail"], ids=["running", "starting"])
def test_a_server_ends_with_its_gate_before_any_call_is_answered(patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run(patch, monkeypatch)
    assert outcome.said == []
    assert outcome.code in (-signal.SIGKILL, None)
