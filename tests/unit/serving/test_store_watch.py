"""What operators are told of a store that does not answer."""

import asyncio
import logging

import pytest

from gateway.serving.store_watch import StoreWatch
from session_store import MemoryBackend, StoreUnavailable
from tests.requirements import requirement


class Flaky(MemoryBackend):
    is_away = True

    async def ping(self) -> None:
        if self.is_away:
            raise StoreUnavailable("connection refused")


@requirement("first.store")
def test_a_store_that_is_away_is_named_once_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    backend = Flaky()
    watch = StoreWatch(backend, "redis://me:secret@redis.example:6379/0")
    asyncio.run(watch.look())
    asyncio.run(watch.look())
    [said] = caplog.messages
    assert said.startswith("the session store redis://…@redis.example:6379/0 does not answer: connection refused;")
    assert "503" in said and watch.fault == "connection refused"
    backend.is_away = False
    asyncio.run(watch.look())
    assert caplog.messages[1:] == ["the session store redis://…@redis.example:6379/0 answers again"]
    assert not watch.fault
