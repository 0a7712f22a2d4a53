"""The socket to a session's state that a stdio child is given: what it does, and what it refuses."""

import asyncio
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from session_store import InvalidState, StoreUnavailable
from session_store.child_process_session import SocketState, child_session
from session_store.current_tool_session import MISSING, current_session
from session_store.ports.tool_state import MAX_VALUE_BYTES
from tests.requirements import requirement
from tests.support import mcp_clients
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.waiting import eventually
from tests.tools.obtain import node

DOCUMENT = Path(__file__).parents[2] / "docs/state.md"


class Child:
    """A session with a child, whose environment is at hand."""

    def __init__(self, gateway: RunningGateway, http: httpx.Client) -> None:
        self.client = Legacy(f"{gateway.base}/servers/probe/mcp", http).open(meta={"orbit.workspace": "w-1"})
        self.env = json.loads(tool_text(self.client.tool("env", {"prefix": "MCP_SESSION_"})))
        self.socket = self.env["MCP_SESSION_SOCKET"]
        self.http = httpx.Client(transport=httpx.HTTPTransport(uds=self.socket), base_url="http://session")
        self.access = {"Authorization": f"Bearer {self.env['MCP_SESSION_ACCESS']}"}

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.http.request(method, path, headers=self.access, **more)


@pytest.fixture(scope="module")
def probe() -> Iterator[RunningGateway]:
    """Servers without a sandbox: the socket of a sandboxed server serves that server alone, and here we ask it."""
    with running_gateway({"probe": server(PROBE, sandbox="off")}) as gateway:
        yield gateway


@pytest.fixture
def child(probe: RunningGateway, http: httpx.Client) -> Iterator[Child]:
    made = Child(probe, http)
    yield made
    made.http.close()


@requirement("ctx.state")
def test_state_over_the_socket(child: Child) -> None:
    assert child.ask("GET", "/v1/state/k").status_code == 404
    assert child.ask("PUT", "/v1/state/k", json={"b": [1, None], "a": "\u00fc"}).status_code == 204
    assert child.ask("GET", "/v1/state/k").content == '{"a":"\u00fc","b":[1,null]}'.encode()
    assert child.ask("POST", "/v1/state/n/increment").json() == {"value": 1}
    assert child.ask("POST", "/v1/state/n/increment", json={"by": -3}).json() == {"value": -2}
    swap = "/v1/state/a%2Fb%20%C3%BC/compare-and-set"
    assert child.ask("POST", swap, json={"value": None}).json() == {"swapped": True}
    assert child.ask("POST", swap, json={"expected": 1, "value": 2}).json() == {"swapped": False}
    assert child.ask("GET", "/v1/state").json() == {"keys": ["a/b \u00fc", "k", "n"]}
    assert child.ask("POST", swap, json={"expected": None}).json() == {"swapped": True}
    assert [child.ask("DELETE", "/v1/state/k").status_code for _ in range(2)] == [204, 404]
    facts = child.ask("GET", "/v1/session").json()
    assert facts["session_id"] == child.env["MCP_SESSION_ID"] and facts["workspace"] == "w-1"


@requirement("ctx.state", "id.purpose", "ctx.isolated")
def test_access_is_good_for_one_session_and_nothing_else(probe: RunningGateway, http: httpx.Client) -> None:
    one, other = Child(probe, http), Child(probe, http)
    one.ask("PUT", "/v1/state/k", json="mine")
    assert other.ask("GET", "/v1/state/k").status_code == 404
    token = {"Authorization": f"Bearer {one.client.session}"}
    for headers in (other.access, token, {}, {"Authorization": one.env["MCP_SESSION_ACCESS"]}):
        answer = one.http.get("/v1/state/k", headers=headers)
        assert answer.status_code == 401 and "error" in answer.json()
    as_token = Legacy(f"{probe.base}/servers/probe/mcp", http)
    as_token.session = one.env["MCP_SESSION_ACCESS"]
    assert as_token.tool("pid").status_code == 404, "nor does it open the gateway"
    assert os.stat(one.socket).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(one.socket)).st_mode & 0o777 == 0o700
    one.http.close()
    other.http.close()


@requirement("ctx.state")
def test_the_socket_dies_with_its_child(child: Child) -> None:
    child.client.tool("crash")
    assert eventually(lambda: not os.path.exists(child.socket))
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(OSError):
        late.connect(child.socket)
    env = json.loads(tool_text(child.client.tool("env", {"prefix": "MCP_SESSION_"})))
    assert env["MCP_SESSION_SOCKET"] != child.socket and env["MCP_SESSION_ACCESS"] != child.env["MCP_SESSION_ACCESS"]
    child.client.delete()
    assert eventually(lambda: not os.path.exists(env["MCP_SESSION_SOCKET"]))


@requirement("ctx.state", "ctx.scope")
def test_python_in_a_child_uses_it_as_tools_in_the_gateway_do(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in child.env.items():
        monkeypatch.setenv(name, value)
    child_session.cache_clear()
    session = current_session()
    assert (session.id, session.context.workspace) == (child.env["MCP_SESSION_ID"], "w-1")
    assert session.agent == mcp_clients.client_name

    async def use() -> None:
        state = session.state
        assert await state.get("k", "default") == "default"
        await state.set("k", {"a": 1})
        assert await state.get("k") == {"a": 1} and await state.keys() == ["k"]
        assert await state.increment("n") == 1 and await state.increment("n", 4) == 5
        assert not await state.compare_and_set("k", MISSING, 1)
        assert await state.compare_and_set("k", {"a": 1}, MISSING)
        assert [await state.delete("n") for _ in range(2)] == [True, False]
        with pytest.raises(InvalidState):
            await state.set("k", "x" * MAX_VALUE_BYTES)
        assert await session.metadata() == {}
        with pytest.raises(PermissionError, match="in-process"):
            await session.annotate({"a": "b"})
        with pytest.raises(StoreUnavailable):
            await SocketState(child.socket + "x", "y").get("k")

    asyncio.run(use())
    child_session.cache_clear()


@requirement("ctx.state")
def test_the_node_example_in_the_document_works(child: Child, tmp_path: Path) -> None:
    block = re.search(r"```js\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert block
    program = tmp_path / "example.mjs"
    program.write_text(block[1], encoding="utf-8")
    ran = subprocess.run(
        [node(), program], env={**os.environ, **child.env}, capture_output=True, text=True, timeout=30, check=False
    )
    assert ran.stdout.split() == ["undefined", "hello"], ran.stderr
    assert child.ask("GET", "/v1/state/greeting").json() == "hello"


@requirement("box.siblings", "ctx.state")
def test_the_socket_of_a_walled_server_serves_its_own_processes(http: httpx.Client) -> None:
    servers = {
        "demo": {**server(DEMO), "sandbox": "standard"},
        "probe": {**server(PROBE), "sandbox": "standard"},
    }
    with running_gateway(servers) as gateway:
        own = Legacy(f"{gateway.base}/servers/demo/mcp", http).open()
        assert tool_text(own.tool("remember", {"key": "k", "value": "mine"})) == "Remembered."
        assert tool_text(own.tool("recall", {"key": "k"})) == "mine"
        stolen = Child(gateway, http)
        refused = stolen.ask("GET", "/v1/state")
        stolen.http.close()
        assert refused.status_code == 403 and "processes of one server" in refused.json()["error"]


@requirement("ctx.limits")
def test_bad_input_is_told_and_changes_nothing(child: Child) -> None:
    child.ask("PUT", "/v1/state/k", json="kept")
    large = b'"' + b"x" * MAX_VALUE_BYTES + b'"'
    for method, path, body, words in (
        ("PUT", "/v1/state/k", large, str(MAX_VALUE_BYTES)),
        ("PUT", "/v1/state/k", b"[" * 100_000, "not JSON"),
        ("PUT", f"/v1/state/{'x' * 300}", b"1", "256"),
        ("POST", "/v1/state/k/increment", b"", "integer"),
        ("POST", "/v1/state/n/increment", b'{"by":1.5}', "integer"),
        ("POST", "/v1/state/n/increment", b'{"to":1}', "object of by"),
    ):
        answer = child.ask(method, path, content=body)
        assert answer.status_code == 400 and words in answer.json()["error"], answer.text
    assert child.ask("PUT", "/v1/state/k", content=b" " * 500_000).status_code == 413
    assert child.ask("GET", "/v1/nothing").status_code == 404
    assert child.ask("GET", "/v1/state").json() == {"keys": ["k"]}
    assert child.ask("GET", "/v1/state/k").json() == "kept"
