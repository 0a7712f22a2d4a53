"""A call like the last one is sent with what was decided on that, or nothing is done; whatever is unusual afterwards
makes it the exchange that it would have been."""

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest
from msgspec.structs import replace

from gateway.calls.exchange import Exchange
from gateway.calls.link_manager import LinkLifecycle
from gateway.calls.live_session import ReturnWatch
from gateway.calls.messages_for_operators import MessageRecorder
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN
from gateway.identity.authenticate import Authenticated
from gateway.protocol.merged_lists import Tools
from gateway.relay import fast_path
from gateway.relay.fast_path import FastCall
from gateway.sessions.client_return_tracking import UsedIds
from session_store import ANONYMOUS, StoreUnavailable
from session_store.memory import MemorySessionStore
from tests.requirements import requirement
from tests.support.too_deep import TOO_DEEP
from tests.unit.calls.parts import turns, until
from tests.unit.relay.fast_calls import ARGUMENTS, Calls, Fast, answer_of, warm
from transports.inbound_port import FastPathOffer, Refused
from transports.jsonrpc import encode
from transports.upstream.stdio import StdioLink
from transports.upstream_port import Link, LinkClosed

pytestmark = requirement("fast.same", "fast.falls-back")

OK = {"content": [{"type": "text", "text": "found"}], "resultType": "complete"}
RESERVED = "io.github.mcp-session-gateway/session"


# -- sent and answered


async def test_a_call_is_sent_and_recorded_as_the_general_way_does_both(
    fast: Fast, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway.observability.request_log")
    before = fast.live.calls
    request = fast.calls.request("x-1", {"arguments": msgspec.Raw(ARGUMENTS)})
    reply = await fast.calls.begun(request)
    fast.result(OK)
    general = await answer_of(reply)
    fast.begin()
    assert len(fast.conversation.calls) == fast.live.busy == 1
    fast.result(OK)
    fast.result(OK)  # which answers nothing
    await turns()
    assert fast.client.answers == [(general[0], reply.headers)] and not fast.client.left

    sent, sent_fast = fast.frames
    context = "io.github.mcp-session-gateway/context"
    ids = [frame["params"]["_meta"][context].pop("correlation_id") for frame in fast.frames]
    assert sent_fast == sent | {"id": sent["id"] + 1} and ids[0] != ids[1] and len(ids[1]) == 32
    assert fast.live.busy == len(fast.conversation.calls) == 0 and fast.live.calls == before + 2
    assert len(fast.counted) == 2 and len(set(fast.counted)) == 1, "in the metrics"
    one, other = ({name: getattr(call, name) for name in call.__struct_fields__} for call in fast.ended)
    assert [one.pop("correlation"), other.pop("correlation")] == ids
    for name, within in (("at", 60), ("took_s", 60)):
        assert abs(one.pop(name) - other.pop(name)) < within
    assert one.pop("session").id == other.pop("session").id == fast.live.session.id and one == other
    lines = [record for record in caplog.records if record.getMessage() == "tools/call"]
    shown = ("levelname", "outcome", "session", "principal", "era", "server", "tool")
    assert len(lines) == 2 and len({tuple(str(getattr(line, name)) for name in shown) for line in lines}) == 1
    assert [getattr(line, "correlation") for line in lines] == ids  # noqa: B009 - no attribute of all records


async def test_calls_in_flight_at_once_are_answered_each_with_its_own_result(fast: Fast) -> None:
    for client_id in ("a", 2, "c"):
        fast.begin(client_id, b'{ "key" : "\\u0061" }')
    assert fast.live.busy == 3 and [frame["params"]["arguments"] for frame in fast.frames] == [{"key": "a"}] * 3
    for frame in (fast.frames[1], fast.frames[2], fast.frames[0]):
        fast.message({"id": frame["id"], "result": OK | {"n": frame["id"]}})
    first = fast.frames[0]["id"]
    answered = [(answer["id"], answer["result"]["n"] - first) for answer, _ in fast.client.answers]
    assert answered == [(2, 1), ("c", 2), ("a", 0)] and fast.live.busy == 0


# -- guards


def watch(fast: Fast, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fast.live, "recorder", None)  # afterwards nobody watches
    patch.setattr(fast.live, "conversations", {})
    fast.live.watched_by(cast("MessageRecorder", SimpleNamespace()))


def list_anew(fast: Fast, _: pytest.MonkeyPatch) -> None:
    fast.conversation.lists.keep("tools/list", Tools([{"name": "recall"}]))
    fast.conversation.lists.forget("tools")


def wait_for_return(fast: Fast, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fast.live, "return_watch", None)
    fast.live.watch_return(cast("ReturnWatch", SimpleNamespace(is_waiting=True)))


def change_record(fast: Fast, _: pytest.MonkeyPatch) -> None:
    stored = fast.live.session
    fast.live.replace_record(replace(stored, context=replace(stored.context, workspace="red")))
    fast.live.replace_record(stored)  # as it was: what was decided meanwhile may differ


Change = Callable[[Fast, pytest.MonkeyPatch], object]
CHANGES: dict[str, Change] = {
    "the session passes to another replica": lambda fast, _: fast.calls.lives.hand_over(fast.live),
    "the session is removed": lambda fast, _: fast.calls.lives.remove(fast.live.session.id),
    "the session drains": lambda fast, _: fast.live.drain(),
    "the record changes": change_record,
    "the client has to come back": wait_for_return,
    "an operator watches": watch,
    "the server announces another list": lambda fast, _: fast.conversation.lists.forget("tools"),
    "another list was received": list_anew,
    "the facts of the server change": lambda fast, _: fast.path.facts.changed(),
    "the server was restarted": lambda fast, _: fast.conversation.users.restarted("crash"),
    "the session has news": lambda fast, _: fast.conversation.users.notify(fast.live, "gateway_restart"),
    "its credential is to be verified anew": lambda fast, _: setattr(fast.path, "until", monotonic()),
    "its link has opened or closed": lambda fast, _: fast.conversation.link_changed(),
}
"""What ends a path: it is never asked again."""


@pytest.mark.parametrize("change", CHANGES)
async def test_what_changes_ends_the_path_before_anything_is_done(
    fast: Fast, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CHANGES[change](fast, monkeypatch)
    before, number = fast.state(), fast.conversation.next_number()
    assert fast.client.begin(fast.path) is None and fast.path.is_over
    assert fast.state() == before and fast.conversation.next_number() == number + 1
    if fast.calls.lives.get(fast.live.session.id) is not fast.live:
        await fast.live.close(over=False)


def used_ids() -> UsedIds:
    found = UsedIds()
    found.add(b'"x-1"')
    return found


OBSTACLES: dict[str, Change] = {
    "the lease is not certain": lambda fast, patch: patch.setattr(
        fast.path.paths, "lease", SimpleNamespace(trusted_until=monotonic())
    ),
    "too many calls are in flight": lambda fast, patch: patch.setattr(fast.path.paths.way, "max_exchanges", 0),
    "its id was used in the default session": lambda fast, patch: patch.setattr(
        fast.path, "_waits", partial(fast_path._must_wait, used_ids(), None)
    ),
    "no rate is left": lambda fast, patch: patch.setattr(fast.path.paths.rates, "spend_at_hand", lambda *_: False),
}
"""What may pass: the path stays."""


@pytest.mark.parametrize("obstacle", OBSTACLES)
async def test_an_obstacle_sends_the_call_the_general_way_before_anything_is_done(
    fast: Fast, obstacle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, number = fast.state(), fast.conversation.next_number()
    with monkeypatch.context() as patch:
        OBSTACLES[obstacle](fast, patch)
        assert fast.client.begin(fast.path) is None and not fast.path.is_over
    assert fast.state() == before and fast.conversation.next_number() == number + 1
    fast.begin()
    fast.result(OK)
    assert len(fast.client.answers) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *(b'{"key":7}', b"{}", b"[]", b"null", b"", b"{", b'{"key":"k"}}', b'{"key":"k"} 1', b'{"key":NaN}'),
        *(b'{"key":"k"},"x":{}', b'{"key":"k"},"name":"remember","arguments":{}', b'{"key":"\xff"}'),
        *(b'{"key":1e400}', TOO_DEEP, b'{"key":' + TOO_DEEP + b"}", b'{"key":"a\nb"}'),
    ],
)
async def test_arguments_that_are_wrong_or_more_than_one_value_are_for_the_general_way(
    fast: Fast, arguments: bytes
) -> None:
    before, number = fast.state(), fast.conversation.next_number()
    assert fast.path.begin(fast.client, b"", (b"1", b"", arguments)) is None and not fast.path.is_over
    assert fast.state() == before and fast.conversation.next_number() == number + 1


async def test_what_a_link_does_not_take_counts_for_nothing(fast: Fast) -> None:
    before = fast.state()
    fast.refusal = LinkClosed("it does not read its input")
    assert fast.client.begin(fast.path) is None and fast.state() == before


@pytest.mark.parametrize("end", ["read", "not to be had", "left"])
async def test_a_record_that_is_too_old_is_read_first(fast: Fast, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fast.state()
    monkeypatch.setattr(fast.live, "read_at", 0.0)
    if end == "not to be had":
        monkeypatch.setattr(MemorySessionStore, "resume", AsyncMock(side_effect=StoreUnavailable("it is gone")))
    reading = fast.client.begin(fast.path)
    assert reading is not None and fast.state() == before
    fast.client.late = reading
    if end == "left":
        reading.fall_back()
        assert fast.client.late is None, "it is the handler's from its beginning"
    await until(lambda: fast.client.late is not reading)
    await turns()
    if end == "read":
        assert isinstance(fast.client.late, FastCall) and fast.live.busy == 1
        fast.result(OK)
        assert len(fast.client.answers) == 1
    else:
        assert fast.client.late is None and fast.state() == before and not fast.path.is_over


async def test_a_record_that_ages_is_read_again_while_its_calls_are_sent(
    fast: Fast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.relay.fast_path.AGING_AFTER_S", 0.0)
    monkeypatch.setattr("gateway.sessions.resolve.AGING_AFTER_S", 0.0)
    read_at = fast.live.read_at
    fast.begin()
    await until(lambda: fast.live.read_at > read_at)
    fast.result(OK)
    assert len(fast.client.answers) == 1, "the record was but used"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_rates_count_each_call_and_refuse_the_same_one(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = {"policy": {"session_rate": {"per_s": 0.001, "burst": 40}}}
    async with warm(era, monkeypatch, **rate) as calls:
        fast = await Fast.of(calls, monkeypatch)
        for _ in range(60):
            if fast.client.begin(fast.path) is not None:
                fast.result(OK)
                continue
            try:
                reply = await calls.begun(calls.request(1, {"arguments": msgspec.Raw(ARGUMENTS)}))
            except Refused as refused:
                assert refused.status == 429
                break
            fast.result(OK)
            await answer_of(reply)
        assert fast.path.begin(fast.client, b"", (b"1", b"", ARGUMENTS)) is None and 30 <= len(fast.frames) < 40


@requirement("wall.authority")
async def test_no_path_is_made_of_a_call_whose_head_does_not_say_for_good_who_calls(calls: Calls) -> None:
    await calls.decided()
    request = calls.request(1, {"arguments": msgspec.Raw(ARGUMENTS)})
    assert calls.path(request) is not None
    nameless = {name: value for name, value in request.headers.items() if "session" not in name}
    assert calls.path(replace(request, headers=nameless)) is None
    expiring = replace(request, vouched_for=Authenticated(ANONYMOUS), offer=FastPathOffer())
    await answer_of(await calls.begun(expiring))
    assert calls.path_for is not None and calls.path(expiring) is None


FORGED = {"q": {"_meta": {"io.github.mcp-session-gateway/context": {"principal": "forged"}}}}


@requirement("wall.authority")
@pytest.mark.parametrize(
    ("era", "more"),
    [
        ("legacy", {"task": b'{"ttl":1000}'}),
        ("legacy", {"_meta": b'{"orbit":{"workspace":"red"}}'}),
        ("modern", {"inputResponses": encode(FORGED)}),
    ],
    ids=["task", "workspace", "something was taken out"],
)
async def test_no_path_is_made_of_calls_that_are_decided_on_one_by_one(
    era: str, more: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {"policy": {"rules": [{"principals": ["*"], "workspace": "blue"}]}, "tasks": {"enabled": False}}
    async with warm(era, monkeypatch, **rules) as calls:
        special = calls.like(**{name: msgspec.Raw(value) for name, value in more.items()})
        for _ in range(3):
            await special.call()
            assert special.path() is None


async def test_no_path_is_made_of_calls_whose_arguments_are_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="no path is made"):
        async with warm("modern", monkeypatch, audit={"calls": "names"}):
            pass


async def test_no_path_is_made_of_what_has_changed_since_the_call(calls: Calls) -> None:
    path = await calls.decided()
    path.live.changed()
    assert calls.path() is None


@requirement("proc.reset-told")
async def test_no_path_is_made_while_a_result_has_to_tell_of_a_restart(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = await Fast.of(calls, monkeypatch)
    fast.conversation.users.restarted("crash")
    request = calls.request(1, {"arguments": msgspec.Raw(ARGUMENTS)})
    for answer, is_told in (({"error": {"code": -1, "message": "no"}}, False), ({"result": OK}, True)):
        reply = await calls.begun(request)
        fast.message({"id": fast.number, **answer})
        told = (await answer_of(reply))[0].get("result", {}).get("_meta")
        assert (told is not None) is is_told
        assert (calls.path() is not None) is is_told


# -- left

Happens = Callable[[Fast], object]


def fail(fast: Fast) -> None:
    fast.message({"id": fast.number, "error": {"code": -32_001, "message": "no", "data": {"a": 1}}})


def notify_progress(fast: Fast) -> None:
    progress = {"progressToken": fast.number, "progress": 1}
    fast.message({"method": "notifications/progress", "params": progress})
    fast.result(OK)


def ask(fast: Fast) -> None:
    """The server asks under the number of the call, which is another request of its own."""
    fast.message({"id": fast.number, "method": "ping", "params": {}})
    fast.result(OK)


def cancel(fast: Fast) -> None:
    for exchange in fast.live.in_flight_as("x-1"):
        exchange.cancel("the client wants no answer")
    fast.result(OK)  # too late


def cancel_all(fast: Fast) -> None:
    for exchange in fast.conversation.calls:
        exchange.cancel("it ends")


UNUSUAL: dict[str, Happens] = {
    "an error": fail,
    "a result that is an error": lambda fast: fast.result({"isError": True, "content": []}),
    "a question in the result": lambda fast: fast.result({"resultType": "input_required", "inputRequests": {}}),
    "a task": lambda fast: fast.result({"resultType": "task", "taskId": "t"}),
    "a key that only the gateway sets": lambda fast: fast.result(OK | {"_meta": {RESERVED: "forged", "b": 1}}),
    "no object": lambda fast: fast.result([1]),
    "an answer that cannot be read": lambda fast: fast.conversation.unreadable(fast.number, "it is no JSON"),
    "an answer with a status": lambda fast: fast.conversation.refused(fast.number, "it said 500", 500),
    "progress that nobody wants": notify_progress,
    "a request of the server": ask,
    "a cancellation": cancel,
    "a cancellation of all calls": cancel_all,
}


def plain(answers: list[Any]) -> list[Any]:
    """Answers without the correlation id in their errors, and without sealed state."""
    for answer in answers:
        for meta in (answer.get("error", {}).get("data"), answer.get("result", {})):
            if isinstance(meta, dict):
                meta.pop("_meta", None) if answer.get("error") or meta.get("isError") else None
                meta.pop("correlation_id", None)
                meta.pop("requestState", None)
    return answers


@pytest.mark.parametrize("happens", UNUSUAL)
async def test_what_is_unusual_is_answered_as_on_the_general_way(fast: Fast, happens: str) -> None:
    calls_before = fast.live.calls
    reply = await fast.calls.begun(fast.calls.request("x-1", {"arguments": msgspec.Raw(ARGUMENTS)}))
    UNUSUAL[happens](fast)
    general, sent = await answer_of(reply), len(fast.frames)
    fast.begin()
    UNUSUAL[happens](fast)
    await turns()
    for answer, headers in fast.client.answers:  # a legacy client gets each result as it is
        assert happens in ("a task", "no object") and (headers, [answer]) == (reply.headers, general)
    for left, _ in fast.client.left:
        assert left.headers == reply.headers and plain(await answer_of(left)) == plain(general)
    assert len(fast.client.answers) + len(fast.client.left) == 1
    assert [frame.get("method") for frame in fast.frames[:sent]] == [
        frame.get("method") for frame in fast.frames[sent:]
    ]
    assert fast.live.busy == len(fast.conversation.calls) == 0 and fast.live.calls == calls_before + 2
    assert len(fast.counted) == len(fast.ended) == 2 and len(set(fast.counted)) == 1
    one, other = fast.ended
    assert (one.outcome, one.why, one.tool, one.is_listed) == (other.outcome, other.why, other.tool, other.is_listed)


MEANWHILE: dict[str, Change] = {
    "the session has changed": lambda fast, _: fast.live.changed(),
    "the server has changed": lambda fast, _: fast.path.facts.changed(),
    "the lease is not certain": lambda fast, patch: patch.setattr(
        fast.path.paths, "lease", SimpleNamespace(trusted_until=0.0)
    ),
    "the call was slow": lambda fast, patch: patch.setattr(fast.path.tool, "slow_s", -1.0),
    "the client does not read": lambda fast, _: setattr(fast.client, "takes", False),
    "the connection is broken": lambda fast, _: setattr(fast.client, "fault", RuntimeError("broken")),
    "it cannot be translated": lambda fast, _: setattr(fast.path, "translate", partial(msgspec.json.decode, type=int)),
}


@pytest.mark.parametrize("change", MEANWHILE)
async def test_an_answer_after_a_change_is_given_by_the_general_way(
    fast: Fast, change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call = fast.begin()
    with monkeypatch.context() as patch:
        MEANWHILE[change](fast, patch)
        fast.result(OK)
    await turns()
    [(left, correlation)] = fast.client.left
    assert await answer_of(left) == [{"jsonrpc": "2.0", "id": "x-1", "result": OK}] and not fast.client.answers
    assert correlation == call.correlation == fast.ended[0].correlation
    assert fast.live.busy == len(fast.conversation.calls) == 0 and len(fast.counted) == len(fast.ended) == 1
    assert ("cannot be given" in caplog.text) is (change == "the connection is broken"), "no fault of the gateway"


async def test_the_exchange_has_the_number_the_time_and_the_ids_of_the_call(fast: Fast) -> None:
    call = fast.begin("x-2")
    context = fast.frames[0]["params"]["_meta"]["io.github.mcp-session-gateway/context"]
    assert fast.live.busy == 1
    [exchange] = fast.conversation.calls
    assert fast.live.in_flight_as("x-2") == [exchange] and fast.live.busy == 1
    assert (exchange.number, exchange.client_id, exchange.live) == (call.number, "x-2", fast.live)
    assert exchange.correlation == call.correlation == context["correlation_id"]
    assert exchange.began == exchange.written_at == exchange.deadline_from == call.began
    assert exchange.tool == "recall" and exchange.is_listed
    call.fall_back()  # which does nothing
    fast.result(OK)
    [(left, _)] = fast.client.left
    assert len(await answer_of(left)) == 1 and fast.live.busy == 0 and not fast.client.answers


@pytest.mark.parametrize("how", ["at once", "before the store was asked", "in another turn", "to a slow reader"])
async def test_progress_goes_to_the_token_of_its_own_call(
    calls: Calls, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = msgspec.json.decode(calls.request(1, {}).params.get("_meta", b"{}"))
    with_token = calls.like(_meta=msgspec.Raw(encode(meta | {"progressToken": "t-1"})))
    fast = await Fast.of(with_token, monkeypatch)
    fast.client.takes = how != "to a slow reader"
    if (events := fast.path.events) is not None:
        await events.make_ready(fast.live.session.id, 2)
    if events is not None and how == "before the store was asked":
        events._numbers.clear()
    assert fast.client.begin(fast.path, meta=encode(meta | {"progressToken": "t-2"})) is not None
    assert fast.frames[0]["params"]["_meta"]["progressToken"] == fast.number
    fast.message({"method": "notifications/progress", "params": {"progressToken": fast.number, "progress": 1}})
    if how == "in another turn":
        await turns()
    fast.result(OK)
    await turns()
    if how == "at once" or (events is None and how == "before the store was asked"):
        [((progress, answer), ids)] = fast.client.streams
        assert not fast.client.left and all((each is None) is (events is None) for each in ids)
    else:
        [(left, _)] = fast.client.left
        progress, answer = await answer_of(left)
    assert progress["params"] == {"progressToken": "t-2", "progress": 1} and answer["result"] == OK
    assert fast.live.busy == len(fast.conversation.calls) == 0 and len(fast.counted) == len(fast.ended) == 1


async def test_a_call_without_an_answer_leaves_when_it_is_looked_at_a_second_later(
    fast: Fast, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = fast.begin()
    assert list(fast.conversation.calls.slow(call.began + 0.9)) == [] and not fast.client.left
    [exchange] = fast.conversation.calls.slow(call.began + 1.1)
    assert isinstance(exchange, Exchange) and len(fast.client.left) == 1
    fast.result(OK)
    await answer_of(fast.client.left.pop()[0])
    monkeypatch.setattr("gateway.relay.fast_path._USUAL_S", 0.0)
    fast.begin()
    await until(lambda: fast.client.left)  # by the timer of its conversation
    fast.result(OK)
    await answer_of(fast.client.left[0][0])


@pytest.mark.parametrize("dies", [True, False], ids=["it dies", "it is stopped"])
async def test_the_end_of_its_server_is_told(fast: Fast, dies: bool) -> None:
    fast.begin()
    link = fast.conversation.link
    assert link is not None and link.pid is not None
    if dies:
        os.kill(link.pid, signal.SIGKILL)
    else:
        await fast.live.stop_servers()
    await until(lambda: fast.client.left)
    [(left, _)] = fast.client.left
    [answer] = await answer_of(left)
    assert answer["error"]["code"] == OUTCOME_UNKNOWN
    assert fast.client.begin(fast.path) is None and fast.path.is_over
    assert fast.live.busy == len(fast.conversation.calls) == 0 and len(fast.counted) == len(fast.ended) == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_end_of_its_session_is_told(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with warm(era, monkeypatch) as calls:
        fast = await Fast.of(calls, monkeypatch)
        fast.begin()
        ending = asyncio.create_task(fast.live.close())
        await until(lambda: fast.client.left)
        [(left, _)] = fast.client.left
        [answer] = await answer_of(left)
        assert answer["error"]["code"] == CANCELLED and fast.live.busy == len(fast.conversation.calls) == 0
        await ending
        before = fast.state()
        assert fast.client.begin(fast.path) is None and fast.path.is_over and fast.state() == before


async def test_a_call_whose_server_has_forgotten_the_session_is_sent_again(
    fast: Fast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgotten(links: LinkLifecycle, link: Link, forget: Any = LinkLifecycle.forgotten) -> None:
        links.resources.close()  # those of a process
        forget(links, link)

    monkeypatch.setattr(StdioLink, "may_forget", True)  # as a server behind a URL may
    monkeypatch.setattr(LinkLifecycle, "forgotten", forgotten)
    fast.begin()
    link = fast.conversation.link
    assert link is not None
    fast.conversation.unsent(link, fast.number, "the server has forgotten the session")
    [(left, _)] = fast.client.left
    [answer] = await answer_of(left)
    assert answer["id"] == "x-1" and "result" in answer and len(fast.frames) == 1, "over another link"
