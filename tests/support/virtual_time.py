"""Time that passes at once: an event loop that skips what it waits for."""

import asyncio
from typing import Any

import pytest

from session_store.testing import FakeClock


def skip_waits(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Have the running loop let the time pass in place of waiting for it. Returns its clock."""
    clock, loop = FakeClock(), asyncio.get_running_loop()
    selector = vars(loop)["_selector"]
    select = selector.select

    def skip(timeout: float | None = None) -> Any:
        clock.pass_time(timeout or 0)
        return select(0 if timeout else timeout)

    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(selector, "select", skip)
    return clock
