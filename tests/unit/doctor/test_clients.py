"""What the doctor says of clients where it asks a running gateway."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.doctor.checks import check_everything
from gateway.doctor.findings import Finding
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


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


@requirement("ops.config")
async def test_clients_are_asked_for_where_operators_are_served(base: str, config: Path) -> None:
    (finding,) = await found("clients", config, f"{base}/elsewhere/mcp", base)
    assert finding.state == "ok"
    (finding,) = await found("clients", config, f"{base}/elsewhere/mcp", "")
    assert finding.state == "warning" and "answers 404" in finding.what and "--admin-url" in finding.do
    (finding,) = await found("endpoint", config, base, "")
    assert finding.state == "error" and "--admin-url" in finding.do
