"""A client that returns to no session is told of wherever an operator looks, with the line that mends it."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.operating.conftest import ADMIN, OPERATOR
from tests.requirements import requirement
from tests.support import mcp_clients
from tests.support.commands import run_command
from tests.support.gateway_process import DEMO, SIGNED, UNLIMITED, running_gateway, server
from tests.support.mcp_clients import Modern
from tests.support.waiting import eventually

NODE = {"User-Agent": "node"}


@pytest.mark.timeout(180)
@requirement("cli.told")
def test_a_client_that_returns_to_no_session_is_told_of(tmp_path: Path, http: httpx.Client, ops: httpx.Client) -> None:
    store = f"sqlite:///{tmp_path}/sessions.db"
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"main": server(DEMO)}, "gateway": {"store": store}}))

    def doctor(*arguments: str) -> list[dict[str, str]]:
        env = {**os.environ, **SIGNED, "MCP_GATEWAY_ADMIN_KEY": OPERATOR}
        ran = run_command("doctor", "--json", *arguments, env=env)
        return [finding for finding in json.loads(ran.stdout) if finding["check"] == "clients"]

    options: Any = {"store": store, "admin": ADMIN, "policy": UNLIMITED}
    with running_gateway({"main": server(DEMO)}, options=options, env=SIGNED) as gateway:
        assert ops.get(f"{gateway.base}/admin/api/warnings").json() == []
        for _ in range(6):
            Modern(gateway.url, http, headers=NODE).tool("count")
        assert eventually(lambda: "client needs a session key" in gateway.stderr())
        (warned,) = ops.get(f"{gateway.base}/admin/api/warnings").json()
        assert (warned["client"], warned["agent"], warned["principal"], warned["sessions"]) == (
            mcp_clients.client_name,
            "node",
            "anonymous",
            6,
        )
        line = warned["line"]
        assert line.startswith("new StreamableHTTPClientTransport(url, ") and "MCP-Gateway-Session-Key" in line
        page = ops.get(f"{gateway.base}/admin").text
        assert "Clients that need a session key" in page and "StreamableHTTPClientTransport" in page
        by_url = doctor("--config", str(config), "--url", gateway.url)
        assert [finding["state"] for finding in by_url] == ["warning", "warning"], "by the store, and by the gateway"
        assert all(
            line in finding["do"] and f"{mcp_clients.client_name} (node)" in finding["what"] for finding in by_url
        )
        told = [text for text in gateway.stderr().splitlines() if "client needs a session key" in text]
        assert len(told) == 1 and "level=warning" in told[0]
        answer = Modern(gateway.url, http, headers=NODE).tool("count")
        token = {"MCP-Gateway-Session": answer.headers["mcp-gateway-session"]}
        Modern(gateway.url, http, headers=NODE | token).tool("count")
        assert ops.get(f"{gateway.base}/admin/api/warnings").json() == [], "it has returned"
    (finding,) = doctor("--config", str(config))
    assert finding["state"] == "warning" and line in finding["do"]
