"""One table of errors: what is raised is in it, what is documented is it, and nothing raises past it."""

import logging
from typing import Any

import httpx
import pytest

from gateway.config.settings import Settings
from gateway.serving.app import create_app
from session_store import MemoryBackend
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, server
from tests.support.mcp_clients import modern_body, modern_headers

pytestmark = pytest.mark.anyio


@requirement("pol.errors", "ops.redact")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_a_fault_of_ours_is_an_error_like_others(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.model_validate({"mcpServers": {"demo": server(DEMO)}})
    store = MemoryBackend()
    app = create_app(settings, store=store)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        body = modern_body("tools/call", {"name": "count", "arguments": {}}, request_id=7)
        good = await http.post("/mcp", json=body, headers=modern_headers(body))
        assert "result" in good.json()
        token = {"MCP-Gateway-Session": good.headers["mcp-gateway-session"]}

        async def fails(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("the secret of /etc/passwd")

        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
            patched.setattr(store.sessions, "resume", fails)
            headers = (
                {**modern_headers(body), **token} if method == "POST" else {**token, "Accept": "text/event-stream"}
            )
            bad = await http.request(method, "/mcp", json=body if method == "POST" else None, headers=headers)
        assert bad.status_code == 500 and bad.json()["error"]["code"] == -32603, bad.text
        assert bad.json()["id"] == (7 if method == "POST" else None)
        assert "secret" not in bad.text and "ZeroDivision" not in bad.text and "ZeroDivision" in caplog.text
        again = await http.post("/mcp", json=body, headers={**modern_headers(body), **token})
        assert again.json()["result"]["content"][0]["text"] == "2", "nothing was lost"
