"""Uses of files that walls refuse, and all uses, are told where the walls say so."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.processes.children import Recorder
from tests.requirements import requirement
from tests.support.walled import python_for, python_grants
from transports.upstream.process import Command
from transports.upstream.spawn import ForkServer
from transports.upstream.walls.kernel import probe
from transports.upstream.walls.spec import Grant, Reach, Walls

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(probe().gate), reason=f"files cannot be watched here: {probe().gate}"),
]

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


class Heard:
    """The other end of a gate's channel."""

    def __init__(self) -> None:
        self.packets: list[dict[str, Any]] = []
        self._channels: list[socket.socket] = []

    def open(self, channel: socket.socket, *, reach: Reach, fields: Callable[[], Mapping[str, Any]]) -> None:
        self._channels.append(channel)
        channel.setblocking(False)
        asyncio.get_running_loop().add_reader(channel.fileno(), self._read, channel)

    def _read(self, channel: socket.socket) -> None:
        packet = channel.recv(65_536)
        if packet:
            self.packets.append(json.loads(packet))
        else:
            asyncio.get_running_loop().remove_reader(channel.fileno())

    async def close(self) -> None:
        for channel in self._channels:
            asyncio.get_running_loop().remove_reader(channel.fileno())
            channel.close()

    def all(self, name: str) -> list[Any]:
        return [each for packet in self.packets for each in packet.get(name, ())]


async def run(heard: Heard, walls: Walls, script: str, *arguments: str) -> list[Any]:
    recorder = Recorder()
    command = Command(
        argv=(python_for(None), "-I", "-S", "-c", script, *arguments), env={"PATH": "/usr/bin:/bin"}, walls=walls
    )
    async with ForkServer(heard) as fork_server:
        process = await fork_server.spawn(command, recorder)
        assert await asyncio.wait_for(process.wait(), 30) == 0, process.stderr_tail()
        await asyncio.sleep(0)  # the reader of what the gate has sent before it ended
    found: list[Any] = json.loads(recorder.lines[-1])
    return found


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


@requirement("box.files-seen")
async def test_what_landlock_refuses_is_told_and_nothing_else(home: Path) -> None:
    heard = Heard()
    grants = (Grant(path=str(home / "open")), Grant(path=str(home / "write"), mode="rw"))
    walls = Walls(profile="test", grants=(*python_grants(), *grants), reach=Reach(), watch="refused")
    results = await run(heard, walls, TRIES, str(home))
    no = "PermissionError"
    assert results == ["", no, no, no, "FileNotFoundError", no, no, no, no, no, "", no]
    told: Counter[tuple[str, str]] = Counter()
    for each in heard.all("refused"):
        if each["what"].startswith(f"{home}/"):  # Python looks for files of its own as well
            told[each["what"].removeprefix(f"{home}/"), each["why"]] += each["count"]
    assert told == {
        ("closed/note", "not granted"): 3,
        ("open/note", "not granted to be written"): 1,
        ("closed", "not granted to be written"): 4,
        ("open/program", "not granted to be executed"): 1,
    }


@requirement("box.files-seen")
async def test_without_a_watch_files_are_not_looked_at(home: Path) -> None:
    heard = Heard()
    walls = Walls(profile="test", grants=(*python_grants(), Grant(path=str(home / "open"))), reach=Reach())
    await run(heard, walls, TRIES, str(home))
    assert not [each for each in heard.all("refused") if each["kind"] == "file"]
