"""The bytes of a JSON response are those that uvicorn writes."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.requirements import requirement
from transports.inbound.http import send_json
from transports.inbound.response_heads import JsonHeads
from transports.inbound_port import HeaderList

pytestmark = [pytest.mark.anyio, requirement("hot.memory")]

DATE: HeaderList = [(b"date", b"Sun, 22 Nov 2026 00:00:00 GMT"), (b"X-Of-Config", b"a b")]


async def of_uvicorn(status: int, defaults: HeaderList, headers: HeaderList, body: bytes) -> bytes:
    written = bytearray()
    transport: Any = SimpleNamespace(write=written.extend)
    flow: Any = SimpleNamespace(write_paused=False)
    cycle = RequestResponseCycle(
        scope={"method": "POST"},  # type: ignore[typeddict-item]  # what the writing reads
        transport=transport,
        flow=flow,
        logger=logging.getLogger(),
        access_logger=logging.getLogger(),
        access_log=False,
        default_headers=defaults,
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )
    await send_json(cycle.send, status, body, headers)  # type: ignore[arg-type]  # of other names for the same
    return bytes(written)


@pytest.mark.parametrize("status", [200, 400, 404])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"Mcp-Session-Id", b"t")],
        [(b"set-cookie", b"a=b; Path=/"), (b"set-cookie", b"c=d"), (b"vary", b"Origin"), (b"x", b"\xe9")],
    ],
)
async def test_a_response_has_the_bytes_of_uvicorn(status: int, headers: HeaderList) -> None:
    made = JsonHeads()
    for body in (b"{}", b"", b"x" * 100_000):
        expected = await of_uvicorn(status, DATE, headers, body)
        for _ in range(2):  # the second time from what was kept
            head = made.head(status, DATE, headers, len(body))
            assert head is not None and head + body == expected


async def test_what_changes_is_made_anew() -> None:
    made, later = JsonHeads(), [(b"date", b"later")]
    for status, defaults, headers in (
        *((200, DATE, []), (200, later, []), (400, later, []), (200, later, [(b"a", b"b")])),
        *((200, later, [(b"a", b"c")]), (200, [*later], [(b"a", b"c")]), (200, later, [])),
    ):
        assert made.head(status, defaults, headers, 0) == await of_uvicorn(status, defaults, headers, b"")


@requirement("wall.framing")
@pytest.mark.parametrize(
    "header",
    [
        *((name, b"x") for name in (b"connection", b"Connection", b"content-length", b"Transfer-Encoding")),
        *((b"x", value) for value in (b"a\r\nb: c", b"a\nb", b"\x00", b"\x7f")),
        *((name, b"x") for name in (b"a b", b"a:", b"a\r\n", b"\x00")),
    ],
)
def test_headers_that_uvicorn_has_to_judge_are_left_to_it(header: tuple[bytes, bytes]) -> None:
    assert JsonHeads().head(200, DATE, [header], 2) is None
    assert JsonHeads().head(200, [header], [], 2) is None
