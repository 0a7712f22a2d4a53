"""A stdio server that implements the fixtures of the conformance suite: the one the SDK ships, on stdio.

Loading it takes about as long as the suite gives a call (0.5 s), and with isolated processes most calls start one. So
it is loaded once, and `session.py`, the command the gateway starts, has it forked: still a process for each session.

One tool differs. `test_reconnection` closes its own HTTP stream in the original, which a stdio server cannot; here it
takes longer than the gateway keeps a stream open in this configuration, so that the client has to read on.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.tools.obtain import sdk_source

__all__ = ["loaded"]

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def loaded() -> Iterator[tuple[str, ...]]:
    """The command that starts one more server, as long as this is entered."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder, "socket"))
        listener.bind(path)
        listener.listen(128)
        fd = listener.fileno()
        process = subprocess.Popen([sys.executable, "-m", __name__, str(fd)], pass_fds=[fd], cwd=ROOT)
        try:
            yield sys.executable, "-IS", str(Path(__file__).with_name("session.py")), path
        finally:
            process.kill()
            process.wait()


def fixtures() -> Any:
    """The SDK's server, with our tool in place of its own."""
    sys.path.insert(0, str(sdk_source(version("mcp")) / "examples/servers/everything-server"))
    from mcp.server.mcpserver import Context
    from mcp_everything_server.server import mcp  # type: ignore[import-not-found]  # fetched at run time

    async def test_reconnection(ctx: Context) -> str:
        """Tests SSE polling (SEP-1699)."""
        await ctx.info("Before disconnect")
        await asyncio.sleep(2.0)
        await ctx.info("After reconnect")
        return "Reconnection test completed"

    mcp.remove_tool("test_reconnection")
    mcp.tool()(test_reconnection)
    return mcp


def main() -> None:
    """Fork a server for everyone who connects, on the three descriptors they send."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    server = fixtures()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for target, fd in enumerate(socket.recv_fds(connection, 1, 3)[1]):
                os.dup2(fd, target)
                os.close(fd)
            server.run("stdio")
            os._exit(0)  # `connection` closes with it, which is what session.py waits for
        connection.close()


if __name__ == "__main__":
    main()
