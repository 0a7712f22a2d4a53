"""A client of a gateway on stdin and stdout, which writes its lines itself."""

import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.commands import CommandProcess, piped_command
from tests.support.gateway_process import PROBE, ROOT
from tests.support.waiting import GIVE_UP_S


class Typed:
    """Runs `mcp-session-gateway stdio` with these options, in front of the server `child`; or `argv`."""

    def __init__(
        self,
        *options: str,
        env: Mapping[str, str] | None = None,
        child: Sequence[str] = PROBE,
        argv: Sequence[str] = (),
    ) -> None:
        served = ["--", *child] if child else []
        environment = {**os.environ, "MCP_GATEWAY_LIMITS__LIST_TIMEOUT_S": str(GIVE_UP_S), **(env or {})}
        self.process: CommandProcess | subprocess.Popen[bytes]
        if argv:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
        else:
            self.process = piped_command(["stdio", *options, *served], env=environment)
        self._log: list[bytes] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self._id = 0

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data + b"\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the gateway has ended:\n{self.log()}"
        return json.loads(line)

    def ask(self, method: str, params: Any = None) -> Any:
        """The answer to a request. What comes before it is dropped."""
        self._id += 1
        self.write(json.dumps({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params or {}}).encode())
        while (answer := self.read()).get("id") != self._id:
            pass
        return answer

    def tool(self, name: str, arguments: Any = None) -> str:
        answer = self.ask("tools/call", {"name": name, "arguments": arguments or {}})
        return str(answer["result"]["content"][0]["text"])

    def initialize(self, *, name: str = "t", **more: Any) -> Any:
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": name, "version": "1"}}
        answer = self.ask("initialize", info | more)
        self.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return answer

    def log(self) -> str:
        """What the gateway has written to stderr so far."""
        return b"".join(self._log).decode()

    def end(self) -> int:
        """Close stdin; the exit code."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(60)
        self._reader.join(5)
        self.process.stdout.close()
        return code

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            self._log.extend(stream)
