"""What becomes of tasks whose owner is gone: one replica decides, nothing runs twice silently, an outcome stays."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.config.limits import TaskSettings
from gateway.errors import OUTCOME_UNKNOWN, error_of
from gateway.protocol.tasks import TaskAtServer
from gateway.tasks.gateway_tasks.quotas import LEFT
from gateway.tasks.gateway_tasks.stored_call import FollowedCall, StoredCall, following
from session_store import Task
from tests.requirements import requirement
from tests.unit.tasks.parts import REQUEST, RIGHTS, Replica, Store, one_that_is_left, one_that_runs, result
from transports.era import Era
from transports.jsonrpc import encode
from transports.upstream_port import UpstreamUnavailable

pytestmark = requirement("task.durable")


async def test_of_two_replicas_one_runs_a_task_again() -> None:
    store = Store()
    task = await store.task(is_repeatable=True, request=REQUEST, asked=3)
    replicas = [Replica(store, name) for name in ("r1", "r2")]
    await asyncio.gather(*(replica.recovery.decide(task, store.session) for replica in replicas for _ in range(2)))
    for replica in replicas:
        await replica.recovery.settled()
    ((exchange, params),) = [sent for replica in replicas for sent in replica.sent]
    found = await store.read(task)
    assert (found.runs, found.epoch, found.status) == (2, 2, "working") and "again" in found.message
    assert msgspec.json.decode(params["arguments"]) == {"n": 1}
    assert exchange.context == RIGHTS != store.session.context, "those of the request, whatever the session has now"
    exchange.finish_translated(result("done"))
    for replica in replicas:
        await replica.table.settled()
        assert replica.held == 0 and len(replica.table) == 0
    found = await store.read(task)
    assert found.status == "completed" and msgspec.json.decode(found.result) == {"text": "done"}


@requirement("task.rights")
@pytest.mark.parametrize("of_the_call", [False, True])
async def test_a_task_whose_rights_are_lost_does_not_run_again_and_says_why(of_the_call: bool) -> None:
    store, replica, task = await one_that_is_left(is_repeatable=True, request=REQUEST)
    replica.lost[RIGHTS.workspace if of_the_call else store.session.context.workspace] = "the key was removed"
    found = await replica.decided(task)
    assert (found.status, found.runs, replica.sent) == ("failed", 1, [])
    assert "unknown" in found.message and "the key was removed" in found.message
    assert msgspec.json.decode(found.error)["code"] == OUTCOME_UNKNOWN


@pytest.mark.parametrize(
    ("fields", "has_session", "why"),
    [
        ({}, False, ""),
        ({"is_repeatable": False}, True, ""),
        ({"runs": 2}, True, "once or twice"),
        ({"request": b'{"of":"another version"}'}, True, ""),
    ],
)
async def test_a_task_that_may_not_be_repeated_fails(fields: dict[str, Any], has_session: bool, why: str) -> None:
    _, replica, task = await one_that_is_left(**({"is_repeatable": True, "request": REQUEST} | fields))
    found = await replica.decided(task, has_session=has_session)
    assert (found.status, replica.sent) == ("failed", []) and why in found.message
    assert msgspec.json.decode(found.error) == error_of(OUTCOME_UNKNOWN, found.message, "")


@pytest.mark.parametrize(("asked_s", "kept_s"), [(120.0, 120.0), (0.0, TaskSettings().ttl_s)])
@pytest.mark.parametrize("repeatable", [False, True])
async def test_an_outcome_is_kept_as_long_as_its_client_has_asked_whoever_decides_on_it(
    repeatable: bool, asked_s: float, kept_s: float
) -> None:
    store, replica, task = await one_that_is_left(is_repeatable=repeatable, request=REQUEST, kept_s=asked_s)
    store.clock.pass_time(30.0)
    await replica.decided(task)
    for exchange, _ in replica.sent:
        exchange.finish_translated(result("done"))
    await replica.table.settled()
    found = await store.read(task)
    assert (found.status, len(replica.sent)) == (("completed", 1) if repeatable else ("failed", 0))
    assert found.expires_at == store.clock() + kept_s


async def test_an_outcome_that_came_meanwhile_stays() -> None:
    for repeatable in (False, True):
        store, replica, task = await one_that_is_left(is_repeatable=repeatable, request=REQUEST)
        assert await store.tasks.replace(replace(task, status="completed", result=b"{}"))
        assert (await replica.decided(task)).status == "completed" and replica.sent == []


async def test_an_owner_that_leaves_writes_nothing_and_passes_the_task_on() -> None:
    store, replica, running = await one_that_runs()
    task = running.task
    await replica.table.names.add(task.name)
    live = replica.live.get(store.session.id)
    assert live is not None
    live.hand_over()
    running.exchange.fail(OUTCOME_UNKNOWN, "the gateway stops")
    await replica.table.settled()
    assert (await store.read(task)) == task and running.is_left
    assert await replica.table.names.of(LEFT) == [task.name] and await replica.table.names.of("r1") == []
    later = Replica(store, "r2")
    await store.backend.sessions.create(store.session)
    await later.recovery.sweep()
    assert (await store.read(task)).status == "failed"


async def test_the_record_of_a_working_task_does_not_expire() -> None:
    store, replica, running = await one_that_runs()
    task = running.task
    for _ in range(10):
        store.clock.pass_time(task.ttl_s / 2)
        replica.table.renew()
        assert await running.record.written()
    assert (await store.read(task)).status == "working"
    await replica.table.settled()
    assert await replica.table.names.of("r1") == [task.name], "whoever takes over finds it by that"


async def test_a_record_that_cannot_be_read_keeps_no_other_from_being_decided(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, replica, task = await one_that_is_left()
    await store.backend.sessions.create(store.session)
    names, read = replica.table.names, store.tasks.get
    unreadable = [f"{task.session_id}/another version {number}" for number in range(3)]
    for name in (*unreadable, task.name):
        await names.add(name)

    async def get(session_id: str, task_id: str) -> Task | None:
        if "another version" in task_id:
            raise msgspec.ValidationError("Object missing required field `added`")
        return await read(session_id, task_id)

    monkeypatch.setattr(store.tasks, "get", get)
    for _ in range(2):
        await replica.recovery.sweep()
    assert (await read(task.session_id, task.id)).status == "failed"  # type: ignore[union-attr]  # it is there
    assert set(await names.of("r1")) == set(unreadable), "a replica of their version may read them"
    assert len([record for record in caplog.records if "cannot be recovered" in record.message]) == 3


class Remote:
    """A server behind a URL, with which no conversation can be had."""

    settings = SimpleNamespace(is_remote=True)

    def conversation(self, *_: object) -> None:
        raise UpstreamUnavailable("too many conversations")


@requirement("task.followed")
@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("ended", ["", "the key was removed"])
async def test_a_task_that_cannot_be_followed_is_decided_on_as_any_other(repeatable: bool, ended: str) -> None:
    at_server = FollowedCall(TaskAtServer("own", "", Era.MODERN), None)
    request = following(REQUEST if repeatable else encode(StoredCall({}, RIGHTS)), at_server)
    _, replica, task = await one_that_is_left(is_repeatable=repeatable, request=request, upstream_id="own")
    replica.server, replica.ended = Remote(), ended
    found = await replica.decided(task)
    runs_again = repeatable and not ended
    assert (found.status, len(replica.sent)) == (("working", 1) if runs_again else ("failed", 0))
    assert (found.upstream_id == "") is runs_again
    assert ended in found.message


@requirement("task.followed")
@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_gateway_that_stops_ends_a_task_that_nobody_will_follow(is_kept: bool) -> None:
    store = Store()
    task = await store.task()
    replica = Replica(store, is_kept=is_kept)
    running = replica.running(task)
    running.exchange.task_created(TaskAtServer("own", "", Era.MODERN))
    assert await running.record.written()
    assert (await store.read(task)).upstream_id == ("own" if is_kept else "")
    replica.table.stop()
    await replica.table.settled()
    assert (await store.read(task)).is_over is not is_kept


@requirement("task.followed")
async def test_a_task_that_is_cancelled_before_it_runs_again_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    store, replica, running = await one_that_runs(is_repeatable=True, request=REQUEST, upstream_id="own")
    replica.recovery._lost(running, session=store.session, call=StoredCall.read(REQUEST))
    running.cancel("the client has cancelled the task")  # before the call is sent again
    await replica.recovery.settled()
    await replica.table.settled()
    assert (await store.read(running.task)).status == "cancelled" and replica.sent == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
