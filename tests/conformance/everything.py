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
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.free_ports import free_port
from tests.tools.obtain import sdk_source

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


@contextlib.contextmanager
def served_over_http(command: Sequence[str] = ()) -> Iterator[str]:
    """The URL of the SDK's server as it is, on HTTP; or of the server that a command starts on a port."""
    port = free_port()
    if not command:
        source = sdk_source(version("mcp")) / "examples/servers/everything-server"
        start = (
            f"import sys; sys.path.insert(0, {str(source)!r}); from mcp_everything_server.server import main; main()"
        )
        command = [sys.executable, "-W", "ignore", "-c", start, "--log-level", "ERROR", "--port"]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, str(port)], cwd=ROOT, **quiet)
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(10)


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
    """Given a listener's descriptor, fork a server for everyone who connects, on the three descriptors they send."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    server = fixtures()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            flag, descriptors, *_ = socket.recv_fds(connection, 1, 3)
            for target, fd in enumerate(descriptors):
                os.dup2(fd, target)
                os.close(fd)
            if flag == b"\1":
                _ask_as_before(server)
            server.run("stdio")
            os._exit(0)  # `connection` closes with it, which is what session.py waits for
        connection.close()


def _ask_as_before(server: Any) -> None:
    """Fixtures that answer with `input_required` ask by requests during the call instead: the same questions, the same
    rounds, in the words of the handshake era."""
    import mcp_types as types
    from mcp.server.mcpserver import Context

    answers = {
        "elicitation/create": types.ElicitResult,
        "sampling/createMessage": types.CreateMessageResult,
        "roots/list": types.ListRootsResult,
    }

    def asking(original: Any) -> Any:
        async def fixture(ctx: Context) -> Any:
            capabilities = ctx.session.client_capabilities
            seen = SimpleNamespace(input_responses=None, request_state=None, client_capabilities=capabilities)
            while isinstance(result := await original(seen), types.InputRequiredResult):
                asked = result.input_requests or {}
                replies = await asyncio.gather(
                    *(ctx.session.send_request(request, answers[request.method]) for request in asked.values())
                )
                if "capabilities" in original.__name__:
                    return "asked for what the client declared"
                seen.input_responses = dict(zip(asked, replies, strict=True))
                seen.request_state = result.request_state
            return result

        fixture.__name__, fixture.__doc__ = original.__name__, original.__doc__
        return fixture

    module = sys.modules["mcp_everything_server.server"]
    for name in [name for name in vars(module) if name.startswith("test_input_required_result_")]:
        fixture = asking(getattr(module, name))
        if name.endswith("_prompt"):
            server._prompt_manager._prompts.pop(name)
            server.prompt()(fixture)
        else:
            server.remove_tool(name)
            server.tool()(fixture)


if __name__ == "__main__":
    main()
