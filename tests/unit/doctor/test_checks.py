"""`gateway.doctor.checks`: which checks run, in which order, and what is said of servers and clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.doctor.checks import check_everything, check_settings
from gateway.doctor.findings import Finding
from gateway.doctor.servers import check_servers
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


async def test_a_configuration_that_cannot_be_read_is_the_only_finding(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"gateway": {"port": "x"}}')
    found = [finding async for finding in check_everything(path, "", "")]
    assert [(finding.check, finding.state) for finding in found] == [("configuration", "error")]
    assert "gateway.port" in found[0].what


async def test_every_part_of_the_surroundings_is_checked() -> None:
    found = [finding.check async for finding in check_settings(Settings())]
    assert found[:3] == ["keys", "access", "workspaces"] and "files" in found and "store" in found
    assert found.index("files") < found.index("store") < found.index("policy")


@requirement("box.keys", "ops.check")
async def test_a_server_that_could_read_the_keys_is_an_error_and_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(tmp_path / "keys"))
    (tmp_path / "keys").write_text("k" * 40)
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"a": {"command": "cat", "sandbox": {"read": [str(tmp_path)]}}}}))
    found = [finding async for finding in check_everything(path, "", "")]
    told = [(finding.state, finding.what.partition(",")[0]) for finding in found if finding.check == "sandbox a"]
    assert told[1:] == [
        ("error", f"its processes can read {tmp_path}/keys"),
        ("warning", f"its processes can read {path}"),
    ]
    assert not [finding for finding in found if finding.check == "server a"], "the gateway would not start it"


@requirement("ops.check")
async def test_what_is_ignored_or_missing_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"theme": "dark", "mcpServers": {"a": {"type": "sse", "url": "https://a.example"}}}')
    states = {}
    async for finding in check_everything(path, "", ""):
        if finding.check != "configuration":
            break
        states[finding.what.removeprefix(f"{path}: ").partition(",")[0]] = finding.state
    assert states == {
        "0 servers": "ok",
        "nothing to serve": "warning",
        "ignored theme: not mcpServers or gateway": "ok",
        "mcpServers.a: not served": "warning",
    }


@pytest.mark.anyio
@requirement("ops.check")
async def test_a_policy_is_not_fine_while_a_server_does_not_answer() -> None:
    missing = {"command": "/does/not/exist", "tools": {"drop_*": {"operation": "eval"}}}
    settings = Settings.model_validate({"mcpServers": {"notes": missing, "search": {"command": "/nor/this"}}})
    found = [finding async for finding in check_servers(settings)]
    assert [(one.check, one.state) for one in found] == [
        ("server notes", "error"),
        ("server search", "error"),
        ("policy", "warning"),
    ]
    assert "not checked: notes, search" in found[-1].what and found[-1].do


@pytest.fixture
async def base() -> AsyncIterator[str]:
    """The URL of a listener that serves operators alone."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, body = (b"200 OK", b"[]") if b" /admin/api/warnings " in head else (b"404 Not Found", b"no")
        writer.write(b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration that is checked no further."""
    path = tmp_path / "mcp.json"
    path.write_text('{"gateway": {"port": "x"}}')
    return path


async def found(check: str, config: Path, url: str, admin_url: str) -> list[Finding]:
    return [each async for each in check_everything(config, url, "", "key", admin_url) if each.check == check]


@pytest.mark.anyio
@requirement("ops.config")
async def test_clients_are_asked_for_where_operators_are_served(base: str, config: Path) -> None:
    (finding,) = await found("clients", config, f"{base}/elsewhere/mcp", base)
    assert finding.state == "ok"
    (finding,) = await found("clients", config, f"{base}/elsewhere/mcp", "")
    assert finding.state == "warning" and "answers 404" in finding.what and "--admin-url" in finding.do
    (finding,) = await found("endpoint", config, base, "")
    assert finding.state == "error" and "--admin-url" in finding.do
