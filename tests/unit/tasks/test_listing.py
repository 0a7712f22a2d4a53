"""`tasks/list`: the tasks of the session, then those of the principal's other sessions, page by page."""

from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar, cast

import pytest
from msgspec.structs import replace

from gateway.config.tasks import TaskSettings
from gateway.identity.request_context import RequestContext
from gateway.tasks.listing import PAGE, TaskLists
from gateway.tasks.made import MadeTasks
from gateway.tasks.quotas import TaskQuotas
from session_store import ANONYMOUS, Principal, Session, Task
from tests.requirements import requirement
from tests.unit.tasks.parts import ALICE, BOB, Replica, Store
from tests.unit.tasks.test_answers import a_task
from transports.inbound_port import Refused

pytestmark = [pytest.mark.anyio, requirement("task.asked")]

T = TypeVar("T")


class Scene:
    """A store with tasks of some sessions."""

    def __init__(self) -> None:
        self.store = Store()
        backend, replica = self.store.backend, Replica(self.store)
        self.quotas = TaskQuotas(TaskSettings(max_per_session=1_000), backend.quotas, backend.tasks)
        parts = cast("Any", self)
        made = MadeTasks(
            replica.table,
            replica.recovery,
            sessions=backend.sessions,
            resolver=parts,
            cluster=None,
            rates=parts,
            audit=parts,
            may_see=lambda task, *_: task.tool != "hidden",
        )
        self.lists = TaskLists(made, self.quotas, backend.tasks)

    async def add(self, session: str, *ids: str, principal: Principal = ALICE, **fields: Any) -> list[str]:
        for number, task_id in enumerate(ids):
            task = replace(a_task(), id=task_id, session_id=session, principal=principal, **fields)
            task = replace(task, created_at=task.created_at + number / 1_000)
            assert await self.quotas.hold(task)
            await self.store.backend.tasks.create(task)
        return [f"{session}/{task_id}" for task_id in ids]

    async def page(
        self, session: str, after: str, shown: Callable[[Task], T], principal: Principal = ALICE
    ) -> tuple[list[T], str]:
        record: Session = replace(self.store.session, id=session, principal=principal)
        return await self.lists.page(record, "/mcp", RequestContext(principal, None, "c"), after, shown)

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


async def test_the_tasks_of_other_sessions_follow_those_of_the_session() -> None:
    scene = Scene()
    own = await scene.add("s2", "c", "a", "b")
    before, after = await scene.add("s1", "z"), await scene.add("s3", "-y")
    assert await scene.pages("s2") == [own + before + after]
    assert await scene.pages("s9") == [before + sorted(own) + after], "a client that has started again"
    scene.store.clock.pass_time(1_000_000.0)
    assert await scene.pages("s9") == [[]]


@requirement("id.bound")
async def test_nothing_is_listed_that_would_not_be_found() -> None:
    scene = Scene()
    await scene.add("s1", "a", principal=BOB)
    await scene.add("s2", "b", tool="hidden")
    await scene.add("s3", "c", endpoint="/servers/main/mcp")
    seen = await scene.add("s4", "d")
    assert await scene.pages("s9") == [seen]


@requirement("id.bound")
async def test_an_anonymous_session_gets_its_own_only() -> None:
    scene = Scene()
    own = await scene.add("s1", "a", principal=ANONYMOUS)
    await scene.add("s2", "b", principal=ANONYMOUS)
    assert await scene.pages("s1", ANONYMOUS) == [own] and await scene.pages("s3", ANONYMOUS) == [[]]


@pytest.mark.parametrize("own", [0, 1, PAGE - 1, PAGE, PAGE + 1])
async def test_a_page_is_bounded_and_no_task_is_lost_between_two(own: int) -> None:
    scene = Scene()
    mine = await scene.add("s2", *(f"t{number:03}" for number in range(own)))
    others = await scene.add("s1", *(f"t{number:03}" for number in range(PAGE + 3)))
    hidden = [f"h{number:03}" for number in range(PAGE)]
    await scene.add("s0", *hidden, tool="hidden")
    pages = await scene.pages("s2")
    assert [*chain(*pages)] == mine + others and max(map(len, pages)) <= PAGE


async def test_a_page_goes_on_where_the_last_one_ended_whatever_has_expired() -> None:
    scene = Scene()
    brief = await scene.add("s1", *(f"t{number:03}" for number in range(PAGE)), ttl_s=60.0)
    kept = await scene.add("s1", "kept", "last", created_at=a_task().created_at + 1.0, ttl_s=600.0)
    page, after = await scene.page("s1", "", name_of)
    assert page == brief and after
    scene.store.clock.pass_time(120.0)
    assert await scene.page("s1", after, name_of) == (kept, ""), "none twice, and none lost"


async def test_a_list_reads_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    for session in ("s1", "s2"):
        await scene.add(session, "a", "b", result=b"x" * 1_000, status="completed")
    monkeypatch.setattr(scene.store.backend.tasks, "get", None)
    assert await scene.page("s1", "", lambda task: task.result) == ([b""] * 4, "")


@pytest.mark.parametrize("cursor", ["t000", "é", '[NaN,"a"]', '[1e999,"a"]', "[1]", "{}", '[1,"\\ud800"]'])
async def test_a_forged_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(Refused, match="Invalid cursor"):
        await Scene().page("s1", cursor, name_of)
