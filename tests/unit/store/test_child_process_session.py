"""What a failure of the state socket says of the operation."""

import asyncio
from pathlib import Path

import pytest

from session_store import StoreUnavailable
from session_store.child_process_session import SocketState
from tests.requirements import requirement

pytestmark = requirement("ctx.state")


@pytest.mark.parametrize(
    ("status", "may"), [("504 Gateway Timeout", True), ("503 ", False), ("401 ", False), ("", True)]
)
async def test_only_an_operation_that_was_sent_and_not_refused_may_have_taken_effect(
    status: str, may: bool, tmp_path: Path
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        if status:
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 16\r\n\r\n".encode() + b'{"error": "why"}')
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "socket"):
        with pytest.raises(StoreUnavailable) as failed:
            await SocketState(str(tmp_path / "socket"), "access").increment("n", 1)
    assert failed.value.may_have_taken_effect is may and ("why" in str(failed.value) or not status)


async def test_an_operation_that_reaches_no_gateway_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as failed:
        await SocketState(str(tmp_path / "none"), "access").increment("n", 1)
    assert not failed.value.may_have_taken_effect
