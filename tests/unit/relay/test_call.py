"""A call is accepted, and sent to its server once everything is known."""

import asyncio
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest
from msgspec.structs import replace

from gateway.bridge.legacy_server import LegacyServerBridge, LegacyTaskBridge
from gateway.bridge.modern_server import ModernServerBridge
from gateway.bridge.modern_server_subscriptions import GatewaySubscription
from gateway.bridge.request_state import Binding, RequestDigest, RequestStateSeal
from gateway.calls.client_request import Call, IncomingCall
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.suspended_call import InputRequest
from gateway.cluster.lease_validity import TRUST_S
from gateway.cluster.ownership import Cluster
from gateway.config.admin import AuditSettings
from gateway.context.session_facts import CONTEXT_KEY
from gateway.errors import (
    OUTCOME_UNKNOWN,
    SESSION_UNKNOWN,
    UPSTREAM_UNAVAILABLE,
    OutOfMemory,
    StartRefused,
)
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.protocol.merged_lists import Tools
from gateway.protocol.tasks import TASKS
from gateway.relay.call import FoundSession, relay
from gateway.relay.legacy_clients import _progress_of_question
from gateway.relay.modern_clients import ModernClients
from gateway.relay.policy_admission import CallTarget
from gateway.relay.reply_delivery import CallReply
from gateway.relay.requests_to_server import for_server, waits
from gateway.sessions.session_attaching import Resolved
from gateway.upstreams.result_cache import ResultCache
from session_store import Context, KeyRing, MemoryBackend, Session, StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.support import fake_upstream
from tests.support.paged_server import OneServer, a_call, admission_by, ruled
from tests.support.virtual_time import skip_waits
from tests.unit.calls.parts import Server as AskingServer
from tests.unit.calls.parts import request as question
from tests.unit.relay.parts import TakingEndpoint, a_live, a_request, a_tool_call, an_intake
from transports.era import Era
from transports.inbound_port import Answer, Refused, Request
from transports.jsonrpc import HEADER_MISMATCH, Message, Object, encode
from transports.reply_queue import Frame
from transports.upstream_port import UpstreamUnavailable

TOOLS = Tools([{"name": "count"}])


class Server(OneServer):
    """A server with one tool, and its conversation."""

    users = ()
    known_lists = None
    initialize_result: bytes | None = None
    handshake = None
    notifies = True
    tools = TOOLS

    def __init__(self, *, era: Era = Era.LEGACY, is_open: bool = True, **settings: Any) -> None:
        self.era = era
        self.settings = SimpleNamespace(**({"shared": False, "handles": False} | settings))
        self.server_lists = SimpleNamespace(
            known=lambda method, conversation: self.tools, results=ResultCache(1 << 20), refresh=dict
        )
        self.unreviewed: set[str] = set()
        self.sent: list[tuple[Object, Object]] = []
        self._is_open = is_open
        self._is_asked = bool(settings.get("is_asked"))

    async def facts(self) -> None: ...

    def is_asked_by(self, live: LiveSession) -> bool:
        return self._is_asked

    def is_open_to(self, live: LiveSession | None) -> bool:
        return self._is_open

    async def start(self, exchange: Exchange, params: Object, meta: Object) -> None:
        self.sent.append((params, meta))


class Parts:
    """What decides on calls, the audit trail that it writes to, and one live session."""

    def __init__(self, *, initialized: bool = True) -> None:
        self.backend = MemoryBackend()
        self.audit = Audit(self.backend.audit, FakeClock(), AuditSettings(calls=True))
        self.admission = admission_by({"s": ruled()}, self.audit)[1]
        self.live = a_live(initialized=initialized)

    def subscribe(self, server: Server) -> None:
        """The server has the subscription of the session."""
        subscription = GatewaySubscription(self.live, lambda: None)
        self.live.gateway_subscriptions[server.name] = subscription
        subscription.take_acknowledgement()

    def call(self, method: str = "tools/call", *, era: Era = Era.LEGACY, **params: Any) -> Call:
        call = a_call(method, live=self.live, **(params or {"name": "count"}))
        return replace(call, era=era, meta={"io.modelcontextprotocol/x": msgspec.Raw(b"1")})

    async def send(self, server: Server, call: Call) -> CallTarget | None:
        visible: Any = SimpleNamespace(to=lambda context: {server.name: server}, only=server)
        extensions: Any = SimpleNamespace(server_for=AsyncMock(return_value=server))
        parts = {"admission": self.admission, "visible": visible, "extensions": extensions, "merged": None}
        return await relay(cast("Any", SimpleNamespace(**parts)), call)


async def test_a_call_of_a_tool_is_audited_once_and_how_it_was_sent_is_known_unless_its_server_is_shared() -> None:
    parts, server = Parts(), Server()
    call = parts.call()
    target = await parts.send(server, call)
    assert server.sent == [(call.params, call.meta)]
    assert target is not None and target.held_conversation is cast("Any", server) and target.named is None
    call.exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b"{}")))
    await parts.audit.flush()
    assert [event.event for event in await parts.backend.audit.recent(100)].count("called") == 1
    assert await parts.send(Server(shared=True), parts.call()) is None


async def test_a_legacy_call_is_sent_to_a_modern_server_behind_the_subscription() -> None:
    parts, server = Parts(), Server(era=Era.MODERN)
    parts.subscribe(server)
    call = parts.call()
    assert await parts.send(server, call) is not None
    assert isinstance(call.exchange.bridge, ModernServerBridge)
    ((_, meta),) = server.sent
    assert b"2026-07-28" in bytes(meta["io.modelcontextprotocol/protocolVersion"])
    assert TASKS.encode() in bytes(meta["io.modelcontextprotocol/clientCapabilities"])


async def test_a_path_between_eras_is_not_taken_while_its_server_has_to_be_asked_first() -> None:
    parts, server = Parts(), Server(era=Era.MODERN)
    parts.subscribe(server)
    target = await parts.send(server, parts.call())
    assert target is not None
    conversation = cast("Any", server)
    has_to_wait = waits(target.upstream, conversation, parts.call())
    assert has_to_wait is not None and not has_to_wait()
    parts.live.gateway_subscriptions["s"].fail(-32014, "it exited")
    assert has_to_wait(), "the subscription that has ended is made again before it"
    server._is_asked = True
    assert has_to_wait(), "its era has to be asked for"
    assert waits(target.upstream, conversation, parts.call(era=Era.MODERN)) is None


@requirement("spec.letter")
@pytest.mark.parametrize("declared", [{"requests": {"tools": {"call": {}}}}, {"requests": {}}, {"list": {}}])
async def test_a_tool_is_called_as_a_task_only_at_a_server_that_has_declared_it(declared: Any) -> None:
    parts, server = Parts(), Server()
    server.initialize_result = encode({"capabilities": {"tools": {}, "tasks": declared}})
    server.tools = Tools([{"name": "count", "execution": {"taskSupport": "required"}}])
    call = parts.call(era=Era.MODERN)
    await parts.send(server, call)
    ((params, _),) = server.sent
    is_task = "call" in declared.get("requests", {}).get("tools", {})
    assert ("task" in params) is isinstance(call.exchange.bridge, LegacyTaskBridge) is is_task


@pytest.mark.parametrize("method", ["tools/call", "acme/method"])
async def test_a_legacy_server_gets_nothing_of_the_modern_era(method: str) -> None:
    parts, server = Parts(), Server()
    call = parts.call(method, era=Era.MODERN, name="count", requestState="s")
    await parts.send(server, call)
    assert isinstance(call.exchange.bridge, LegacyServerBridge)
    assert server.sent == [({"name": call.params["name"]}, {})]


async def test_a_modern_server_is_not_asked_for_what_the_record_of_the_session_has() -> None:
    parts, server = Parts(initialized=False), Server(era=Era.MODERN)
    call = parts.call("logging/setLevel", level="debug")
    await parts.send(server, call)
    assert server.sent == [] and call.exchange.is_over


STRONG = Context(trust="direct", workspace="red", permissions=("write",))
WEAK = Context(trust="sandboxed")
WHO = RequestContext(ALICE, None, "c")


@requirement("rep.no-retry")
async def test_a_repeated_call_that_cannot_be_sent_may_have_run_the_first_time() -> None:
    live, codes = a_live(), []
    away = TakingEndpoint(UpstreamUnavailable("its program is missing"))
    for again in (False, True):
        exchange = a_tool_call(live)
        await an_intake(away).accept(IncomingCall(exchange, a_request(again=again), WHO, {}))
        assert exchange.replies.first is not None
        codes.append(exchange.replies.first.error_code)
    assert codes == [UPSTREAM_UNAVAILABLE, OUTCOME_UNKNOWN], "the first invites a client to repeat it"


@requirement("ops.memory")
async def test_a_call_of_a_shared_server_that_is_not_started_gets_the_whole_refusal() -> None:
    live, full = a_live(), TakingEndpoint(StartRefused(OutOfMemory("s")))
    with pytest.raises(Refused) as refused:
        await an_intake(full).accept(IncomingCall(a_tool_call(live), a_request(), WHO, {}))
    assert (refused.value.status, refused.value.data) == (503, {"reason": "out_of_memory", "retryAfter": 30})
    assert live.busy == 0 and refused.value.log_facts
    exchange = a_tool_call(live)
    await an_intake(full).accept(IncomingCall(exchange, a_request(again=True), WHO, {}))
    assert exchange.replies.first is not None and exchange.replies.first.error_code == OUTCOME_UNKNOWN


@requirement("wall.authority")
async def test_a_server_gets_the_context_of_the_request_and_not_of_another_one_in_the_session() -> None:
    live = a_live(context=WEAK)

    class Counting(TakingEndpoint):
        async def count_call(self, session_id: str, size: int = 0) -> None:
            """Another request of the session, with a stronger credential, is resolved meanwhile."""
            live.replace_record(msgspec.structs.replace(live.session, context=STRONG))

    endpoint = Counting()
    await an_intake(endpoint).accept(IncomingCall(a_tool_call(live, context=WEAK), a_request(), WHO, {}))
    (call,) = endpoint.calls
    facts = msgspec.json.decode(call.meta[CONTEXT_KEY])
    assert live.session.context is STRONG
    assert (facts["trust"], facts["workspace"], facts["permissions"]) == ("sandboxed", "", [])
    assert facts["session_id"] == live.session.id and facts["correlation_id"] == "c"


class Rated(TakingEndpoint):
    """An endpoint behind a rate: calls wait until it is their turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = asyncio.Event()

    async def count_call(self, session_id: str, size: int = 0) -> None:
        await self.turn.wait()


@requirement("pol.limits")
async def test_a_call_that_waits_for_its_turn_is_in_flight_and_can_be_cancelled() -> None:
    live, endpoint = a_live(), Rated()
    intake = an_intake(endpoint, exchanges=2)
    exchanges = [a_tool_call(live, number) for number in range(3)]
    waiting = [asyncio.create_task(intake.accept(IncomingCall(e, a_request(), WHO, {}))) for e in exchanges[:2]]
    await asyncio.sleep(0)
    assert live.exchanges == {*exchanges[:2]} and live.busy == 2
    with pytest.raises(Refused, match="in flight"):
        await intake.accept(IncomingCall(exchanges[2], a_request(), WHO, {}))
    counted = asyncio.create_task(intake.count_message(live))
    await asyncio.sleep(0)
    (cancelled,) = live.in_flight_as(0)
    cancelled.cancel("the client cancelled")
    assert live.busy == 3, "a message that is no call is in use too"
    endpoint.turn.set()
    with pytest.raises(Refused, match="Request cancelled"):
        await waiting[0]
    await asyncio.gather(waiting[1], counted)
    assert [call.exchange for call in endpoint.calls] == [exchanges[1]] and live.busy == 1


@requirement("pol.limits")
async def test_a_message_that_waits_for_its_turn_is_refused_as_unknown_if_its_session_ends() -> None:
    live, endpoint = a_live(), Rated()
    intake = an_intake(endpoint)
    waiting = [intake.accept(IncomingCall(a_tool_call(live), a_request(), WHO, {})), intake.count_message(live)]
    tasks = [asyncio.create_task(each) for each in waiting]
    await asyncio.sleep(0)
    await live.close()
    endpoint.turn.set()
    for task in tasks:
        with pytest.raises(Refused) as refused:
            await task
        assert (refused.value.status, refused.value.code) == (404, SESSION_UNKNOWN)
    assert not endpoint.calls and not live.busy


@requirement("wall.return")
async def test_a_server_gets_its_token_and_none_of_the_gateways_keys() -> None:
    server, live = AskingServer(), a_live()
    live.questions.ask(server.conversation, question("roots/list", _meta={"progressToken": "theirs"}), None)
    meta = b'{"a": 1, "io.github.mcp-session-gateway/context": {"workspace": "forged"}}'
    params = {"progressToken": msgspec.Raw(b"1"), "progress": msgspec.Raw(b"1"), "_meta": msgspec.Raw(meta)}
    assert _progress_of_question(live, params)
    progress = {"progressToken": "theirs", "progress": 1, "_meta": {"a": 1}}
    assert server.notified == [("notifications/progress", progress)]
    assert not _progress_of_question(live, {"progressToken": msgspec.Raw(b"2")})


@requirement("rep.no-retry")
async def test_the_replica_that_has_forwarded_a_call_learns_of_it_before_the_call_is_sent() -> None:
    endpoint, sender = TakingEndpoint(), Forwarded()
    request = a_request(forwarded=sender)
    accepting = asyncio.create_task(an_intake(endpoint).accept(IncomingCall(a_tool_call(a_live()), request, WHO, {})))
    await sender.begun.wait()
    assert not endpoint.calls
    sender.goes_on.set()
    await accepting
    assert len(endpoint.calls) == 1


PARAMS = {"name": msgspec.Raw(b'"ask"'), "arguments": msgspec.Raw(b"{}")}


class Suspended:
    """A suspended call of one session, and the state that its client was given."""

    def __init__(self) -> None:
        self.server, self.live = AskingServer(), a_live(era="modern")
        seal = RequestStateSeal(KeyRing.ephemeral(), FakeClock())
        self.carriers = SimpleNamespace(
            headers=lambda *_, **__: [], is_in_result=lambda *_, opened: opened, token=lambda *_: "t"
        )
        self.endpoints = {"/mcp": None}
        given: Any = {"intake": self, "resolver": self}
        nothing: Any = None
        self.clients = ModernClients(**given, seal=seal, tasks=nothing, result_meta=False)
        self.exchange, server = fake_upstream.a_call(self.live), cast("Any", self.server)
        self.exchange.sent_as(server, 1, None, 1.0)
        question = InputRequest(server, b"1", "elicitation/create", {})
        assert self.live.questions.suspend(self.exchange, question)
        suspended = self.exchange.suspendable()
        suspended.ask_until(60.0)
        self.exchange.suspend({})
        binding = Binding(WHO.principal, "/mcp", RequestDigest("tools/call", PARAMS))
        self.state = seal.seal({}, session_id="s", binding=binding, suspended=suspended)["requestState"]
        self.asked = list(suspended.questions)

    def retry(self, request_id: int, forwarded: object) -> Request:
        answers = {key: {"action": "accept", "content": {"n": request_id}} for key in self.asked}
        params = PARAMS | {"requestState": self.state, "inputResponses": msgspec.Raw(encode(answers))}
        message = Message(jsonrpc="2.0", id=request_id, method="tools/call")
        return a_request(era=Era.MODERN, message=message, params=params, forwarded=forwarded)

    # as resolver

    async def resume_by_id(self, session_id: str, who: RequestContext, era: Era) -> Resolved:
        return Resolved(live=self.live, context=self.live.session.context)

    # as intake

    def attach(self, exchange: Exchange, headers: Any, request: Request, correlation: str) -> Answer:
        return CallReply(exchange, self.live, headers, events=None)


class Forwarded:
    """Another replica, which takes a while to be told that the request has started."""

    def __init__(self) -> None:
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()

    async def before_sending(self) -> None:
        self.begun.set()
        await self.goes_on.wait()


async def test_of_two_forwarded_answers_to_one_round_the_first_counts() -> None:
    parts, peers = Suspended(), [Forwarded(), Forwarded()]
    retries = [
        asyncio.create_task(parts.clients.session(parts.retry(number, peer), WHO))
        for number, peer in enumerate(peers, start=10)
    ]
    await asyncio.gather(*(peer.begun.wait() for peer in peers))
    for peer in peers:
        peer.goes_on.set()
    first, second = await asyncio.gather(*retries, return_exceptions=True)
    assert isinstance(first, CallReply)
    assert isinstance(second, Refused) and second.reason == "invalid_request_state"
    assert [answer["content"]["n"] for _, answer in parts.server.answers] == [10]
    assert parts.exchange.client_id == 10

    parts.exchange.finish(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(b"{}")))
    frame = await first.replies.next()
    assert frame is not None and msgspec.json.decode(frame.data)["id"] == 10
    first.done()
    assert not parts.live.is_busy


async def test_a_reply_that_is_cancelled_after_its_question_ends_without_the_call() -> None:
    parts = Suspended()
    reply = await parts.clients.session(parts.retry(10, None), WHO)
    assert not isinstance(reply, FoundSession)
    parts.exchange.suspend({})
    assert await reply.replies.next() is not None
    reply.cancel("the client disconnected")
    assert await reply.replies.next() is None
    assert not parts.exchange.is_over


@requirement("rep.fence")
async def test_an_answer_that_is_there_when_the_loss_of_its_session_is_learned_is_not_sent() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    shared = backend.directory, backend.sessions, backend.bus
    owner, other = (Cluster(*shared, taken_over=lambda _: None) for _ in "12")
    await owner.beat()
    session = await owner.claim(await backend.sessions.create(a_session(clock)))
    assert session is not None
    live: Any = SimpleNamespace(session=session)
    reply = CallReply(a_tool_call(live), None, [], events=None, cluster=owner)
    answer = Frame(b"{}", final=True)
    assert not reply.is_doubtful
    assert await other.claim(session) is not None
    await owner.beat()  # it was paused, and renews its lease before it writes what the server has sent
    assert owner.lease.is_fresh and reply.is_doubtful
    assert (await reply.confirmed(answer)).error_code == OUTCOME_UNKNOWN


@requirement("rep.fence", "rep.store-down")
@pytest.mark.parametrize(("held_after_s", "has_ended"), [(0.0, False), (0.9, False), (0.9, True), (None, False)])
async def test_an_answer_waits_for_a_store_that_is_away_and_is_sent_if_the_others_hold_meanwhile(
    held_after_s: float | None, has_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is gone fails at once, and the next beat, with which the others are asked, may be a second later."""
    skip_waits(monkeypatch)
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    owner = Cluster(backend.directory, backend.sessions, backend.bus, taken_over=lambda _: None)
    session = await owner.claim(await backend.sessions.create(a_session(clock)))
    assert session is not None
    owner.lease.renewed(monotonic() - TRUST_S)
    live: Any = SimpleNamespace(session=session, ended=has_ended)
    reply = CallReply(a_tool_call(live), None, [], events=None, cluster=owner)
    assert reply.is_doubtful

    async def away(session_id: str) -> Session | None:
        if held_after_s is not None:
            asyncio.get_running_loop().call_later(held_after_s, lambda: owner.lease.peers_agreed(monotonic()))
        raise StoreUnavailable("away")

    backend.sessions.peek = away  # type: ignore[method-assign]
    answer = Frame(b"{}", final=True)
    sent = await reply.confirmed(answer)
    if held_after_s is not None and not has_ended:
        assert sent is answer
    else:
        assert sent.error_code == OUTCOME_UNKNOWN and b"store does not answer" in sent.data


@pytest.mark.parametrize(("count", "is_refused"), [(1, False), (40, True)])
def test_a_server_at_a_url_gets_some_headers_for_arguments_and_more_are_refused(count: int, is_refused: bool) -> None:
    headers = {f"mcp-param-{number}": "x" for number in range(count)} | {"x-other": "y"}
    exchange: Any = fake_upstream.a_call()
    call = Call(exchange, Era.MODERN, {}, {}, "c", headers=headers)
    upstream: Any = SimpleNamespace(settings=SimpleNamespace(is_remote=True))
    conversation: Any = SimpleNamespace(era=Era.MODERN)
    if not is_refused:
        for_server(upstream, conversation, call, None)
        assert exchange.forwarded == {"mcp-param-0": "x"}
        return
    with pytest.raises(Refused) as refused:
        for_server(upstream, conversation, call, None)
    assert (refused.value.status, refused.value.code) == (400, HEADER_MISMATCH) and not exchange.forwarded
