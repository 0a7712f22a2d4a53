"""How a task goes on whose gateway is gone: as the call that it was, and not at all once it is cancelled."""

from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from gateway.calls.deadlines import Deadlines
from gateway.calls.task_at_server import TaskAtServer
from gateway.protocol.listing import Called
from gateway.tasks.exchange import StartedExchange
from gateway.tasks.handles import TaskHandles
from gateway.tasks.maker import TaskMaker
from gateway.tasks.quotas import TaskQuotas
from gateway.tasks.stored_call import StoredCall, stored
from session_store import KeyRing, Task
from tests.requirements import requirement
from tests.unit.tasks.test_recovery import META, RIGHTS, Replica, Store
from transports.era import Era
from transports.inbound_port import Request
from transports.reply_queue import ReplyQueue

pytestmark = pytest.mark.anyio

CAN_BE_ASKED = META.replace(b"{}", b'{"elicitation":{}}')
PARAMS = {"name": msgspec.Raw(b'"build"'), "_meta": msgspec.Raw(CAN_BE_ASKED)}


async def started(store: Store) -> Task:
    """The record of a task that a modern client has started with the tool `start_task`."""
    replica, backend = Replica(store, "lost"), store.backend
    quotas = TaskQuotas(replica.table.settings, backend.quotas, backend.tasks)
    maker = TaskMaker(replica.table, quotas, TaskHandles(KeyRing.ephemeral()))
    exchange = StartedExchange(
        method="tools/call",
        client_id=1,
        live=replica.live.of(store.session),
        replies=ReplyQueue(),
        context=RIGHTS,
    )
    request = Request(era=Era.MODERN, endpoint="/mcp", headers={}, params=PARAMS)
    running = await maker.begin(exchange, request, Called(server="main", name="build", is_repeatable=True))
    running.exchange.has_become(TaskAtServer("own", "", Era.MODERN))
    assert await running.record.written()
    return await store.read(running.task)


@requirement("task.durable")
async def test_a_call_that_a_tool_has_started_asks_nobody_when_it_runs_again() -> None:
    store = Store()
    task = await started(store)
    call = StoredCall.read(task.request)
    assert call.is_started and call.followed is not None
    task = replace(task, upstream_id="")
    assert await store.backend.tasks.replace(task)
    replica = Replica(store)
    await replica.recovery.decide(await store.read(task), store.session)
    await replica.recovery.settled()
    ((exchange, _),) = replica.sent
    assert isinstance(exchange, StartedExchange) and exchange.caller is not None
    declared = exchange.caller
    assert b"elicitation" in declared.capabilities, "the link is opened with what the client has declared"
    exchange.sent_as(cast("Any", Server()), 1, None, 0.0)
    assert exchange.caller.capabilities == b"{}" and exchange.declared_by == declared


class Server:
    """A server that has lost the task that it had made of a call."""

    deadlines = Deadlines(start_s=9.0, call_s=9.0, suspended_s=9.0, idle_stop_s=None)


@requirement("task.followed")
async def test_a_task_that_is_cancelled_before_it_runs_again_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    request = stored(PARAMS, RIGHTS)
    task = await store.task(is_repeatable=True, request=request, upstream_id="own")
    replica = Replica(store)
    running = replica.running(task, store.session)
    replica.recovery._lost(running, session=store.session, call=StoredCall.read(request))
    running.cancel("the client has cancelled the task")  # before the call is sent again
    await replica.recovery.settled()
    await replica.table.settled()
    assert (await store.read(task)).status == "cancelled" and replica.sent == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
