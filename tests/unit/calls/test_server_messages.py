"""Which call or session a server means with what it sends on its own."""

import sys
from collections import Counter
from time import monotonic
from typing import Any, cast

import msgspec
import pytest

from gateway.calls import in_flight, server_messages
from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import CallsInFlight
from gateway.calls.link_manager import LinkUsers
from gateway.calls.live_session import LiveSession
from gateway.calls.questions_to_client import MAX_SERVER_ID_BYTES
from gateway.calls.received_lists import Lists
from gateway.calls.server_messages import IsolatedRouter, SharedRouter
from gateway.calls.server_task_owners import RELATED, OwnedTask, OwnedTasks, related_id, with_related
from gateway.protocol.client_capabilities import declaration_in_meta
from gateway.protocol.extensions import Declared
from gateway.protocol.merged_lists import Tools
from gateway.protocol.methods import Method
from gateway.protocol.subscription_filter import Filter, SubscriptionFilter
from session_store import ClientFacts, EventLog
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.fake_upstream import a_call, a_live
from tests.support.too_deep import TOO_DEEP
from tests.unit.calls import parts
from tests.unit.calls.parts import notification, request
from transports.era import Era
from transports.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Message, Object, encode, parse
from transports.upstream_port import STANDALONE

TOO_DEEP_PARAMS = {"_meta": {RELATED: msgspec.Raw(TOO_DEEP)}}
"""Params that are nested too deep where a message names its task."""
VENDOR = "notifications/com.acme/changed"
ACME = b'{"io.modelcontextprotocol/clientCapabilities":{"extensions":{"com.acme/a":{}}}}'
TAG = "io.modelcontextprotocol/subscriptionId"


class Server(parts.Server):
    """A conversation, as a router uses it."""

    def __init__(self, era: Era = Era.LEGACY) -> None:
        super().__init__()
        self.era = era
        self.calls = CallsInFlight()
        self.users = LinkUsers()
        self.lists = Lists(lambda: None)
        self.settled: list[Message] = []
        self.known_tasks: OwnedTasks | None = None

    def message(self, message: Message) -> None:
        self.settled.append(message)

    def send(self, live: LiveSession | None, token: object = None, method: str = "tools/call") -> Exchange:
        exchange = a_call(live, method)
        exchange.sent_as(self.conversation, len(self.calls) + 1, None, 1.0)
        exchange.progress_token = None if token is None else msgspec.Raw(encode(token))
        self.calls.add_sent(exchange)
        return exchange


def declaring(**capabilities: Any) -> ClientFacts:
    """A legacy client with these capabilities."""
    return ClientFacts(initialize_params=encode({"capabilities": capabilities}))


class Live(LiveSession):
    """A session whose own stream is a list."""

    def __init__(self, **fields: Any) -> None:
        fields.setdefault("client", declaring(elicitation={}, roots={}))
        super().__init__(a_session(FakeClock(), **fields), cast("EventLog", None))
        self.sent: list[Any] = []

    def send_to_client(self, frame: bytes) -> bool:
        self.sent.append(msgspec.json.decode(frame))
        return True


async def frames_of(exchange: Exchange) -> list[Any]:
    exchange.replies.close()
    frames = []
    while (frame := await exchange.replies.next()) is not None:
        frames.append(msgspec.json.decode(frame.data))
    return frames


async def test_a_question_belongs_to_the_only_call_and_outside_of_calls_to_the_session_and_a_ping_to_nobody() -> None:
    server, live = Server(), Live()
    router = IsolatedRouter(live)
    router.relay_request(server.conversation, request("ping", "p"))
    assert server.answers == [(b'"p"', {})]
    router.relay_request(server.conversation, request("roots/list", "x" * MAX_SERVER_ID_BYTES))
    assert [code for _, code in server.refusals] == [INVALID_REQUEST] and not live.sent, "its id is too long to be kept"
    router.relay_request(server.conversation, request("roots/list"))
    assert [frame["method"] for frame in live.sent] == ["roots/list"]
    exchange = server.send(live)
    router.relay_request(server.conversation, request("roots/list"))
    assert [frame["method"] for frame in await frames_of(exchange)] == ["roots/list"] and len(live.sent) == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_question_that_names_its_call_goes_to_that_call_as_its_client_can_be_asked(era: str) -> None:
    asked: list[object] = []
    live = a_live(ask_modern=lambda _, __, ___, call: asked.append(call), era=era)
    server, router = Server(), IsolatedRouter(live)
    first, second = server.send(live), server.send(live)
    for call in (first, second):
        call.declaration = declaration_in_meta(b"{}")
    router.relay_request(server.conversation, request("roots/list"), first.number)
    router.relay_request(server.conversation, request("roots/list"))
    assert asked == [first, None]
    server.known_tasks = OwnedTasks()
    task = OwnedTask(live, "", seen=lambda _: None, lost=lambda: None)
    task.await_result(first)
    server.known_tasks.add("own", task)
    router.relay_request(server.conversation, request("roots/list", _meta={RELATED: {"taskId": "own"}}))
    assert asked[2] is first and await frames_of(first) == [], "the era of the session does not count"


async def test_in_a_shared_process_nobody_gets_the_question_of_another() -> None:
    server, router, live = Server(), SharedRouter(), Live()
    router.relay_request(server.conversation, request("roots/list"))
    _, last = server.send(live), server.send(live)
    router.relay_request(server.conversation, request("roots/list"))
    for stream in (99, "restore-memo://a"):  # `SharedLinks.replay` names its requests
        router.relay_request(
            server.conversation, request("roots/list", "on the stream of a request of the gateway"), stream
        )
        assert server.refusals.pop() == (b'"on the stream of a request of the gateway"', METHOD_NOT_FOUND)
    assert len(await frames_of(last)) == 1, "calls of one session leave no doubt"
    server.send(Live())
    router.relay_request(server.conversation, request("roots/list"))
    assert server.refusals == [(b"1", METHOD_NOT_FOUND)] * 2


async def test_in_a_shared_process_no_call_without_a_session_gets_the_log_of_another() -> None:
    server, router = Server(), SharedRouter()
    message = notification("notifications/message", {"level": "error", "data": "whose?"})

    def send() -> Exchange:
        call = server.send(None, method="tools/list")
        call.declaration = declaration_in_meta(b'{"io.modelcontextprotocol/logLevel":"debug"}')
        return call

    server.calls.end(send())
    first = send()
    router.relay_notification(server.conversation, message)  # perhaps of the call that was cancelled
    server.calls.forget_server()
    second = send()
    router.relay_notification(server.conversation, message)
    assert await frames_of(first) == await frames_of(second) == []
    for call in (first, second):
        server.calls.end(call)
    server.calls.forget_server()
    only = send()
    router.relay_notification(server.conversation, message)
    assert len(await frames_of(only)) == 1


@pytest.mark.parametrize("sessions", [2, 3])
async def test_in_a_shared_process_nobody_gets_the_late_question_of_a_call_that_was_cancelled(
    sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, router, live, now = Server(), SharedRouter(), Live(), [monotonic()]
    for module in (in_flight, server_messages):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    for each in (*(Live() for _ in range(sessions - 1)), live):
        server.calls.end(server.send(each))
    call = server.send(live)
    router.relay_request(server.conversation, request("roots/list"))
    router.relay_notification(
        server.conversation, notification("notifications/message", {"level": "error", "data": "theirs"})
    )
    assert server.refusals == [(b"1", METHOD_NOT_FOUND)] and not live.sent
    now[0] += server.deadlines.call_s / 2
    server.calls.end(server.send(live))
    now[0] += server.deadlines.call_s / 2
    router.relay_request(server.conversation, request("roots/list"))
    assert [frame["method"] for frame in await frames_of(call)] == ["roots/list"], "its own leave no doubt"
    server.calls.end(server.send(Live()))
    router.closed(server.conversation)
    assert router._addressee(server.conversation)[0] is live, "the process is gone"


@requirement("spec.cancelled")
@pytest.mark.parametrize("others", [1, 500])
async def test_a_server_cancels_its_question_at_the_session_that_was_asked_whoever_else_uses_it(others: int) -> None:
    server, router, live = Server(), SharedRouter(), Live()
    bystanders = [Live() for _ in range(others)]
    for user in (live, *bystanders):
        server.users.add(user)
        user.questions.ask(parts.Server().conversation, request("roots/list", "é"), None)  # that of another server
    call = server.send(live)
    router.relay_request(server.conversation, request("roots/list", "é"))
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, _: calls.update([event]))
    router.relay_notification(
        server.conversation,
        parse(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\\u00e9"}}'),
    )
    sys.setprofile(None)
    assert [frame["method"] for frame in await frames_of(call)] == ["roots/list", "notifications/cancelled"]
    assert all(len(user.sent) == 1 for user in (live, *bystanders)) and calls["call"] < 60
    router.relay_notification(server.conversation, notification("notifications/cancelled", {"requestId": "é"}))
    assert len(live.sent) == 1
    server.calls.add_question(b"1", live)
    router.closed(server.conversation)
    assert server.calls.remove_question(b"1") is None


@requirement("spec.relayed-changes")
@pytest.mark.parametrize("others", [1, 500])
async def test_a_change_that_a_shared_server_tells_each_session_costs_each_no_more_with_many(others: int) -> None:
    server, router = Server(Era.MODERN), SharedRouter()
    server.lists = Lists(server.users.changed)
    users = [Live() for _ in range(1 + others)]
    for user in users:
        server.users.add(user)
    stream = server.send(users[0], method="subscriptions/listen")
    stream.listen_for(Filter(kinds=frozenset({"toolsListChanged"})))
    router.relay_notification(
        server.conversation, notification("notifications/tools/list_changed", {"_meta": {TAG: 7}})
    )
    assert all(user.version == 1 for user in users), "the first makes all decide anew"
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, _: calls.update([event]))
    for named in ({"_meta": {TAG: stream.number}}, {}):
        router.relay_notification(server.conversation, notification("notifications/tools/list_changed", named))
    sys.setprofile(None)
    assert len(await frames_of(stream)) == 1 and calls["call"] < 90
    server.lists.list_requested("tools/list")
    router.relay_notification(server.conversation, notification("notifications/tools/list_changed", {}))
    assert all(user.version == 3 for user in users), "a question, and a change since then"


@requirement("spec.letter")
@pytest.mark.parametrize(
    ("declared", "method", "params", "code"),
    [
        ({}, "roots/list", {}, METHOD_NOT_FOUND),
        ({}, "elicitation/create", {}, INVALID_PARAMS),
        ({"elicitation": {}}, "elicitation/create", {"mode": "url"}, INVALID_PARAMS),
        ({"elicitation": {}}, "elicitation/create", {"mode": 7}, INVALID_PARAMS),
        ({"sampling": {}}, "sampling/createMessage", {"tools": []}, INVALID_PARAMS),
        ({"sampling": {"tools": {}}}, "sampling/createMessage", {"tools": []}, None),
        ({"elicitation": {"url": {}}}, "elicitation/create", {"mode": "url"}, None),
        ({"elicitation": {"applyDefaults": True}}, "elicitation/create", {}, None),
    ],
)
async def test_a_shared_process_asks_a_client_only_for_what_it_has_declared(
    declared: Any, method: str, params: Any, code: int | None
) -> None:
    server, live = Server(), Live(client=declaring(**declared))
    call = server.send(live)
    SharedRouter().relay_request(server.conversation, request(method, **params))
    assert server.refusals == ([] if code is None else [(b"1", code)])
    assert [frame["method"] for frame in await frames_of(call)] == ([method] if code is None else [])


@pytest.mark.parametrize("method", ["roots/list", "ping"])
async def test_a_modern_server_may_send_no_requests_and_gets_no_answer(method: str) -> None:
    server = Server(Era.MODERN)
    exchange = server.send(live := Live())
    IsolatedRouter(live).relay_request(server.conversation, request(method))
    assert not server.refusals and not server.answers and not live.sent
    assert await frames_of(exchange) == []


@requirement("wall.memory")
async def test_a_question_that_cannot_be_read_is_refused_at_once() -> None:
    server, live = Server(), Live()
    server.send(live)
    unreadable = [msgspec.Raw(b"[1]"), {"_meta": 1}, {"_meta": {RELATED: msgspec.Raw(b"1e400")}}, TOO_DEEP_PARAMS]
    for params in unreadable:
        message = Message(jsonrpc="2.0", id=1, method="roots/list", params=msgspec.Raw(encode(params)))
        IsolatedRouter(live).relay_request(server.conversation, message)
    assert server.refusals == [(b"1", INVALID_PARAMS)] * len(unreadable) and not live.sent


def progress(token: object) -> Message:
    return notification("notifications/progress", {"progressToken": token, "progress": 2})


async def test_progress_goes_to_its_call_under_the_clients_own_token() -> None:
    server, live = Server(), Live()
    first, second = server.send(live, "theirs"), server.send(live)
    router = IsolatedRouter(live)
    for token in (1, 2, 9):
        router.relay_notification(server.conversation, progress(token))
    assert [frame["params"] for frame in await frames_of(first)] == [{"progressToken": "theirs", "progress": 2}]
    assert await frames_of(second) == []


@requirement("spec.task-progress")
async def test_progress_of_a_task_goes_to_the_session_of_the_call_that_made_it() -> None:
    server, live, other = Server(), Live(), Live()
    maker, plain, modern = server.send(live, "theirs"), server.send(live, "plain"), server.send(live, "modern")
    maker.makes_task = modern.makes_task = True
    modern.declaration = declaration_in_meta(b"{}")
    for exchange in (maker, plain, modern):
        assert server.calls.pop(exchange.number) is exchange
    for router in (IsolatedRouter(other), SharedRouter()):
        for number in (*range(1, 5), "1", None, 1e9):
            router.relay_notification(server.conversation, progress(number))
    assert [frame["method"] for frame in live.sent] == ["notifications/progress"] * 2 and not other.sent
    assert [frame["params"] for frame in live.sent] == [{"progressToken": "theirs", "progress": 2}] * 2
    server.calls.forget_server()
    IsolatedRouter(live).relay_notification(server.conversation, progress(1))
    assert len(live.sent) == 2, "the process is gone"


@requirement("spec.letter")
async def test_the_end_of_a_visit_is_told_to_nobody_but_the_client_that_was_asked() -> None:
    server, live, other = Server(), Live(), Live()
    visited = notification("notifications/elicitation/complete", {"elicitationId": "e1"})
    IsolatedRouter(live).relay_notification(server.conversation, visited)
    assert [frame["params"] for frame in live.sent] == [{"elicitationId": "e1"}]
    first, second = server.send(other), server.send(live)
    server.calls.pop(second.number)
    SharedRouter().relay_notification(server.conversation, visited)
    assert not other.sent and len(live.sent) == 1, "the only call in flight may be another client's"
    SharedRouter().relay_notification(server.conversation, visited, first.number)
    assert [frame["params"] for frame in await frames_of(first)] == [{"elicitationId": "e1"}]


def test_a_changed_list_is_forgotten_and_the_sessions_are_notified() -> None:
    server, live, changes = Server(), Live(), list[Method]()
    server.lists.known["tools/list"] = Tools([])
    IsolatedRouter(live, changes.append).tools_changed(server.conversation)
    assert [change.kind for change in changes] == ["tools"] and not server.lists.known
    assert not live.sent, "the server refuses headers: its list has not changed for clients"
    server.lists.known["tools/list"] = Tools([])
    IsolatedRouter(live).relay_notification(server.conversation, notification("notifications/tools/list_changed", {}))
    assert "tools/list" not in server.lists.known and "tools/list" in server.lists.changed
    others = [f"notifications/{kind}/list_changed" for kind in ("prompts", "resources")]
    for method in others:
        IsolatedRouter(live).relay_notification(server.conversation, notification(method, {}))
    assert [frame["method"] for frame in live.sent] == ["notifications/tools/list_changed", *others]


async def test_an_updated_resource_of_a_shared_process_goes_to_its_subscribers() -> None:
    server, subscriber, other = Server(), Live(subscriptions=("file:///a",)), Live()
    for live in (subscriber, other):
        server.users.add(live)
    updated = notification("notifications/resources/updated", {"uri": "file:///a"})
    SharedRouter().relay_notification(server.conversation, updated)
    assert len(subscriber.sent) == 1 and not other.sent
    for era in ("legacy", "modern"):
        listening, told = Live(era=era), list[Any]()
        listening.subscriptions.append(SubscriptionFilter(1, Filter(uris=frozenset({"file:///a"})), told.append))
        server.users.add(listening)
        SharedRouter().relay_notification(
            server.conversation, notification("notifications/resources/updated", {"uri": [1]})
        )
        assert not told and len(subscriber.sent) == 1, "it is no URI"


@requirement("ext.relay")
async def test_a_legacy_client_gets_what_a_modern_server_says_outside_of_calls() -> None:
    server, live = Server(Era.MODERN), Live()
    router = IsolatedRouter(live)
    router.relay_notification(server.conversation, notification(VENDOR, {"n": 1}))
    router.relay_notification(server.conversation, notification("notifications/message", {}))
    deeply = Message(jsonrpc="2.0", method="notifications/x", params=msgspec.Raw(encode(TOO_DEEP_PARAMS)))
    for sender in (server, Server()):
        router.relay_notification(sender.conversation, notification("notifications/resources/updated", [1]))
        router.relay_notification(sender.conversation, deeply)
    assert [frame["params"] for frame in live.sent] == [{"n": 1}], "and nothing that cannot be read"


@requirement("spec.ended-listen")
def test_a_modern_server_may_cancel_its_subscriptions_and_nothing_else() -> None:
    server, live = Server(Era.MODERN), Live(era="modern")
    call = server.send(live)
    server.send(live, method="subscriptions/listen")
    router = IsolatedRouter(live)
    for request_id in (call.number, 9, "2", None, [2]):
        router.relay_notification(
            server.conversation, notification("notifications/cancelled", {"requestId": request_id})
        )
    assert not server.settled and not call.is_over
    router.relay_notification(server.conversation, notification("notifications/cancelled", {"requestId": 2}))
    assert [message.id for message in server.settled] == [2]


@requirement("spec.cold-listen")
async def test_the_acknowledgement_of_a_server_is_the_clients_unless_the_gateway_has_acknowledged() -> None:
    server, live = Server(Era.MODERN), Live(era="modern")
    known: list[str] = []
    streams = [server.send(live, method="subscriptions/listen") for _ in range(2)]
    streams[1].acknowledged_here(lambda: known.append("the server has it"))
    for number in (1, 2, 2, 3):
        params = {"notifications": {}, "_meta": {TAG: number}}
        acknowledged = notification("notifications/subscriptions/acknowledged", params)
        IsolatedRouter(live).relay_notification(server.conversation, acknowledged)
    assert [len(await frames_of(stream)) for stream in streams] == [1, 0] and known == ["the server has it"]
    streams[1].number = 4  # it was sent again
    assert streams[1].take_acknowledgement() and len(known) == 2


@requirement("ext.relay")
async def test_what_came_on_the_stream_of_a_request_belongs_to_that_request() -> None:
    server, live = Server(), Live()
    first, second = server.send(live), server.send(live)
    router = IsolatedRouter(live)
    router.relay_notification(server.conversation, notification(VENDOR, {"n": 1}), first.number)
    router.relay_notification(server.conversation, notification(VENDOR, {"n": 2}), second.number)
    router.relay_request(server.conversation, request("com.acme/ask"), first.number)
    router.relay_notification(server.conversation, notification(VENDOR, {"n": 3}), STANDALONE)
    assert [frame["method"] for frame in await frames_of(first)] == [VENDOR, "com.acme/ask"]
    assert [frame["params"] for frame in await frames_of(second)] == [{"n": 2}]
    assert [frame["params"] for frame in live.sent] == [{"n": 3}]

    shared, other = Server(), Live()
    mine, theirs = shared.send(live), shared.send(other)
    SharedRouter().relay_notification(shared.conversation, notification(VENDOR, {}), theirs.number)
    assert await frames_of(mine) == [] and len(await frames_of(theirs)) == 1


@requirement("ext.relay")
@pytest.mark.parametrize("era", [Era.LEGACY, Era.MODERN])
async def test_what_belongs_to_no_call_goes_to_the_streams_of_a_modern_client_that_have_declared_it(era: Era) -> None:
    server, live = Server(era), Live(era="modern")
    frames: list[bytes] = []
    for client_id, declared in ((5, Declared(("com.acme/a",))), (6, Declared())):
        subscription = SubscriptionFilter(client_id, Filter(), frames.append, declared)
        subscription.acknowledge(Filter())
        live.subscriptions.append(subscription)
    streams = [server.send(live, method="subscriptions/listen") for _ in range(2)]
    for stream, meta in zip(streams, (ACME, b"{}"), strict=True):
        stream.declaration = declaration_in_meta(meta)
    frames.clear()
    IsolatedRouter(live).relay_notification(server.conversation, notification(VENDOR, {"n": 1}))
    assert [msgspec.json.decode(frame)["params"] for frame in frames] == [{"n": 1, "_meta": {TAG: 5}}]
    assert [frame["params"] for frame in await frames_of(streams[0])] == [{"n": 1, "_meta": {TAG: 7}}]
    assert await frames_of(streams[1]) == [] and not live.sent


@requirement("ext.relay", "task.relay")
async def test_what_concerns_a_task_of_a_shared_server_is_told_on_no_stream_of_another_session() -> None:
    server, owner, other = Server(Era.MODERN), Live(era="modern"), Live(era="modern")
    own, foreign = (server.send(live, method="subscriptions/listen") for live in (owner, other))
    own.declaration = foreign.declaration = declaration_in_meta(ACME)
    server.known_tasks = OwnedTasks()
    server.known_tasks.add("own", OwnedTask(owner, "handle", seen=lambda _: None, lost=lambda: None))
    SharedRouter().relay_notification(
        server.conversation, notification(VENDOR, {"_meta": {RELATED: {"taskId": "own"}}})
    )
    assert len(await frames_of(own)) == 1 and await frames_of(foreign) == []


@requirement("task.relay")
async def test_a_message_about_a_task_of_a_shared_server_reaches_the_session_of_the_task_only() -> None:
    server, owner, busy = Server(), Live(era="legacy"), Live(era="legacy")
    call = server.send(busy)
    server.known_tasks = OwnedTasks()
    seen: list[object] = []
    server.known_tasks.add("own", OwnedTask(owner, "handle", seen=seen.append, lost=lambda: None))
    router = SharedRouter()
    meta = {"_meta": {RELATED: {"taskId": "own"}}}
    router.relay_notification(
        server.conversation, notification("notifications/tasks/status", {"taskId": "own", "status": "x"})
    )
    router.relay_notification(server.conversation, notification("notifications/message", {"level": "info", **meta}))
    for unknown in ("another", 7, None):
        router.relay_notification(server.conversation, notification("notifications/tasks/status", {"taskId": unknown}))
    assert [frame["params"] for frame in owner.sent] == [
        {"taskId": "handle", "status": "x"},
        {"level": "info", "_meta": {RELATED: {"taskId": "handle"}}},
    ]
    assert len(seen) == 1
    router.relay_request(server.conversation, request("elicitation/create", message="who?", **meta))
    assert owner.sent[-1]["params"] == {"message": "who?", "_meta": {RELATED: {"taskId": "handle"}}}
    router.relay_request(server.conversation, request("elicitation/create", 2, _meta={RELATED: {"taskId": "another"}}))
    assert server.refusals == [(b"2", METHOD_NOT_FOUND)]
    assert not await frames_of(call) and not busy.sent


# -- what is known of the tasks of one link


def related(task_id: object, more: str = "") -> str:
    return f'"_meta":{{"{RELATED}":{{"taskId":{msgspec.json.encode(task_id).decode()}{more}}}}}'


def owned_task(handle: str, lost: list[str]) -> OwnedTask:
    return OwnedTask(cast("Any", None), handle, seen=lambda _: None, lost=lambda: lost.append(handle))


def object_of(text: str) -> Object:
    return msgspec.json.decode(text, type=Object)


@requirement("task.relay")
def test_an_id_belongs_to_who_has_it_last() -> None:
    tasks, lost = OwnedTasks(), list[str]()
    tasks.add("1", owned_task("first", lost))
    tasks.add("1", owned_task("second", lost))
    assert lost == ["first"]
    tasks.discard("1", "first")
    found = tasks.get("1")
    assert found is not None and found.handle == "second" and tasks.own_id("second") == "1"
    tasks.discard("1", "second")
    assert tasks.get("1") is None and tasks.own_id("second") is None


def test_messages_go_to_the_call_that_waits_for_the_result_until_it_is_done() -> None:
    owned, first, second = owned_task("h", []), a_call(), a_call()
    assert owned.stream is None
    owned.await_result(first)
    assert owned.stream is first
    owned.await_result(second)
    first.done()
    assert owned.stream is second
    second.abandon()
    assert owned.stream is None, "it has ended"
    second.done()
    assert owned.result_call is None


@requirement("task.relay")
def test_the_server_gets_its_own_id_in_an_answer() -> None:
    tasks = OwnedTasks()
    tasks.add("own", owned_task("h", []))

    def answered(result: str) -> str:
        raw = tasks.answer_for_server(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(result.encode()))).result
        assert isinstance(raw, msgspec.Raw)
        return bytes(raw).decode()

    assert answered("{" + related("h", ',"y":2') + "}") == "{" + related("own", ',"y":2') + "}"
    for other in ("{" + related("another") + "}", '{"action":"accept"}', '{"_meta":3}', "[]", "{" + related(1) + "}"):
        assert answered(other) == other
    error = Message(jsonrpc="2.0", id=1, error=msgspec.Raw(b"{}"))
    assert tasks.answer_for_server(error) is error


def test_a_relation_is_renamed_and_nothing_else() -> None:
    found = with_related(object_of('{"a":[1],' + related("1", ',"more":2') + "}"), "2")
    assert {key: msgspec.json.decode(raw) for key, raw in found.items()} == {
        "a": [1],
        "_meta": {RELATED: {"taskId": "2", "more": 2}},
    }
    for text in ("{}", '{"_meta":{}}', "{" + related([]) + "}", "{" + related(1) + "}"):
        assert related_id(object_of(text)) == "", "it names no task"
