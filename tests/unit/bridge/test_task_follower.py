"""A task that an earlier process has followed: it is the same one, or it is lost, and nobody else's is touched."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from gateway.bridge.task_follower import go_on, pause_s
from gateway.protocol.capabilities import caller_of_meta
from gateway.protocol.tasks import TaskAtServer
from gateway.tasks.made.questions import ServerTask
from tests.requirements import requirement
from tests.support.fake_upstream import a_live
from tests.unit.tasks.parts import CALLER, WORKING, Server, Work, an_exchange, turns
from transports.era import Era
from transports.jsonrpc import encode
from transports.upstream_port import LinkClosed

pytestmark = [pytest.mark.anyio, requirement("task.followed")]

CREATED = "2026-11-22T09:00:00Z"
MADE = TaskAtServer("t", CREATED, Era.MODERN)


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LEAST_POLL_S", "_DEFAULT_POLL_S"):
        monkeypatch.setattr(f"gateway.bridge.task_follower.{name}", 0.001)
    monkeypatch.setattr("gateway.bridge.task_follower.pause_s", lambda failures: 0.001)


class Resumed:
    """A call whose task is followed again. `lost` counts how often the server did not know the task."""

    lost = 0

    def __init__(self, task: Any) -> None:
        self.exchange = an_exchange(a_live(era="modern"), caller=CALLER)
        self.work, self.server = Work(self.exchange), Server()
        self.server.task = task
        self.exchange.run_as(self.work, 0)
        conversation = cast("Any", self.server)
        go_on(conversation, self.exchange)
        ServerTask(self.exchange, self.work, conversation).resume(MADE, self._lost)

    def _lost(self) -> None:
        self.lost += 1


@asynccontextmanager
async def resumed(task: Any) -> AsyncIterator[Resumed]:
    one = Resumed(task)
    yield one
    for background in one.server.background:
        background.cancel()


@pytest.mark.parametrize("created", [CREATED, "2026-11-22T09:00:00.25+00:00"])
async def test_the_same_task_is_followed(created: str) -> None:
    done = {"status": "completed", "createdAt": created, "result": {"content": []}}
    async with resumed(done) as one:
        await asyncio.wait_for(one.server.background[0], 5)
        assert one.work.outcome["result"] == {"content": []} and one.lost == 0
        assert one.server.sent == ["tasks/get"], "at once, and nothing is cancelled"


@pytest.mark.parametrize("task", [{"status": "completed", "createdAt": "2026-11-22T09:01:00Z", "result": {}}, []])
async def test_another_task_of_that_id_is_not_followed_or_cancelled(task: Any) -> None:
    async with resumed(task) as one:
        await asyncio.wait_for(one.server.background[0], 5)
        assert one.lost == 1 and one.work.outcome is None and not one.exchange.is_over
        one.exchange.cancel("the client has cancelled the task")
        assert one.server.sent == ["tasks/get"]


@pytest.mark.parametrize(("created", "is_cancelled"), [(CREATED, True), ("2026-11-22T09:01:00Z", False)])
async def test_a_task_is_cancelled_only_if_it_is_the_same(created: str, is_cancelled: bool) -> None:
    async with resumed(WORKING | {"createdAt": created}) as one:
        one.exchange.cancel("the client has cancelled the task")  # before the server was asked
        await turns(3)  # in which the call is done with
        assert len(one.server.background) == 2
        await asyncio.wait(one.server.background, timeout=5)
        assert ("tasks/cancel" in one.server.sent) is is_cancelled


async def test_a_task_that_the_next_owner_follows_is_not_cancelled() -> None:
    async with resumed(WORKING | {"createdAt": CREATED}) as one:
        await one.server.until(1)
        one.work.is_followed_elsewhere = True
        one.exchange.cancel("the gateway stops")
        await asyncio.wait(one.server.background, timeout=5)
        assert "tasks/cancel" not in one.server.sent


async def test_a_server_that_is_unavailable_for_a_moment_has_not_lost_its_task() -> None:
    assert sum(map(pause_s, range(1, 5))) == 15.0
    async with resumed(LinkClosed("restarting")) as one:
        await one.server.until(3)
        one.server.task = WORKING | {"createdAt": CREATED}
        await one.server.until(2)
        assert one.lost == 0 and not one.exchange.is_over


def test_a_client_is_read_from_the_store_as_it_was() -> None:
    caller = caller_of_meta(encode({"io.modelcontextprotocol/clientCapabilities": {"sampling": {}, "x": {"a": 1}}}))
    assert msgspec.json.decode(msgspec.json.encode(caller), type=type(caller)).key == caller.key
