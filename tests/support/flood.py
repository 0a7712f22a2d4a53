"""Sends many requests, given as bytes, over a few kept connections: faster than a client that parses its responses."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_WAIT_S = 30.0


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """The bytes of one request with its `Content-Length`. The caller gives the `Host` header."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode("latin-1", "replace") + body


async def flood(url: str, requests: Iterable[bytes], connections: int = 8) -> Counter[int]:
    """Send all requests. Returns the number of responses by status; 0 stands for a connection closed without one."""
    parts, waiting, statuses = urlsplit(url), iter(requests), Counter[int]()
    assert parts.hostname is not None and parts.port is not None
    host, port = parts.hostname, parts.port
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_some(host, port, waiting, statuses))
    return statuses


async def _some(host: str, port: int, waiting: Iterator[bytes], statuses: Counter[int]) -> None:
    reader = writer = None
    for data in waiting:
        if reader is None or writer is None:
            reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
        try:
            writer.write(data)
            async with asyncio.timeout(_WAIT_S):
                status, stays = await _answer(reader)
        except (OSError, asyncio.IncompleteReadError):
            status, stays = 0, False
        statuses[status] += 1
        if not stays:
            writer.close()
            reader = writer = None
    if writer is not None:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """The status of the response, and whether the connection can be used again: not after an open event stream."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head[9:12])
    found = _LENGTH.search(head)
    if found is not None:
        await reader.readexactly(int(found[1]))
        return status, b"\r\nconnection: close" not in head
    if b"text/event-stream" in head and b"transfer-encoding: chunked" in head:
        return status, False
    return status, status in (202, 204)
