"""Questions between replicas: answered by those who live and understand, and by nobody else's leave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.admin.replicas import ASK, PeerQueries
from session_store import MemoryBackend

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def replicas(backend: MemoryBackend, *names: str) -> AsyncIterator[list[PeerQueries]]:
    def answering(name: str) -> Any:
        async def answer(what: str, args: Any) -> Any:
            if what != "who":
                raise LookupError(what)
            return [name, args]

        return answer

    asking = [PeerQueries(backend.bus, name, answering(name)) for name in names]
    listening = [asyncio.create_task(one.listen()) for one in asking]
    await asyncio.sleep(0)  # each listens before anybody asks
    yield asking
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)


async def test_all_that_are_asked_answer() -> None:
    async with replicas(MemoryBackend(), "a", "b", "c") as (a, _, __):
        assert await a.ask("who", 1, ["a", "b", "c"]) == {name: [name, 1] for name in "abc"}
        assert await a.ask("who", 2, ["b"]) == {"b": ["b", 2]}


async def test_who_is_silent_or_of_another_version_is_not_waited_for() -> None:
    backend = MemoryBackend()
    async with replicas(backend, "a", "b") as (a, _):
        assert await a.ask("who", None, ["a", "b", "gone"], patience_s=0.05) == {"a": ["a", None], "b": ["b", None]}
        assert await a.ask("what", None, ["b"], patience_s=0.05) == {}
        await backend.bus.publish(ASK, b"not a question")
        await backend.bus.publish(ASK, b'{"number": 1}')
        assert await a.ask("who", None, ["b"]) == {"b": ["b", None]}
