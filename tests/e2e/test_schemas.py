"""What a server's input schemas may make the gateway do: nothing but check arguments, in bounded time."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, failed_text, messages, tool_text
from tests.support.table_server import listing, table_server


class Canary:
    """Takes connections, and counts them."""

    def __init__(self) -> None:
        self.seen = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/schema.json"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.seen += 1
            time.sleep(3)  # as long as a slow stranger likes
            connection.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def canary() -> Iterator[Canary]:
    canary = Canary()
    yield canary
    canary.close()


def tool(name: str, schema: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema}


def doubling(levels: int) -> dict[str, Any]:
    """A schema of few lines that is 2^levels when its references are followed."""
    defs: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "object"}}}


@requirement("wall.decoded")
def test_a_schema_makes_the_gateway_fetch_nothing_and_wait_for_nothing(
    canary: Canary, http: httpx.Client, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"type": "object", "required": ["only-who-read-the-file-knows"]}')
    remote, local = canary.url, secret.as_uri()
    tools = [
        tool("fine", {"type": "object", "properties": {"n": {"type": "integer"}}}),
        tool("ref", {"type": "object", "properties": {"a": {"$ref": remote}}}),
        tool("file", {"$ref": local}),
        tool("dynamic", {"$dynamicRef": remote}),
        tool("dialect", {"$schema": remote, "type": "object"}),
        tool("based", {"$id": remote, "$ref": "other.json"}),
        tool("hidden", {"type": "object", "properties": {"a": {"$id": remote, "$ref": "#/x"}}}),
        tool("unused", {"type": "object", "$defs": {"a": {"$ref": remote}}}),
        tool("doubling", doubling(40)),
        tool("wrong", {"type": "objekt"}),
        tool("none", "no schema at all"),
        tool("relist", {"type": "object", "pattern": "^(?=a)"}),
    ]
    with in_process_gateway({"s": table_server(listing(tools=tools))}) as gateway:
        for client in (Legacy(gateway.url, http).open(), Modern(gateway.url, http)):
            answer = client.call("tools/list") if isinstance(client, Legacy) else client.send("tools/list")
            assert [t["name"] for t in messages(answer)[-1]["result"]["tools"]] == ["fine", "relist"]
            for name in (t["name"] for t in tools if t["name"] not in ("fine", "relist")):
                began = time.monotonic()
                error = messages(client.tool(name))[-1]["error"]
                assert error["code"] == -32602 and "input schema is invalid" in error["message"], error
                assert "only-who-read" not in error["message"]
                assert time.monotonic() - began < 1, name
            assert "did" in tool_text(client.tool("fine", {"n": 1}))
            assert "Invalid arguments" in failed_text(client.tool("fine", {"n": "one"}))
        log = gateway.stderr()
        for name in (t["name"] for t in tools if t["name"] not in ("fine", "relist")):
            assert log.count(f"the input schema of tool s/{name} is invalid") == 1, "once, for all lists together"
    assert canary.seen == 0


@requirement("wall.decoded")
def test_an_operator_can_allow_tools_whose_schemas_cannot_be_used(canary: Canary, http: httpx.Client) -> None:
    tools = [tool("ref", {"$ref": canary.url}), tool("wrong", {"type": "objekt"})]
    options = {"policy": {"unusable_schemas": "allow"}}
    with in_process_gateway({"s": table_server(listing(tools=tools))}, options=options) as gateway:
        client = Legacy(gateway.url, http).open()
        assert "did" in tool_text(client.tool("ref")) and "did" in tool_text(client.tool("wrong"))
        assert len(messages(client.call("tools/list"))[-1]["result"]["tools"]) == 2
    assert canary.seen == 0
