"""Redis behind Sentinel: the store goes on with the new master, and loses nothing that was replicated."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from session_store import StoreUnavailable
from session_store.redis import RedisBackend
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.support.sentinels import Sentinels, running_sentinels

pytestmark = requirement("rep.redis")


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    with running_sentinels() as sentinels:
        yield sentinels


@pytest.fixture
async def backend(sentinels: Sentinels) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(sentinels.url)
    await backend.open()
    yield backend
    await backend.close()


async def test_a_failover_is_followed_and_keeps_what_was_replicated(
    sentinels: Sentinels, backend: RedisBackend
) -> None:
    now = time.time()
    session = await backend.sessions.create(a_session(FakeClock(now)), alias="alias")
    await backend.state.set(session.id, "k", b'"kept"')
    sentinels.wait(lambda: sentinels.look(sentinels.replica).dbsize() == sentinels.look(sentinels.master).dbsize())
    heard: list[bytes | None] = []
    async with backend.bus.subscribed("topic", heard.append):
        sentinels.processes[sentinels.master].kill()
        began = time.monotonic()
        async with asyncio.timeout(30):
            while True:
                try:
                    assert await backend.sessions.resume(session.id, ALICE) is not None, "never as if it were gone"
                    await backend.state.increment(session.id, "n", 1)
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.1)
            took = time.monotonic() - began
            while b"again" not in heard:
                await backend.bus.publish("topic", b"again")
                await asyncio.sleep(0.1)
    assert await backend.state.get(session.id, "k") == b'"kept"'
    assert took < 15
