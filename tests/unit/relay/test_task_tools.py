"""The calls that the tools of tasks start."""

from typing import Any, cast

import msgspec
import pytest

from gateway.calls.call import Call
from gateway.calls.event_writer import EventWriter
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.config.context import ContextSettings
from gateway.config.limits import LimitSettings
from gateway.config.tasks import TaskSettings
from gateway.context.announced import Announcements
from gateway.identity.request_context import RequestContext
from gateway.protocol.capabilities import caller_of_meta
from gateway.protocol.listing import Called
from gateway.relay.intake import Intake
from gateway.relay.task_tools import TaskTools
from gateway.tasks.changes import TaskChanges
from gateway.tasks.exchange import StartedExchange
from gateway.tasks.handles import TaskHandles
from gateway.tasks.maker import TaskMaker
from gateway.tasks.quotas import RunningNames, TaskQuotas
from gateway.tasks.table import TaskTable
from session_store import KeyRing
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.context import FACTS
from transports.era import Era
from transports.inbound_port import Request
from transports.jsonrpc import encode
from transports.reply_queue import ReplyQueue

pytestmark = [pytest.mark.anyio, requirement("task.tools")]


class Parts:
    """The tools, before an endpoint whose server has one tool and answers nothing. This object is the endpoint, the
    rates, and the log of requests."""

    def __init__(self, *, is_repeatable: bool = False) -> None:
        self.sent: list[Call] = []
        self.events: list[str] = []
        self._is_repeatable = is_repeatable
        backend, ring, settings = MemoryBackend(), KeyRing.ephemeral(), TaskSettings()
        self.live = LiveSession(a_session(FakeClock()), backend.events)
        table = TaskTable(
            settings, backend.tasks, RunningNames(backend.quotas, "r1"), TaskChanges(backend.bus), noted=self.noted
        )
        handles, parts = TaskHandles(ring), cast("Any", self)
        maker = TaskMaker(table, TaskQuotas(settings, backend.quotas, backend.tasks), handles)
        intake = Intake(
            endpoints={"/mcp": parts},
            events=EventWriter(backend.events, lambda _: 0),
            limits=LimitSettings(),
            rates=parts,
            watching=parts,
            facts=FACTS,
            announcements=Announcements("orbit.workspace", ContextSettings(), lambda _: None),
        )
        self.tools = TaskTools(maker=maker, made=parts, handles=handles, intake=intake, endpoints={"/mcp": parts})

    # -- as the endpoint

    def called(self, *_: object) -> Called:
        return Called(server="main", name="build", is_repeatable=self._is_repeatable)

    async def is_repeatable(self, _: Call) -> bool:
        return self._is_repeatable

    def relay_now(self, call: Call) -> bool:
        self.events.append("sent")
        self.sent.append(call)
        return True

    # -- as the rates, the log, and the facts of a forwarded request

    async def of_session(self, *_: object) -> None:
        """Any number of requests is allowed."""

    call = of_session

    def begin(self, exchange: Exchange, request: Request, meta: Any, correlation: str) -> Any:
        return meta

    def noted(self, *_: object) -> None:
        """Nobody counts."""

    async def started(self) -> None:
        self.events.append("the sender knows")

    # -- the client

    async def start(self, **facts: Any) -> Any:
        params = {"name": encode("start_task"), "arguments": encode({"tool": "build", "arguments": {}})}
        raw = {key: msgspec.Raw(value) for key, value in params.items()}
        request = Request(era=Era.MODERN, endpoint="/mcp", headers={}, params=raw, **facts)
        replies, who = ReplyQueue(), RequestContext(self.live.session.principal, None, "c")
        exchange = Exchange(method="tools/call", client_id=1, live=self.live, replies=replies)
        await self.tools.call(exchange, request, who, raw, [])
        frame = await replies.next()
        assert frame is not None
        return msgspec.json.decode(frame.data)["result"]


@requirement("task.durable")
async def test_a_start_that_is_repeated_starts_nothing_that_may_have_been_started() -> None:
    parts = Parts()
    refused = await parts.start(again=True)
    assert refused["isError"] and not parts.sent
    assert refused["content"][0]["text"].startswith("The gateway that served this session died before it answered")
    repeatable = Parts(is_repeatable=True)
    started = await repeatable.start(again=True)
    assert not started.get("isError") and len(repeatable.sent) == 1


@requirement("task.durable")
async def test_the_replica_that_has_forwarded_a_start_learns_of_it_before_the_call_is_sent() -> None:
    parts = Parts()
    started = await parts.start(forwarded=parts)
    assert not started.get("isError") and parts.events == ["the sender knows", "sent"]


async def test_no_request_of_a_client_cancels_a_started_call() -> None:
    parts = Parts()
    await parts.start()
    (call,) = parts.sent
    assert isinstance(call.exchange, StartedExchange)
    known = call.exchange.client_id
    assert isinstance(known, str) and len(known) > 16, "no count and no guess"


def test_the_client_of_a_started_call_cannot_be_asked_once_the_server_has_it() -> None:
    meta = b'{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}'
    exchange = StartedExchange(
        method="tools/call", client_id=0, live=None, replies=ReplyQueue(), caller=caller_of_meta(meta)
    )
    assert exchange.caller is not None and b"elicitation" in exchange.caller.capabilities, "for the link"
    exchange.sent_as(cast("Any", None), 1, None, 0.0)
    assert exchange.caller.capabilities == b"{}"
