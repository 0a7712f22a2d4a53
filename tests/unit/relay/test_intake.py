"""A call is accepted: what its server gets in `_meta`."""

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
from gateway.context.facts import CONTEXT_KEY
from gateway.errors import OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE
from gateway.identity.request_context import RequestContext
from gateway.protocol.capabilities import caller_of_meta
from gateway.protocol.listing import Called
from gateway.relay.intake import Intake
from gateway.relay.legacy import _progress_of_question
from gateway.relay.task_tools import TaskTools
from gateway.tasks.changes import TaskChanges
from gateway.tasks.exchange import StartedExchange
from gateway.tasks.handles import TaskHandles
from gateway.tasks.maker import TaskMaker
from gateway.tasks.quotas import RunningNames, TaskQuotas
from gateway.tasks.table import TaskTable
from session_store import Context, KeyRing, Session
from session_store.memory import MemoryBackend
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.support.context import FACTS
from transports.era import Era
from transports.inbound_port import Request
from transports.jsonrpc import Object, encode
from transports.reply_queue import ReplyQueue
from transports.soon import arrived
from transports.upstream_port import UpstreamUnavailable

pytestmark = pytest.mark.anyio

STRONG = Context(trust="direct", workspace="red", permissions=("write",))
WEAK = Context(trust="sandboxed")
EVENTS = MemoryBackend().events


class Server:
    """An endpoint whose server takes every call, and rates that allow every call."""

    def __init__(self, live: LiveSession) -> None:
        self.calls: list[Call] = []
        self._live = live

    def relay_now(self, call: Call) -> bool:
        self.calls.append(call)
        return True

    async def call(self, session: Session, size: int = 0) -> None:
        """Another request of the session, with a stronger credential, is resolved meanwhile."""
        self._live.replace_record(msgspec.structs.replace(session, context=STRONG))

    def begin(self, exchange: Exchange, request: Request, meta: Object, correlation: str) -> Object:
        return meta

    async def is_repeatable(self, call: Call) -> bool:
        return True


def taken_in_by(server: Server) -> Intake:
    parts = cast("Any", server)
    return Intake(
        endpoints={"/mcp": parts},
        events=EventWriter(EVENTS, lambda _: 0),
        limits=LimitSettings(),
        rates=parts,
        watching=parts,
        facts=FACTS,
        announcements=Announcements("orbit.workspace", ContextSettings(), lambda _: None),
    )


@requirement("rep.no-retry")
async def test_a_repeated_call_that_cannot_be_sent_may_have_run_the_first_time() -> None:
    live = LiveSession(a_session(FakeClock()), EVENTS)
    server = Server(live)

    def unavailable(_: Call) -> bool:
        raise UpstreamUnavailable("its program is missing")

    server.relay_now = unavailable  # type: ignore[method-assign, assignment]
    codes = []
    for again in (False, True):
        exchange = Exchange(method="tools/call", client_id=1, live=live, replies=ReplyQueue())
        request = Request(era=Era.LEGACY, endpoint="/mcp", headers={}, again=again)
        await arrived(taken_in_by(server).accept(exchange, request, RequestContext(ALICE, None, "c"), {}, []))
        assert exchange.replies.first is not None
        codes.append(exchange.replies.first.error_code)
    assert codes == [UPSTREAM_UNAVAILABLE, OUTCOME_UNKNOWN], "the first invites a client to repeat it"


@requirement("wall.authority")
async def test_a_server_gets_the_context_of_the_request_and_not_of_another_one_in_the_session() -> None:
    live = LiveSession(a_session(FakeClock(), context=WEAK), EVENTS)
    server = Server(live)
    intake = taken_in_by(server)
    exchange = Exchange(method="tools/call", client_id=1, live=live, replies=ReplyQueue(), context=WEAK)
    who = RequestContext(live.session.principal, None, "c")
    await arrived(intake.accept(exchange, Request(era=Era.LEGACY, endpoint="/mcp", headers={}), who, {}, []))
    (call,) = server.calls
    facts = msgspec.json.decode(call.meta[CONTEXT_KEY])
    assert live.session.context is STRONG
    assert (facts["trust"], facts["workspace"], facts["permissions"]) == ("sandboxed", "", [])
    assert facts["session_id"] == live.session.id and facts["correlation_id"] == "c"


class Asker:
    """The conversation with the server that asked, and the session's list of questions."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.questions = self

    def asker(self, token: Any) -> tuple["Asker", msgspec.Raw] | None:
        return (self, msgspec.Raw(b'"theirs"')) if token == "ours" else None

    def notify(self, method: str, params: bytes) -> None:
        self.sent.append((method, msgspec.json.decode(params)))


@requirement("wall.return")
def test_a_server_gets_its_token_and_none_of_the_gateways_keys() -> None:
    asker = Asker()
    meta = b'{"a": 1, "io.github.mcp-session-gateway/context": {"workspace": "forged"}}'
    params = {"progressToken": msgspec.Raw(b'"ours"'), "progress": msgspec.Raw(b"1"), "_meta": msgspec.Raw(meta)}
    assert _progress_of_question(cast(LiveSession, asker), params)
    assert asker.sent == [("notifications/progress", {"progressToken": "theirs", "progress": 1, "_meta": {"a": 1}})]
    assert not _progress_of_question(cast(LiveSession, asker), {"progressToken": msgspec.Raw(b'"other"')})


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


@requirement("task.tools", "task.durable")
async def test_a_start_that_is_repeated_starts_nothing_that_may_have_been_started() -> None:
    parts = Parts()
    refused = await parts.start(again=True)
    assert refused["isError"] and not parts.sent
    assert refused["content"][0]["text"].startswith("The gateway that served this session died before it answered")
    repeatable = Parts(is_repeatable=True)
    started = await repeatable.start(again=True)
    assert not started.get("isError") and len(repeatable.sent) == 1


@requirement("task.tools", "task.durable")
async def test_the_replica_that_has_forwarded_a_start_learns_of_it_before_the_call_is_sent() -> None:
    parts = Parts()
    started = await parts.start(forwarded=parts)
    assert not started.get("isError") and parts.events == ["the sender knows", "sent"]


@requirement("task.tools")
async def test_no_request_of_a_client_cancels_a_started_call() -> None:
    parts = Parts()
    await parts.start()
    (call,) = parts.sent
    assert isinstance(call.exchange, StartedExchange)
    known = call.exchange.client_id
    assert isinstance(known, str) and len(known) > 16, "no count and no guess"


@requirement("task.tools")
def test_the_client_of_a_started_call_cannot_be_asked_once_the_server_has_it() -> None:
    meta = b'{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}'
    exchange = StartedExchange(
        method="tools/call", client_id=0, live=None, replies=ReplyQueue(), caller=caller_of_meta(meta)
    )
    assert exchange.caller is not None and b"elicitation" in exchange.caller.capabilities, "for the link"
    exchange.sent_as(cast("Any", None), 1, None, 0.0)
    assert exchange.caller.capabilities == b"{}"
