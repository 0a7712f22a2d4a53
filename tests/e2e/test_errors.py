"""One table of errors: what is raised is in it, what is documented is it, and nothing raises past it."""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import gateway.errors
import transports.jsonrpc
from gateway.config.settings import Settings
from gateway.errors import ERRORS
from gateway.serving.app import create_app
from session_store import MemoryBackend
from tests.requirements import requirement
from tests.support.raw import modern_body, modern_headers
from tests.support.running import DEMO, server

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
CODES = {**vars(transports.jsonrpc), **vars(gateway.errors)}


def raised() -> Iterator[tuple[str, int, int]]:
    """Where, status and code of every refusal that the sources spell out."""
    for path in [*ROOT.glob("gateway/**/*.py"), *ROOT.glob("transports/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refused":
                status, code = node.args[:2]
                if isinstance(status, ast.Constant) and isinstance(code, ast.Name):
                    yield f"{path.name}:{node.lineno}", int(str(status.value)), CODES[code.id]


@requirement("pol.errors")
def test_every_refusal_is_in_the_table() -> None:
    found = list(raised())
    assert len(found) > 30
    strangers = [where for where, status, code in found if code not in ERRORS or status not in ERRORS[code].statuses]
    assert strangers == []
    ours = {value for name, value in vars(gateway.errors).items() if name.isupper() and isinstance(value, int)}
    assert ours <= ERRORS.keys()


@requirement("pol.errors")
def test_the_table_is_the_one_users_read() -> None:
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| -")]
    assert rows == [
        f"| {code} | {', '.join(map(str, kind.statuses))} | {kind.name} | {kind.fault} | {kind.retry} |"
        for code, kind in ERRORS.items()
    ]


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
