"""A stand-in for a gateway that a test kills: `stand_in.py TAG COUNT` starts that many children and waits."""

import asyncio
import sys

from tests.processes.children import DAEMON, SETSID, STUBBORN, Family, Recorder, until
from transports.upstream.fork_server_client import ForkServer


async def main(tag: str, count: int) -> None:
    family = Family(tag)
    programs = [SETSID, DAEMON, STUBBORN]
    sinks = [Recorder() for _ in range(count)]
    async with ForkServer() as fork_server:
        await asyncio.gather(*(fork_server.spawn(family.python(programs[n % 3]), sink) for n, sink in enumerate(sinks)))
        assert await until(lambda: all(sink.lines for sink in sinks))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
