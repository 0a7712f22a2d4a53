"""`tasks/list`: the tasks of the session, then those of the principal's other sessions, page by page."""

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from gateway.identity.request_context import RequestContext
from gateway.tasks.errors import UnknownTask
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.task_requests import PAGE
from session_store import ANONYMOUS, Principal, Session, StoreFull, StoreUnavailable, Task
from session_store.testing import ALICE, BOB
from tests.requirements import requirement
from tests.unit.calls.parts import turns
from tests.unit.tasks.parts import Replica, Store, a_task, handle_of, one_that_runs, result
from transports.inbound_port import Refused

pytestmark = requirement("task.asked")

T = TypeVar("T")


class Scene:
    """A store with tasks of some sessions."""

    def __init__(self) -> None:
        self.store = Store()
        replica = Replica(self.store)
        self.quotas = replica.quotas
        self.made = replica.made(self, lambda task, *_: task.tool != "hidden")

    async def add(self, session: str, *ids: str, **fields: Any) -> list[str]:
        for number, task_id in enumerate(ids):
            task = a_task(id=task_id, session_id=session, **fields)
            task = replace(task, created_at=task.created_at + number / 1_000)
            assert await self.quotas.hold(task)
            await self.store.tasks.create(task)
        return [f"{session}/{task_id}" for task_id in ids]

    async def page(
        self, session: str, after: str, shown: Callable[[Task], T], principal: Principal = ALICE
    ) -> tuple[list[T], str]:
        record: Session = replace(self.store.session, id=session, principal=principal)
        tasks, more = await self.made.page(record, "/mcp", RequestContext(principal, None, "c"), after)
        return [shown(task) for task in tasks], more

    async def pages(self, session: str, principal: Principal = ALICE) -> list[list[str]]:
        after, pages = "", list[list[str]]()
        while len(pages) < 20:
            page, after = await self.page(session, after, name_of, principal)
            pages.append(page)
            if not after:
                break
        return pages


def name_of(task: Task) -> str:
    return task.name


def ids(many: int) -> list[str]:
    return [f"t{number:03}" for number in range(many)]


async def test_the_tasks_of_other_sessions_follow_those_of_the_session() -> None:
    scene = Scene()
    own = await scene.add("s2", "c", "a", "b")
    before, after = await scene.add("s1", "z"), await scene.add("s3", "-y")
    assert await scene.pages("s2") == [own + before + after]
    assert await scene.pages("s9") == [before + sorted(own) + after], "a client that has started again"
    scene.store.clock.pass_time(1_000_000.0)
    assert await scene.pages("s9") == [[]]


@requirement("id.bound")
async def test_nothing_is_listed_that_would_not_be_found_and_an_anonymous_session_gets_its_own_only() -> None:
    scene = Scene()
    await scene.add("s1", "a", principal=BOB)
    await scene.add("s2", "b", tool="hidden")
    await scene.add("s3", "c", endpoint="/servers/main/mcp")
    seen = await scene.add("s4", "d")
    own = await scene.add("s5", "e", principal=ANONYMOUS)
    await scene.add("s6", "f", principal=ANONYMOUS)
    assert await scene.pages("s9") == [seen]
    assert await scene.pages("s5", ANONYMOUS) == [own] and await scene.pages("s9", ANONYMOUS) == [[]]


@pytest.mark.parametrize("own", [0, 1, PAGE - 1, PAGE, PAGE + 1])
async def test_a_page_is_bounded_and_no_task_is_lost_between_two(own: int) -> None:
    scene = Scene()
    mine = await scene.add("s2", *ids(own))
    others = await scene.add("s1", *ids(PAGE + 3))
    await scene.add("s0", *ids(PAGE), tool="hidden")
    pages = await scene.pages("s2")
    assert [*chain(*pages)] == mine + others and max(map(len, pages)) <= PAGE


async def test_a_page_goes_on_where_the_last_one_ended_whatever_has_expired() -> None:
    scene = Scene()
    brief = await scene.add("s1", *ids(PAGE))
    kept = await scene.add("s1", "kept", "last", created_at=a_task().created_at + 1.0, ttl_s=600.0)
    page, after = await scene.page("s1", "", name_of)
    assert page == brief and after
    scene.store.clock.pass_time(120.0)
    assert await scene.page("s1", after, name_of) == (kept, ""), "none twice, and none lost"


async def test_a_list_reads_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    for session in ("s1", "s2"):
        await scene.add(session, "a", "b", result=b"x" * 1_000, status="completed")
    monkeypatch.setattr(scene.store.tasks, "get", None)
    assert await scene.page("s1", "", lambda task: task.result) == ([b""] * 4, "")


@pytest.mark.parametrize("cursor", ["t000", "é", '[NaN,"a"]', '[1e999,"a"]', "[1]", "{}", '[1,"\\ud800"]'])
async def test_a_forged_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(Refused, match="Invalid cursor"):
        await Scene().page("s1", cursor, name_of)


class One:
    """A task that runs here. This object is what counts and records requests."""

    def __init__(self, store: Store, replica: Replica, running: RunningTask) -> None:
        self.store, self.running = store, running
        self.counted: list[str] = []
        self.made = replica.made(self)
        self.handle = handle_of(running.task)
        self.who = RequestContext(running.task.principal, None, "c")

    async def count_call(self, session_id: str, size: int = 0) -> None:
        """Any number of requests is allowed."""
        self.counted.append(session_id)

    def refused(self, refused: UnknownTask, about: Any, **what: Any) -> UnknownTask:
        """Refusals are for the audit trail."""
        return refused

    async def get(self) -> Any:
        async with asyncio.timeout(60):
            return msgspec.json.decode(await self.made.get(self.handle, "handle", self.who))

    async def listed(self) -> list[str]:
        task = self.running.task
        heads = await self.store.tasks.of_session(task.session_id)
        return [each.status for each in await self.made.visible(heads, task.endpoint, self.who)]


@pytest.fixture
async def scene() -> One:
    return One(*await one_that_runs())


@requirement("task.durable")
async def test_an_outcome_is_told_and_found_once_the_store_has_it(scene: One) -> None:
    scene.store.tasks.go.clear()
    scene.running.exchange.finish_translated(result("done"))
    assert scene.running.task.is_over
    asked = asyncio.ensure_future(scene.get())
    await turns(20)
    assert not asked.done() and await scene.listed() == ["working"], "another replica would say so too"
    assert (await scene.made.find(scene.handle, scene.who)).status == "working"
    scene.store.tasks.go.set()
    assert (await asked)["result"]["text"] == "done" and await scene.listed() == ["completed"]
    assert (await scene.made.find(scene.handle, scene.who)).status == "completed"


async def test_what_is_told_is_what_a_full_store_keeps(scene: One) -> None:
    scene.store.tasks.failures.append(StoreFull("full"))
    scene.running.exchange.finish_translated(result("done"))
    told = await scene.get()
    assert told["status"] == "failed" and "full" in told["statusMessage"]


@pytest.mark.parametrize("how", ["get", "cancelled"])
async def test_nobody_waits_for_ever_for_a_store_that_does_not_answer(
    scene: One, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.store.tasks.go.clear()
    if how == "get":
        scene.running.exchange.finish_translated(result("done"))
    with monkeypatch.context() as short, pytest.raises(StoreUnavailable):
        short.setattr("gateway.tasks.gateway_tasks.task_requests._STORED_S", 0.05)
        await (scene.get() if how == "get" else scene.made.cancelled(scene.handle, scene.who))
    scene.store.tasks.go.set()
    told = await scene.get()
    assert told["status"] == ("completed" if how == "get" else "cancelled")


@requirement("task.durable")
async def test_what_another_owner_has_decided_is_told_while_the_call_is_in_flight_here(scene: One) -> None:
    decided = replace(scene.running.task, status="completed", result=b'{"text":"of the other owner"}', epoch=2)
    assert await scene.store.tasks.replace(decided)
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
    scene: One, decided: dict[str, Any], refused: type[Exception], why: str
) -> None:
    assert await scene.store.tasks.replace(replace(scene.running.task, epoch=2, **decided))
    with pytest.raises(refused, match=why):
        await scene.made.cancelled(scene.handle, scene.who)
    assert (await scene.store.read(scene.running.task)).status == decided.get("status", "working")


@requirement("wall.order")
@pytest.mark.parametrize("method", ["get", "update", "cancel", "cancelled", "counted"])
async def test_who_asks_about_the_task_of_another_does_not_use_up_the_rate_of_its_session(
    scene: One, method: str
) -> None:
    more: dict[str, list[Any]] = {"get": ["handle"], "update": [{}]}
    given = more.get(method, [])
    ask = getattr(scene.made, method)
    with pytest.raises(UnknownTask):
        await ask(scene.handle, *given, RequestContext(BOB, None, "c"))
    assert scene.counted == []
    await ask(scene.handle, *given, scene.who)
    assert scene.counted == [scene.handle.session_id]
