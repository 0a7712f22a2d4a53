"""Claims that come together wait for the copies of the store together."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import session_store.redis.replica_directory as module
from session_store import StoreUnavailable
from session_store.redis.replica_directory import RedisDirectory
from session_store.redis.sessions import RedisSessionStore
from tests.requirements import requirement

pytestmark = requirement("rep.quick", "rep.failover")


class Server:
    """Plays the connection. `WAIT` is answered when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = True
        self.waits: list[asyncio.Future[int]] = []
        monkeypatch.setattr(module, "Connection", lambda _: self)
        monkeypatch.setattr(module, "encoded", lambda *command: command)
        commands: Any = SimpleNamespace(client_for=lambda _: "client")
        self.directory = RedisDirectory(commands, RedisSessionStore(commands))

    def send(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if command[0] == "WAIT":
            self.waits.append(reply)
        else:
            reply.set_result([b"master", 0, [b"a copy"]] if command[0] == "ROLE" else b"OK")
        return reply

    async def reply_to(self, command: tuple[Any, ...]) -> Any:
        return await self.send(command)

    def ask(self, many: int) -> list[asyncio.Task[bool]]:
        return [asyncio.create_task(self.directory.copied(f"session {n}")) for n in range(many)]

    async def waits_come(self, many: int) -> None:
        async with asyncio.timeout(60):
            while len(self.waits) < many:  # noqa: ASYNC110 - each turn is looked at
                await asyncio.sleep(0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


async def test_who_asks_during_a_wait_shares_the_next_one_and_all_go_on_together(server: Server) -> None:
    first = server.ask(1)
    await server.waits_come(1)
    later = server.ask(50)
    server.waits[0].set_result(1)
    await server.waits_come(2)
    assert first[0].done() and not any(each.done() for each in later), "the first wait does not show their claims"
    server.waits[1].set_result(1)
    for _ in range(10):  # turns of the event loop, however many they are
        await asyncio.sleep(0)
    assert all(each.done() and each.result() for each in later) and len(server.waits) == 2


@pytest.mark.parametrize("failure", [None, StoreUnavailable("away")])
async def test_nobody_waits_for_a_while_after_a_copy_was_too_slow(server: Server, failure: Exception | None) -> None:
    asked = server.ask(1)
    await server.waits_come(1)
    asked += server.ask(1)
    if failure is None:
        server.waits[0].set_result(0)
    else:
        server.waits[0].set_exception(failure)
    assert await asyncio.gather(*asked, *server.ask(1)) == [False, False, False] and len(server.waits) == 1


async def test_who_leaves_ends_no_wait_of_others(server: Server) -> None:
    leaves, stays = server.ask(2)
    await server.waits_come(1)
    leaves.cancel()
    await asyncio.sleep(0)
    server.waits[0].set_result(1)
    assert await stays
