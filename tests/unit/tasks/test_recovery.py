"""What becomes of tasks whose owner is gone: one replica decides, nothing runs twice silently, an outcome stays."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from gateway.calls.live_session import LiveSessions
from gateway.calls.task_at_server import TaskAtServer
from gateway.config.tasks import TaskSettings
from gateway.errors import OUTCOME_UNKNOWN
from gateway.identity.request_context import RequestContext
from gateway.tasks.changes import TaskChanges
from gateway.tasks.continuation import TaskContinuation
from gateway.tasks.exchange import TaskExchange
from gateway.tasks.quotas import LEFT, RunningNames
from gateway.tasks.recovery import TaskRecovery
from gateway.tasks.running import RunningTask
from gateway.tasks.stored_call import FollowedCall, StoredCall, following, stored
from gateway.tasks.table import TaskTable
from session_store import Context, Principal, Session, Task
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.tasks.test_answers import a_task
from transports.era import Era
from transports.inbound_port import Answer, Request
from transports.jsonrpc import Message, Object, encode
from transports.reply_queue import ReplyQueue
from transports.upstream_port import UpstreamUnavailable

pytestmark = [pytest.mark.anyio, requirement("task.durable")]

META = b'{"io.modelcontextprotocol/clientCapabilities":{}}'
RIGHTS = Context(trust="sandboxed", workspace="of the call")
REQUEST = stored({"arguments": msgspec.Raw(b'{"n":1}'), "_meta": msgspec.Raw(META)}, RIGHTS)


class Store:
    """A store with one session."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_700_000_001.0)
        self.backend = MemoryBackend(clock=self.clock)
        self.session = a_session(self.clock, epoch=2)

    async def task(self, **fields: Any) -> Task:
        """A stored task of the session, by an owner of an earlier epoch."""
        task = replace(a_task(**fields), session_id=self.session.id, epoch=1)
        await self.backend.tasks.create(task)
        return task

    async def read(self, task: Task) -> Task:
        found = await self.backend.tasks.get(task.session_id, task.id)
        assert found is not None
        return found


class Replica:
    """One replica, with servers that answer when they are told to."""

    def __init__(self, store: Store, name: str = "r1", *, is_kept: bool = True) -> None:
        backend = store.backend
        self.sent: list[tuple[TaskExchange, Object]] = []
        self.held = 0
        self.lost: dict[str, str] = {}  # why rights are lost, by their workspace
        self.live = LiveSessions(backend.events)
        self.counts: Counter[str] = Counter()
        self.table = TaskTable(
            TaskSettings(),
            backend.tasks,
            RunningNames(backend.quotas, name),
            TaskChanges(backend.bus),
            noted=lambda _, what: self.counts.update((what,)),
            clock=store.clock,
            is_kept=is_kept,
        )
        self.server: Any = None  # of tasks that a server has made
        self.ended = ""  # why nothing of a principal goes on
        continuation = TaskContinuation(
            self.table,
            self.live,
            cast("Any", self),
            start=self.start,
            server_of=lambda *_: self.server,
            handle_of=lambda task: f"handle of {task.id}",
        )
        self.recovery = TaskRecovery(
            self.table,
            continuation,
            sessions=backend.sessions,
            attacher=cast("Any", self),
            cluster=None,
            rights=self,
        )

    def why_lost(self, principal: Principal, granted: Context) -> str:
        return self.lost.get(granted.workspace, "")

    def why_ended(self, principal: Principal, granted: Context) -> str:
        return self.ended

    def take_over(self, session: Session) -> None:
        self.live.of(session)

    async def start(self, exchange: TaskExchange, request: Request, who: RequestContext, params: Object) -> Answer:
        self.sent.append((exchange, params))
        self.held += 1
        return cast("Answer", self)

    async def done(self) -> None:
        self.held -= 1

    def running(self, task: Task, session: Session) -> RunningTask:
        """A task that this replica runs."""
        live = self.live.of(session)
        exchange = TaskExchange(method="tools/call", client_id=1, live=live, replies=ReplyQueue())
        running = self.table.add(task, exchange)
        exchange.run_as(running, 0)
        return running


def result(text: str) -> Message:
    return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(msgspec.json.encode({"text": text})))


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
    exchange.settle(result("done"))
    for replica in replicas:
        await replica.table.settled()
        assert replica.held == 0 and len(replica.table) == 0
    found = await store.read(task)
    assert found.status == "completed" and msgspec.json.decode(found.result) == {"text": "done"}


@requirement("task.rights")
@pytest.mark.parametrize("of_the_call", [False, True])
async def test_a_task_whose_rights_are_lost_does_not_run_again_and_says_why(of_the_call: bool) -> None:
    store = Store()
    task = await store.task(is_repeatable=True, request=REQUEST)
    replica = Replica(store)
    replica.lost[RIGHTS.workspace if of_the_call else store.session.context.workspace] = "the key was removed"
    await replica.recovery.decide(task, store.session)
    await replica.recovery.settled()
    found = await store.read(task)
    assert (found.status, found.runs, replica.sent) == ("failed", 1, [])
    assert "unknown" in found.message and "the key was removed" in found.message
    assert msgspec.json.decode(found.error)["code"] == OUTCOME_UNKNOWN


async def test_a_task_that_is_lost_twice_says_that_it_may_have_run_twice() -> None:
    store, replica = Store(), None
    task = await store.task(is_repeatable=True, request=REQUEST, runs=2)
    replica = Replica(store)
    await replica.recovery.decide(task, store.session)
    found = await store.read(task)
    assert found.status == "failed" and "once or twice" in found.message and replica.sent == []
    assert msgspec.json.decode(found.error)["code"] == OUTCOME_UNKNOWN


@pytest.mark.parametrize("has_session", [False, True])
async def test_a_task_that_may_not_be_repeated_fails(has_session: bool) -> None:
    store = Store()
    task = await store.task(is_repeatable=not has_session, request=REQUEST)
    replica = Replica(store)
    await replica.recovery.decide(task, store.session if has_session else None)
    found = await store.read(task)
    assert found.status == "failed" and replica.sent == []
    assert msgspec.json.decode(found.error) == {"code": OUTCOME_UNKNOWN, "message": found.message}


@pytest.mark.parametrize(("asked_s", "kept_s"), [(120.0, 120.0), (0.0, TaskSettings().ttl_s)])
@pytest.mark.parametrize("repeatable", [False, True])
async def test_an_outcome_is_kept_as_long_as_its_client_has_asked_whoever_decides_on_it(
    repeatable: bool, asked_s: float, kept_s: float
) -> None:
    store = Store()
    task = await store.task(is_repeatable=repeatable, request=REQUEST, kept_s=asked_s)
    store.clock.pass_time(30.0)
    replica = Replica(store)
    await replica.recovery.decide(task, store.session)
    await replica.recovery.settled()
    for exchange, _ in replica.sent:
        exchange.settle(result("done"))
    await replica.table.settled()
    found = await store.read(task)
    assert (found.status, len(replica.sent)) == (("completed", 1) if repeatable else ("failed", 0))
    assert found.expires_at == store.clock() + kept_s


async def test_an_outcome_that_came_meanwhile_stays() -> None:
    store = Store()
    for repeatable in (False, True):
        task = replace(await store.task(is_repeatable=repeatable, request=REQUEST), id=f"t{repeatable}")
        await store.backend.tasks.create(task)
        assert await store.backend.tasks.replace(replace(task, status="completed", result=b"{}"))
        replica = Replica(store)
        await replica.recovery.decide(task, store.session)
        await replica.recovery.settled()
        assert (await store.read(task)).status == "completed" and replica.sent == []


async def test_an_owner_that_leaves_writes_nothing_and_passes_the_task_on() -> None:
    store = Store()
    task = await store.task()
    replica = Replica(store)
    running = replica.running(task, store.session)
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
    store = Store()
    task = await store.task()
    replica = Replica(store)
    running = replica.running(task, store.session)
    for _ in range(10):
        store.clock.pass_time(task.ttl_s / 2)
        replica.table.renew()
        assert await running.record.written()
    assert (await store.read(task)).status == "working"
    await replica.table.settled()
    assert await replica.table.names.of("r1") == [task.name], "whoever takes over finds it by that"
    running.exchange.settle(result("done"))
    await replica.table.settled()
    assert (await store.read(task)).expires_at == store.clock() + TaskSettings().ttl_s


async def test_a_call_stored_by_another_version_does_not_run_again() -> None:
    store = Store()
    task = await store.task(is_repeatable=True, request=b'{"of":"another version"}')
    replica = Replica(store)
    await replica.recovery.decide(task, store.session)
    assert (await store.read(task)).status == "failed" and replica.sent == []


async def test_a_record_that_cannot_be_read_keeps_no_other_from_being_decided(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    task = await store.task()
    await store.backend.sessions.create(store.session)
    replica = Replica(store)
    names, read = replica.table.names, store.backend.tasks.get
    unreadable = [f"{task.session_id}/another version {number}" for number in range(3)]
    for name in (*unreadable, task.name):
        await names.add(name)

    async def get(session_id: str, task_id: str) -> Task | None:
        if "another version" in task_id:
            raise msgspec.ValidationError("Object missing required field `added`")
        return await read(session_id, task_id)

    monkeypatch.setattr(store.backend.tasks, "get", get)
    for _ in range(2):
        await replica.recovery.sweep()
    assert (await read(task.session_id, task.id)).status == "failed"  # type: ignore[union-attr]
    assert set(await names.of("r1")) == set(unreadable), "a replica of their version may read them"
    assert len([record for record in caplog.records if "cannot be decided on" in record.message]) == 3


class Remote:
    """A server behind a URL, with which no conversation can be had."""

    settings = SimpleNamespace(url="http://server.example/mcp")

    def conversation(self, *_: object) -> None:
        raise UpstreamUnavailable("too many conversations")


@requirement("task.followed")
@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("ended", ["", "the key was removed"])
async def test_a_task_that_cannot_be_followed_is_decided_on_as_any_other(repeatable: bool, ended: str) -> None:
    store = Store()
    at_server = FollowedCall(TaskAtServer("own", "", Era.MODERN), None)
    request = following(REQUEST if repeatable else encode(StoredCall({}, RIGHTS)), at_server)
    task = await store.task(is_repeatable=repeatable, request=request, upstream_id="own")
    replica = Replica(store)
    replica.server, replica.ended = Remote(), ended
    await replica.recovery.decide(task, store.session)
    await replica.recovery.settled()
    found = await store.read(task)
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
    running = replica.running(task, store.session)
    running.exchange.has_become(TaskAtServer("own", "", Era.MODERN))
    assert await running.record.written()
    assert (await store.read(task)).upstream_id == ("own" if is_kept else "")
    replica.table.stop()
    await replica.table.settled()
    assert (await store.read(task)).is_over is not is_kept
