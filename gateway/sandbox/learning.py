"""Runs a server that may touch everything, and records what it and all that it starts do touch."""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

from gateway.config.sandbox import LIMITS, Sandbox
from gateway.config.upstreams import UpstreamSettings
from gateway.sandbox.gates import SandboxGates
from gateway.sandbox.learnt import Learnt, learnt
from gateway.sandbox.lookups import Lookups, addresses_of
from gateway.sandbox.profiles import Enclosure, OwnFolder, enclosure_of
from gateway.sandbox.refused import Refusals
from gateway.sandbox.session_refusals import SessionRefusals
from transports.upstream.process import Command, LineSink, Process
from transports.upstream.spawn import ForkServer
from transports.upstream.stdio import HOME, INHERITED
from transports.upstream.walls.spec import Grant, Reach, Walls

__all__ = ["Lesson", "watched"]

_EVERYTHING: Final = Walls(
    profile="learn",
    grants=(Grant(path="/", mode="rwx"),),
    reach=Reach(public=True, names=True, hosts=("*",), sockets=("/",)),
    watch="everything",
)


class Lesson:
    """What a server touches while it runs."""

    def __init__(self, enclosure: Enclosure, own: OwnFolder) -> None:
        self._enclosure = enclosure
        self._own = own
        self._touched: dict[tuple[str, str], None] = {}
        self._names: dict[str, str] = {}
        self._asked: dict[str, None] = {}

    def add(self, kind: str, what: str) -> None:
        """The gate tells of it."""
        self._touched[kind, what] = None

    def resolve(self, name: str) -> list[str]:
        """The addresses of a name, which are remembered. Runs in a thread."""
        self._asked[name] = None
        found = addresses_of(name)
        self._names.update(dict.fromkeys(found, name))
        return found

    def result(self) -> Learnt:
        """The grants that the server needs under `strict`."""
        own = (os.path.realpath(self._own.path),)
        found = learnt(self._touched, names=self._names, grants=self._enclosure.walls.grants, own=own)
        found.add_unused(self._asked)
        return found


@asynccontextmanager
async def watched(
    settings: UpstreamSettings, sink: LineSink, stderr: Callable[[bytes], None]
) -> AsyncIterator[tuple[Process, Lesson]]:
    """Start a server with a folder of its own, as under `strict`, but with everything open. It ends with the context.

    Raises:
        ProcessFailed: the command cannot be started.
    """
    inherited = {name: value for name in INHERITED if (value := os.environ.get(name)) is not None}
    limits: dict[str, Any] = dict(LIMITS["strict"])
    enclosure = await asyncio.to_thread(
        enclosure_of, settings, Sandbox(profile="strict", **limits), inherited=inherited
    )
    with tempfile.TemporaryDirectory(prefix="mcp-learn-", ignore_cleanup_errors=True) as folder:
        own = OwnFolder(Path(folder))
        for made in (own.home, own.temporary):
            made.mkdir()
        given = enclosure.process(own)
        # Python does without compiled files. A grant to write them would let each session change what others run.
        env = {**inherited, "PYTHONDONTWRITEBYTECODE": "1", **given.env, **settings.env}
        lesson = Lesson(enclosure, own)
        refusals = Refusals(Counter(), _unheard, monotonic, SessionRefusals(monotonic), lesson.add)
        command = Command(
            argv=settings.argv,
            env=env,
            cwd=env["HOME"] if given.cwd == HOME else given.cwd,
            walls=_EVERYTHING,
        )
        async with ForkServer(SandboxGates(refusals, Lookups(lesson.resolve))) as fork_server:
            process = await fork_server.spawn(command, sink, stderr=stderr)
            try:
                yield process, lesson
            finally:
                await process.shutdown(grace_s=2.0)
                await asyncio.sleep(0.05)  # the last packets of the gate are on their way


def _unheard(*, session: str, server: str, reason: str, count: int) -> None:
    """There is no session that has events."""
