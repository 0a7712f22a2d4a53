"""What process tests share."""

import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.processes.children import Family, House, Recorder
from tests.processes.places import KERNEL, WHO, Place
from tests.support.walled import python_grants
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.walls.wall_specification import Grant, Walls


@pytest.fixture
async def fork_server() -> AsyncIterator[ForkServer]:
    async with ForkServer() as fork_server:
        yield fork_server


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    yield family
    for pid in family.members():
        with contextlib.suppress(ProcessLookupError):  # one that is ending may be gone by now
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


@pytest.fixture
def house(fork_server: ForkServer, family: Family, sink: Recorder) -> House:
    return House(fork_server, family, sink)


@pytest.fixture(scope="module", params=WHO)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """For each user, without namespaces and with them."""
    user, apart = WHO[request.param]
    if apart and KERNEL.namespaces:
        pytest.skip(f"here, {KERNEL.namespaces}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp is another one with namespaces
        folders = [Path(name).resolve() / each for each in ("own", "read", "closed")]
        for folder in folders:
            folder.mkdir()
            (folder / "file").write_text("text", encoding="utf-8")
            (folder / "true").symlink_to(folder / "file")
        if user:
            for path in (Path(name), *Path(name).rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)
        own, read, closed = folders
        grants = (*python_grants(user), Grant(path=str(own), mode="rw"), Grant(path=str(read), mode="r"))
        yield Place(user, own, read, closed, Walls(profile="tried", grants=grants, namespaces=bool(apart)))
