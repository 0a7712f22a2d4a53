"""What clients are told of a task: its outcome only once the store has it."""

import asyncio
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from gateway.identity.request_context import RequestContext
from gateway.tasks.made import MadeTasks
from gateway.tasks.refusals import UnknownTask
from gateway.tasks.running import RunningTask
from session_store import Principal, StoreFull, StoreUnavailable, Task
from tests.requirements import requirement
from tests.unit.tasks.parts import Replica, Store, handle_of, one_that_runs, result
from transports.inbound_port import Refused

pytestmark = [pytest.mark.anyio, requirement("task.durable")]


class Scene:
    """A task that runs here. `go` lets the store write. This object is what counts and records requests."""

    def __init__(self, store: Store, replica: Replica, running: RunningTask, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.running = store, running
        self.go = asyncio.Event()
        self.failures: list[Exception] = []
        self.counted: list[str] = []
        tasks, parts = store.backend.tasks, cast("Any", self)
        write = tasks.replace

        async def replace(task: Task) -> bool:
            await self.go.wait()
            if self.failures:
                raise self.failures.pop()
            return await write(task)

        monkeypatch.setattr(tasks, "replace", replace)
        self.made = MadeTasks(
            replica.table,
            replica.recovery,
            sessions=store.backend.sessions,
            resolver=parts,
            cluster=None,
            rates=parts,
            audit=parts,
            may_see=lambda *_: True,
        )
        self.handle = handle_of(running.task)
        self.who = RequestContext(running.task.principal, None, "c")

    async def of_session(self, session_id: str) -> None:
        """Any number of requests is allowed."""
        self.counted.append(session_id)

    def record(self, kind: str, **what: Any) -> None:
        """Refusals are for the audit trail."""

    async def get(self) -> Any:
        async with asyncio.timeout(10):
            return msgspec.json.decode(await self.made.get(self.handle, "handle", self.who))

    async def listed(self) -> list[str]:
        task = self.running.task
        heads = await self.store.backend.tasks.of_session(task.session_id)
        return [each.status for each in await self.made.seen(heads, task.endpoint, self.who)]


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(*await one_that_runs(), monkeypatch)


async def test_an_outcome_is_told_and_found_once_the_store_has_it(scene: Scene) -> None:
    scene.running.exchange.settle(result("done"))
    assert scene.running.task.is_over
    asked = asyncio.ensure_future(scene.get())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asked.done() and await scene.listed() == ["working"], "another replica would say so too"
    assert (await scene.made.find(scene.handle, scene.who)).status == "working"
    scene.go.set()
    assert (await asked)["result"]["text"] == "done" and await scene.listed() == ["completed"]
    assert (await scene.made.find(scene.handle, scene.who)).status == "completed"


async def test_what_is_told_is_what_a_full_store_keeps(scene: Scene) -> None:
    scene.failures.append(StoreFull("full"))
    scene.go.set()
    scene.running.exchange.settle(result("done"))
    told = await scene.get()
    assert told["status"] == "failed" and "full" in told["statusMessage"]


@pytest.mark.parametrize("how", ["get", "cancelled"])
async def test_nobody_waits_for_ever_for_a_store_that_does_not_answer(
    scene: Scene, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.tasks.made._STORED_S", 0.05)
    if how == "get":
        scene.running.exchange.settle(result("done"))
    with pytest.raises(StoreUnavailable):
        await (scene.get() if how == "get" else scene.made.cancelled(scene.handle, scene.who))
    scene.go.set()
    told = await scene.get()
    assert told["status"] == ("completed" if how == "get" else "cancelled")


async def test_what_another_owner_has_decided_is_told_while_the_call_is_in_flight_here(scene: Scene) -> None:
    scene.go.set()
    decided = replace(scene.running.task, status="completed", result=b'{"text":"of the other owner"}', epoch=2)
    assert await scene.store.backend.tasks.replace(decided)
    scene.running.record.change(message="progress")
    assert not await scene.running.record.written() and scene.running.task.status == "working"
    assert (await scene.get())["result"]["text"] == "of the other owner" and await scene.listed() == ["completed"]


@pytest.mark.parametrize(
    ("decided", "refused", "why"),
    [
        ({"status": "completed", "result": b"{}"}, Refused, "it is completed already"),
        ({}, StoreUnavailable, "another gateway"),
    ],
)
async def test_a_task_is_cancelled_only_if_the_store_says_so(
    scene: Scene, decided: dict[str, Any], refused: type[Exception], why: str
) -> None:
    scene.go.set()
    assert await scene.store.backend.tasks.replace(replace(scene.running.task, epoch=2, **decided))
    with pytest.raises(refused, match=why):
        await scene.made.cancelled(scene.handle, scene.who)
    assert (await scene.store.read(scene.running.task)).status == decided.get("status", "working")


@requirement("wall.order")
@pytest.mark.parametrize("method", ["get", "update", "cancel", "cancelled", "counted"])
async def test_who_asks_about_the_task_of_another_does_not_use_up_the_rate_of_its_session(
    scene: Scene, method: str
) -> None:
    scene.go.set()
    more: dict[str, list[Any]] = {"get": ["handle"], "update": [{}]}
    given = more.get(method, [])
    ask = getattr(scene.made, method)
    stranger = RequestContext(Principal(issuer="api-key", subject="mallory"), None, "c")
    for _ in range(28):
        with pytest.raises(UnknownTask):
            await ask(scene.handle, *given, stranger)
    assert scene.counted == []
    await ask(scene.handle, *given, scene.who)
    assert scene.counted == [scene.handle.session_id]
