"""The parts of the room, put together on a store in memory."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from gateway.calls.client_request import IncomingCall
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.calls.server_task_owners import OwnedTask, OwnedTasks
from gateway.config.limits import TaskSettings
from gateway.protocol.client_capabilities import declaration_in_meta
from gateway.protocol.tasks import TaskAtServer
from gateway.tasks.gateway_tasks.orphaned_tasks import TaskContinuation
from gateway.tasks.gateway_tasks.quotas import RunningNames, TaskQuotas
from gateway.tasks.gateway_tasks.recovery import TaskRecovery
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.stored_call import stored
from gateway.tasks.gateway_tasks.task_exchange import TaskExchange
from gateway.tasks.gateway_tasks.task_maker import TaskMaker
from gateway.tasks.gateway_tasks.task_requests import MadeTasks
from gateway.tasks.gateway_tasks.task_table import TaskTable
from gateway.tasks.task_handles import TaskHandle, TaskHandles
from session_store import Context, KeyRing, Principal, Session, Task
from session_store.embedded.tasks import MemoryTasks
from session_store.memory import MemoryBackend
from session_store.session import new_session_id
from session_store.testing import ALICE, FakeClock, a_session
from tests.unit.calls.parts import until
from transports.era import Era
from transports.inbound_port import Answer
from transports.jsonrpc import Message, Object, encode
from transports.reply_queue import Frame, ReplyQueue

RIGHTS = Context(trust="sandboxed", workspace="of the call")
META = msgspec.Raw(b'{"io.modelcontextprotocol/clientCapabilities":{}}')
REQUEST = stored({"arguments": msgspec.Raw(b'{"n":1}'), "_meta": META}, RIGHTS)
DECLARATION = declaration_in_meta(b'{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}')
WORKING = {"status": "working", "pollIntervalMs": 1}
HANDLES = TaskHandles(KeyRing(["k" * 40]))


def a_task(**fields: Any) -> Task:
    """A task of alice."""
    values: dict[str, Any] = {
        "id": "t1",
        "session_id": new_session_id(),
        "principal": ALICE,
        "endpoint": "/mcp",
        "server": "main",
        "tool": "build",
        "created_at": 1_700_000_000.25,
        "updated_at": 1_700_000_001.0,
        "ttl_s": 60.0,
        "poll_ms": 2_000,
    }
    return Task(**(values | fields))


class Tasks(MemoryTasks):
    """Tasks that are written once `go` is set, unless `failures` has an error for the next one."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.go = asyncio.Event()
        self.go.set()
        self.failures: list[Exception] = []
        self.created: list[Task] = []

    async def create(self, task: Task) -> None:
        self.created.append(task)
        await self._may_write()
        await super().create(task)

    async def replace(self, task: Task) -> bool:
        await self._may_write()
        return await super().replace(task)

    async def _may_write(self) -> None:
        await self.go.wait()
        if self.failures:
            raise self.failures.pop(0)


class Store:
    """A store with one session."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_700_000_001.0)
        self.backend = MemoryBackend(clock=self.clock)
        self.backend.tasks = self.tasks = Tasks(self.clock)
        self.session = a_session(self.clock, epoch=2)

    async def task(self, **fields: Any) -> Task:
        """A stored task of the session, by an owner of an earlier epoch."""
        task = a_task(session_id=self.session.id, epoch=1, **fields)
        await self.tasks.create(task)
        return task

    async def read(self, task: Task) -> Task:
        found = await self.tasks.get(task.session_id, task.id)
        assert found is not None
        return found


class Replica:
    """One replica, with servers that answer when they are told to."""

    def __init__(self, store: Store, name: str = "r1", *, is_kept: bool = True, **settings: Any) -> None:
        backend, self.store = store.backend, store
        self.sent: list[tuple[Any, Object]] = []
        self.held = 0
        self.lost: dict[str, str] = {}  # why rights are lost, by their workspace
        self.live = LiveSessions(backend.events)
        self.counts: Counter[str] = Counter()
        chosen = TaskSettings(**settings)
        self.table = TaskTable(
            chosen,
            store.tasks,
            RunningNames(backend.quotas, name),
            backend.bus,
            noted=lambda _, what: self.counts.update((what,)),
            clock=store.clock,
            is_kept=is_kept,
        )
        self.quotas = TaskQuotas(chosen, backend.quotas, store.tasks)
        self.maker = TaskMaker(self.table, self.quotas, HANDLES)
        self.server: Any = None  # of tasks that a server has made
        self.ended = ""  # why nothing of a principal goes on
        continuation = TaskContinuation(
            self.table,
            self.live,
            cast("Any", self),
            calls=cast("Any", self),
            endpoints={"/mcp": cast("Any", SimpleNamespace(server=lambda *_: self.server))},
            handles=HANDLES,
        )
        self.recovery = TaskRecovery(
            self.table,
            continuation,
            sessions=backend.sessions,
            attacher=cast("Any", self),
            cluster=None,
            rights=cast("Any", self),
        )

    def why_lost(self, principal: Principal, granted: Context) -> str:
        return self.lost.get(granted.workspace, "")

    def why_ended(self, principal: Principal, granted: Context) -> str:
        return self.ended

    def take_over(self, session: Session) -> None:
        self.live.of(session)

    async def accept(self, coming: IncomingCall) -> Answer:
        self.sent.append((coming.exchange, coming.params))
        self.held += 1
        return cast("Answer", self)

    def done(self) -> None:
        self.held -= 1

    async def decided(self, task: Task, *, has_session: bool = True) -> Task:
        """Decide on a task, and begin what follows; the record that it has afterwards."""
        await self.recovery.decide(task, self.store.session if has_session else None)
        await self.recovery.settled()
        return await self.store.read(task)

    def running(self, task: Task) -> RunningTask:
        """A task that this replica runs."""
        exchange = an_exchange(self.live.of(self.store.session))
        running = self.table.add(task, exchange)
        exchange.run_as(running, 0)
        return running

    def made(self, parts: Any, may_see: Callable[..., bool] = lambda *_: True) -> MadeTasks:
        """What clients are told of tasks. `parts` resolves, counts and records their requests."""
        return MadeTasks(
            self.table,
            self.recovery,
            sessions=self.store.backend.sessions,
            resolver=parts,
            quotas=self.quotas,
            rates=parts,
            audit=parts,
            may_see=may_see,
        )

    async def settles(self, running: RunningTask, **end: bytes) -> Task:
        """The record of a task whose call has that `result` or `error`."""
        running.exchange.finish_translated(end_of_call(**end))
        await self.table.settled()
        return await self.store.read(running.task)


class Work:
    """The task of the client."""

    call_s = 3600.0

    def __init__(self, exchange: TaskExchange) -> None:
        self.log_facts = {"task": "the-task"}
        self.exchange = exchange
        self.asked = 0
        self.outcome: Any = None

    def receive(self, frame: Frame) -> None:
        if frame.final:
            self.outcome = msgspec.json.decode(frame.data)
            asyncio.get_running_loop().call_soon(self.exchange.done)

    def asks(self) -> None:
        self.asked += 1

    def withdrawn(self) -> None:
        if not self.exchange.suspendable().questions:
            self.exchange.client_answered()

    is_followed_elsewhere = False

    def task_created(self, task: TaskAtServer) -> None:
        self.became = task

    def rounds(self, result: object) -> None: ...
    def follow(self, created: object) -> None: ...


class Server:
    """A conversation with a server that answers polls with `task`, and updates with `update`."""

    name, is_remote, is_open, era = "server", True, True, Era.MODERN

    def __init__(self, *, is_process: bool = False) -> None:
        self.is_process = is_process
        self.task: Any = WORKING
        self.update: Callable[[], None] = lambda: None
        self.sent: list[str] = []
        self.requested: list[tuple[str, Any]] = []
        self.known_tasks: OwnedTasks | None = None
        self.holds = 0
        self.background: list[asyncio.Task[None]] = []

    def next_number(self) -> int:
        return 7

    def move_to_waiting(self, exchange: TaskExchange, event: ExchangeEvent) -> None:
        exchange.step(event)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self.background.append(asyncio.create_task(work))

    def hold_link(self) -> None:
        self.holds += 1

    def free_link(self) -> None:
        self.holds -= 1

    def own_task(self, own_id: str, task: OwnedTask) -> None:
        self.known_tasks = self.known_tasks or OwnedTasks()
        self.known_tasks.add(own_id, task)

    async def ready(self) -> None: ...

    async def ask(self, method: str, params: bytes) -> Message:
        self.sent.append(method)
        if method == "tasks/update":
            self.update()
            return end_of_call(result=b"{}")
        if isinstance(self.task, Exception):
            raise self.task
        return end_of_call(result=encode(self.task))

    async def until(self, count: int, method: str = "tasks/get") -> None:
        """Wait for that many more requests."""
        wanted = self.sent.count(method) + count
        await until(lambda: self.sent.count(method) >= wanted)

    async def says(self, task: Any) -> None:
        """Answer polls with that task, two of them at least."""
        self.task = task
        await self.until(2)

    def request(self, method: str, params: bytes) -> None:
        self.sent.append(method)
        self.requested.append((method, msgspec.json.decode(params)))

    def end(self, exchange: TaskExchange) -> bool:
        return True

    def fail(self, exchange: TaskExchange, code: int, reason: str) -> None:
        exchange.fail(code, reason)

    def fail_start(self, exchange: TaskExchange, error: Exception, code: int) -> None:
        exchange.fail(code, str(error))

    def cancel(self, exchange: TaskExchange, reason: str, code: int = -32800) -> None:
        exchange.fail(code, reason)


def end_of_call(**end: bytes) -> Message:
    """The answer to a call, with that `result` or `error`."""
    raw: dict[str, Any] = {name: msgspec.Raw(data) for name, data in end.items()}
    return Message(jsonrpc="2.0", id=0, **raw)


def result(text: str) -> Message:
    return end_of_call(result=msgspec.json.encode({"text": text}))


def an_exchange(live: LiveSession, **fields: Any) -> TaskExchange:
    return TaskExchange(method="tools/call", client_id=1, live=live, replies=ReplyQueue(), **fields)


def handle_of(task: Task) -> TaskHandle:
    return TaskHandle("made", task.session_id, task.endpoint, task.server, task.id)


async def one_that_is_left(**fields: Any) -> tuple[Store, Replica, Task]:
    """A task that nobody runs, and a replica."""
    store = Store()
    return store, Replica(store), await store.task(**fields)


async def one_that_runs(**fields: Any) -> tuple[Store, Replica, RunningTask]:
    """A task that a replica runs."""
    store, replica, task = await one_that_is_left(**fields)
    return store, replica, replica.running(task)
