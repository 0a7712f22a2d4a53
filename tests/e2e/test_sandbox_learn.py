"""A server is watched, and works under `strict` with what was learnt of it."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from socket import create_server
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import ROOT, running_gateway
from tests.support.mcp_clients import Legacy, tool_text
from transports.upstream.walls.kernel import probe

pytestmark = pytest.mark.skipif(bool(probe().gate), reason=f"a server cannot be watched here: {probe().gate}")

EVALUATING = str(ROOT / "tests/support/evaluating_server.py")


def message(number: int, method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


@requirement("box.learn")
def test_a_server_works_under_strict_with_what_was_learnt_of_it(http: httpx.Client, tmp_path: Path) -> None:
    for name in ("data", "out", ".ssh"):
        (tmp_path / name).mkdir()
    (tmp_path / "data/in").write_text("read")
    (tmp_path / ".ssh/id_ed25519").write_text("key")
    with create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def accept() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        work = {
            f"Path({str(tmp_path / 'data/in')!r}).read_text()": "read",
            f"Path({str(tmp_path / 'out/new')!r}).write_text('x')": "1",
            f"socket.create_connection(('127.0.0.1', {port})).close()": "None",
        }
        opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        codes = [*work, f"Path({str(tmp_path / '.ssh/id_ed25519')!r}).read_text()"]
        asked = [message(0, "initialize", **opening)]
        asked += [
            message(number, "tools/call", name="python", arguments={"code": code})
            for number, code in enumerate(codes, 1)
        ]
        command = [sys.executable, "-m", "gateway", "sandbox", "learn", "--write", str(tmp_path / "learnt.json")]
        with subprocess.Popen(
            [*command, "--", sys.executable, EVALUATING],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        ) as learning:  # fmt: skip
            assert learning.stdin is not None and learning.stdout is not None
            learning.stdin.write("\n".join(asked) + "\n")
            learning.stdin.flush()
            answers: dict[int, Any] = {}
            while len(answers) < len(asked):  # the server has notifications as well
                answer = json.loads(learning.stdout.readline())
                answers |= {answer["id"]: answer} if "id" in answer else {}
            _, told = learning.communicate(timeout=30)
        assert learning.returncode == 0, told
        assert "key" in json.dumps(answers[len(codes)]), "everything is open while it is learnt"
        table = json.loads((tmp_path / "learnt.json").read_text())
        assert table == {
            "profile": "strict",
            "read": [str(tmp_path / "data/in")],
            "write": [str(tmp_path / "out")],
            "reach": [f"localhost:{port}"],
        }
        with_earlier = {"profile": "strict", "read": ["/srv/earlier", str(tmp_path / "data/in")]}
        (tmp_path / "learnt.json").write_text(json.dumps(with_earlier))
        subprocess.run([*command, "--", "true"], check=True, stdin=subprocess.DEVNULL, capture_output=True, cwd=ROOT)
        assert json.loads((tmp_path / "learnt.json").read_text()) == with_earlier, "runs add up"
        assert f"DANGER: it reads {tmp_path}/.ssh/id_ed25519" in told and '"sandbox": {' in told
        entry = {"command": sys.executable, "args": [EVALUATING]}
        (tmp_path / "out/new").unlink()
        with running_gateway(
            {"learnt": {**entry, "sandbox": table}, "bare": {**entry, "sandbox": "strict"}}
        ) as gateway:
            client = Legacy(gateway.url, http).open()

            def result(server: str, code: str) -> str:
                return tool_text(client.tool(f"{server}__python", {"code": code}))

            refused = {result("bare", code) for code in work}
            assert refused <= {"PermissionError", "FileNotFoundError"}, "the latter with a /tmp of its own"
            assert [result("learnt", code) for code in work] == list(work.values())
            assert result("learnt", codes[-1]) in ("PermissionError", "FileNotFoundError")
