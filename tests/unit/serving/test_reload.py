"""When a configuration is loaded again."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.serving import reload
from gateway.serving.reload import ReloadTriggers, state_of
from tests.requirements import requirement

pytestmark = requirement("live.reload")


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The handler that a test replaces."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


async def test_a_file_that_changes_between_its_reading_and_the_start_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "_WATCH_EVERY_S", 0.001)
    file, loaded = tmp_path / "mcp.json", asyncio.Event()
    file.write_text("{}")
    read_from = state_of([file])
    file.write_text('{"mcpServers": {}}')

    async def again() -> None:
        loaded.set()

    triggers = ReloadTriggers(again, file, lambda: None, read_from)
    triggers.start()
    async with asyncio.timeout(60):
        await loaded.wait()
    await triggers._tasks.close()
