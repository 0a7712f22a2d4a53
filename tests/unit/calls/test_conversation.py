"""The calls of one conversation: each has one end, whatever becomes of its link."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest
from msgspec.structs import replace

from gateway.calls import in_flight
from gateway.calls.client_request import Call
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent, ExchangeState
from gateway.calls.suspended_call import InputRequest, rewritten_ids
from gateway.context.process_secret_files import SecretFiles
from gateway.context.resources_for_links import LinkResources
from gateway.errors import (
    CANCELLED,
    OUTCOME_UNKNOWN,
    TOO_OFTEN,
    UPSTREAM_UNAVAILABLE,
    ConsentRefusal,
    StartRefused,
    too_many,
)
from gateway.observability.request_outcomes import Outcome
from gateway.protocol.client_capabilities import declaration_in_meta
from gateway.protocol.handshake import HandshakeRefused
from session_store import StoreUnavailable
from session_store.testing import ALICE
from tests.requirements import requirement
from tests.support.fake_upstream import FakeUpstream, a_call, a_live, answer_of
from tests.support.too_deep import TOO_DEEP
from tests.unit.calls.parts import turns, until
from tests.unit.upstreams.parts import returning
from transports.era import Era
from transports.jsonrpc import HEADER_MISMATCH, INVALID_PARAMS, Message, Object, encode, parse
from transports.reply_queue import Frame
from transports.upstream_port import LinkClosed, LinkFull, UpstreamUnavailable

ASKABLE = b'{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"url":{}}}}'


async def sent() -> tuple[FakeUpstream, Exchange]:
    """A call that its server has."""
    upstream, exchange = FakeUpstream(), a_call()
    await upstream.conversation.start(exchange, {}, {})
    return upstream, exchange


@requirement("ops.figures")
async def test_a_start_is_counted_when_the_server_answers_or_ends_before_it_does() -> None:
    upstream, _ = await sent()
    assert upstream.starts == [], "a link without a handshake is open at once"
    upstream.links[0].answer({})
    upstream.conversation.closed("it exited")
    assert upstream.starts == ["answered"]
    upstream, _ = await sent()
    upstream.conversation.closed("it exited")
    assert upstream.starts == ["failed"]
    unused = FakeUpstream()
    await unused.conversation.ready()
    await unused.conversation.close()
    assert unused.starts == [], "nobody has asked it anything"


@requirement("spec.cancelled")
async def test_a_question_that_is_answered_or_refused_is_not_asked_any_more() -> None:
    conversation, live = FakeUpstream().conversation, a_live()
    for server_id in (b"1", b"2"):
        conversation.calls.add_question(server_id, live)
    conversation.refuse(b"2", INVALID_PARAMS, "no")
    conversation.answer(b"3", parse(b'{"jsonrpc":"2.0","id":3,"result":{}}'))  # a ping: the gateway itself answers it
    assert not conversation.was_used, "the server has learnt nothing of its client"
    conversation.answer(b"1", parse(b'{"jsonrpc":"2.0","id":1,"result":{}}'))
    assert conversation.was_used
    assert [conversation.calls.remove_question(b"%d" % number) for number in (1, 2)] == [None, None]


@requirement("spec.cancelled")
async def test_a_request_of_the_gateway_that_nobody_waits_for_is_cancelled_at_the_server() -> None:
    """One over HTTP would keep its connection for as long as the server likes."""
    upstream, _ = await sent()
    given_up, answered = (upstream.conversation.future_answer("tools/list", None) for _ in range(2))
    given_up.cancel()
    upstream.links[0].answer({})
    await turns()
    assert answered.done()
    cancelled = [message for message in upstream.links[0].sent if message["method"] == "notifications/cancelled"]
    assert [message["params"]["requestId"] for message in cancelled] == [2]
    failed, other = (upstream.conversation.future_answer("tools/list", None) for _ in range(2))
    upstream.conversation.refused(4, "no")
    assert isinstance(failed.exception(), UpstreamUnavailable) and not other.done()
    upstream.conversation.closed("it exited")
    assert isinstance(other.exception(), LinkClosed)


@requirement("cache.servers", "wall.return")
async def test_a_process_that_got_a_notification_of_an_extension_speaks_for_its_session_alone() -> None:
    conversation = FakeUpstream().conversation
    await conversation.ready()
    used = []
    for method in ("notifications/roots/list_changed", "notifications/acme/changed"):
        conversation.notify(method, None)
        used.append(conversation.was_used)
    assert used == [False, True]


@requirement("spec.cancelled")
async def test_a_request_of_the_gateway_whose_answer_nobody_needs_is_given_up_late(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that answers none would keep a connection for each."""
    upstream, _ = await sent()
    upstream.conversation.request("tasks/cancel", b"{}")
    upstream.conversation.refused(2, "no")
    await until(lambda: not upstream.conversation._own)
    monkeypatch.setattr(in_flight, "_UNNEEDED_S", 0.0)
    upstream.conversation.request("logging/setLevel", b"{}")
    await until(lambda: not upstream.conversation._own)
    methods = ["tools/call", "tasks/cancel", "logging/setLevel", "notifications/cancelled"]
    assert [message["method"] for message in upstream.links[0].sent] == methods
    assert upstream.links[0].sent[-1]["params"]["requestId"] == 3 and not caplog.records


@requirement("spec.cancelled")
async def test_the_end_of_a_subscription_waits_for_its_turn_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link sends thousands a few at a time, and bounds their time. Given up here, those that wait were never sent."""
    monkeypatch.setattr(in_flight, "_UNNEEDED_S", 0.0)
    upstream, _ = await sent()
    for _ in range(3):
        upstream.conversation.request("resources/unsubscribe", b"{}")
    upstream.conversation.request("tasks/cancel", b"{}")
    await until(lambda: not upstream.conversation._own)
    cancelled = [message["params"]["requestId"] for message in upstream.links[0].sent if "id" not in message]
    assert cancelled == [5], "that of the task"


QUOTA = too_many("server processes", 3, anonymous=False)


async def test_a_call_that_may_not_be_sent_again_or_is_no_longer_in_flight_is_answered() -> None:
    upstream, exchange = await sent()
    upstream.error = QUOTA
    upstream.conversation.unsent(upstream.links[0], exchange.number, "the server has forgotten the session")
    error = (await answer_of(exchange))["error"]
    assert error["code"] == TOO_OFTEN and error["data"] == QUOTA.data and "retryAfter" in error["data"]
    assert not upstream.conversation.has_calls
    upstream, exchange = await sent()
    upstream.conversation.calls.end(exchange)
    exchange.cancel("the session has ended")
    assert (await answer_of(exchange))["error"]["code"] == CANCELLED
    assert [message["method"] for message in upstream.links[0].sent] == ["tools/call"]


@requirement("cred.consent")
@pytest.mark.parametrize(
    ("params", "is_asked"), [({}, True), ({"requestState": msgspec.Raw(b'"of an earlier round"')}, False)]
)
async def test_a_call_that_goes_on_is_not_begun_anew_if_consent_is_missing_when_it_is_sent_again(
    params: Object, is_asked: bool
) -> None:
    """A client that is asked repeats its call from the beginning."""
    upstream = FakeUpstream()
    exchange = Exchange(method="tools/call", client_id=1, live=None, declaration=declaration_in_meta(ASKABLE))
    await upstream.conversation.start(exchange, params, {})
    upstream.error = StartRefused(ConsentRefusal("files", "https://gateway.example/oauth/connect/x"))
    upstream.conversation.unsent(upstream.links[0], exchange.number, "the server has forgotten the session")
    answer = await answer_of(exchange)
    assert ("inputRequests" in answer.get("result", {})) == is_asked and ("error" in answer) != is_asked


@requirement("rep.no-retry")
@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((status, UPSTREAM_UNAVAILABLE) for status in (0, 307, 308, 400, 401, 404, 429, 501, 503, 505)),
        *((status, OUTCOME_UNKNOWN) for status in (201, 204, 302, 303, 500, 502, 504, 520, 999)),
    ],
)
async def test_only_a_status_that_refuses_a_call_says_that_it_was_not_executed(status: int, code: int) -> None:
    upstream, exchange = await sent()
    upstream.conversation.refused(exchange.number, f"server 'fake' answered {status}", status)
    assert (await answer_of(exchange))["error"]["code"] == code


@requirement("proc.isolated")
@pytest.mark.parametrize("session", ["", "s"])
async def test_a_call_that_finds_the_input_of_a_shared_server_full_ends_no_other_call(session: str) -> None:
    """Who sends large calls to a busy server would end those of all other sessions, as often as they like."""
    upstream, other = await sent()
    upstream.session, link = session, upstream.links[0]
    link.refusal = LinkFull("it does not read its input")
    try:
        await upstream.conversation.start(a_call(), {}, {})
    except UpstreamUnavailable as error:
        assert not session and "does not read its input" in str(error)
    assert len(upstream.links) == (2 if session else 1), "a process of one session is replaced"
    if not session:
        link.refusal = None
        link.answer({})
        assert "result" in await answer_of(other)


@requirement("rep.no-retry")
@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("way", ["unreached", "refused", "forgotten", "forgotten, and a new session is refused"])
async def test_a_call_that_its_server_has_begun_is_not_said_to_be_unsent(way: str, is_begun: bool) -> None:
    """The server has asked for input, or has created a task: repeated, the call might have its effect twice."""
    upstream, exchange = await sent()
    conversation, link = upstream.conversation, upstream.links[0]
    exchange.use_bridge(Mock(answer_for_client=Mock(return_value=None)))
    first: Any = {"result": msgspec.Raw(b"{}")} if is_begun else {"error": msgspec.Raw(b'{"code":-32020,"message":""}')}
    conversation.message(Message(jsonrpc="2.0", id=exchange.number, **first))
    conversation.move_to_waiting(exchange, ExchangeEvent.REQUEUE)
    await conversation.start(exchange, {}, {}, again=way == "forgotten")
    if way.startswith("forgotten"):
        upstream.error = UpstreamUnavailable("it does not start")
        conversation.unsent(link, exchange.number, "the server has forgotten the session")
    else:
        conversation.refused(exchange.number, way, 0 if way == "unreached" else 503)
    error = (await answer_of(exchange))["error"]
    assert error["code"] == (OUTCOME_UNKNOWN if is_begun else UPSTREAM_UNAVAILABLE)


async def test_an_answer_that_is_too_deep_to_be_searched_for_reserved_keys_ends_its_call() -> None:
    upstream, exchange = await sent()
    result = msgspec.Raw(b'{"_meta":{"io.github.mcp-session-gateway/x":1},"a":' + TOO_DEEP + b"}")
    upstream.conversation.message(Message(jsonrpc="2.0", id=exchange.number, result=result))
    assert (await answer_of(exchange))["error"]["code"] == OUTCOME_UNKNOWN


@pytest.mark.parametrize(("code", "is_old"), [(HEADER_MISMATCH, True), (INVALID_PARAMS, False)])
async def test_a_call_that_is_refused_for_its_headers_makes_the_list_of_tools_old(code: int, is_old: bool) -> None:
    upstream, exchange = await sent()
    error = msgspec.Raw(encode({"code": code, "message": "no"}))
    upstream.conversation.message(Message(jsonrpc="2.0", id=exchange.number, error=error))
    assert (await answer_of(exchange))["error"]["code"] == code
    assert upstream.refused_headers == is_old


@requirement("proc.last-words")
@pytest.mark.parametrize(("pid", "exits"), [(7, True), (7, False), (None, False)], ids=["exits", "stays", "URL"])
async def test_a_process_whose_input_is_found_closed_has_ended_as_it_says_a_moment_later(
    pid: int | None, exits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exits:
        monkeypatch.setattr("gateway.calls.in_flight._EXIT_S", 0.01)
    upstream = FakeUpstream()
    await upstream.conversation.ready()
    [link] = upstream.links
    link.pid, link.refusal = pid, LinkClosed("it has closed its input")
    asked = asyncio.create_task(upstream.conversation.ask("ping", None))
    await asyncio.sleep(0)
    assert asked.done() == (pid is None), "nothing else will be heard of a URL"
    if exits:
        upstream.conversation.closed("it exited with code 3")
    with pytest.raises(LinkClosed, match="exited with code 3" if exits else "closed its input"):
        await asked
    await asyncio.sleep(0)
    assert upstream.conversation.is_idle


@requirement("proc.last-words")
async def test_the_end_of_a_server_is_logged_once_more_only_for_its_calls(caplog: pytest.LogCaptureFixture) -> None:
    """The transport has logged it, and whoever waits for what the gateway itself asked says what came of that."""
    upstream, exchange = FakeUpstream(), a_call()
    await upstream.conversation.ready()
    asked = asyncio.create_task(upstream.conversation.ask("ping", None))
    await asyncio.sleep(0)
    upstream.conversation.closed("it exited with code 3")
    with pytest.raises(LinkClosed, match="exited with code 3"):
        await asked
    assert caplog.messages == []
    await upstream.conversation.start(exchange, {}, {})
    upstream.conversation.closed("it exited with code 3")
    assert (await answer_of(exchange))["error"]["code"] == OUTCOME_UNKNOWN
    assert [message for message in caplog.messages if "calls in flight: 1" in message] == caplog.messages[-1:]


async def test_a_conversation_that_closes_tells_which_calls_the_server_had() -> None:
    (upstream, in_flight), waiting = await sent(), a_call()
    waiting.queue_at(upstream.conversation)
    upstream.conversation.calls.add_waiting(waiting)
    await upstream.conversation.close("the session's context has changed")
    errors = [(await answer_of(exchange))["error"] for exchange in (in_flight, waiting)]
    assert [error["code"] for error in errors] == [OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE]
    assert all("context has changed" in error["message"] for error in errors)


async def test_a_call_that_moves_to_a_child_session_is_in_flight_there_until_it_is_done() -> None:
    child, exchange = a_live(), a_call()
    exchange.move_to(child)
    assert child.exchanges == {exchange} and child.is_busy
    exchange.done()
    assert not child.exchanges and not child.is_busy


async def test_a_suspended_call_that_is_cancelled_answers_its_server_first() -> None:
    upstream, exchange = await sent()
    question = InputRequest(upstream.conversation, b"5", "elicitation/create", {"message": msgspec.Raw(b'"?"')})
    suspended = exchange.suspendable()
    suspended.add(question)
    exchange.suspend({})
    upstream.conversation.cancel(exchange, "the session has ended")
    _, answer, cancelled = upstream.links[0].sent
    assert answer["id"] == 5 and answer["result"] == {"action": "cancel"}
    assert cancelled["method"] == "notifications/cancelled" and suspended.size == 0 and exchange.is_over


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (QUOTA, OUTCOME_UNKNOWN, "it may have taken effect"),
        (StoreUnavailable("redis is gone"), OUTCOME_UNKNOWN, "it may have taken effect"),
        (StartRefused(QUOTA), OUTCOME_UNKNOWN, "it may have taken effect"),
        (UpstreamUnavailable("it does not start"), OUTCOME_UNKNOWN, "it does not start"),
        (LinkClosed("it exited"), OUTCOME_UNKNOWN, "it exited"),
        (
            HandshakeRefused(msgspec.Raw(encode({"code": -1, "message": "no"}))),
            OUTCOME_UNKNOWN,
            "it may have taken effect",
        ),
        (RuntimeError("a secret detail"), OUTCOME_UNKNOWN, "the call could not be sent to server 'fake'"),
    ],
)
async def test_the_client_gets_an_answer_that_tells_the_reason(error: Exception, code: int, said: str) -> None:
    exchange = a_call()
    FakeUpstream().conversation.fail_start(exchange, error, OUTCOME_UNKNOWN)
    answer = (await answer_of(exchange))["error"]
    assert answer["code"] == code and said in answer["message"] and "secret" not in answer["message"]
    assert exchange.is_over


async def test_a_call_of_which_its_server_got_nothing_ends_with_the_error_by_which_it_refuses_the_handshake() -> None:
    exchange, error = a_call(), HandshakeRefused(msgspec.Raw(encode({"code": -1, "message": "no"})))
    FakeUpstream().conversation.fail_start(exchange, error, UPSTREAM_UNAVAILABLE)
    assert (await answer_of(exchange))["error"] == {"code": -1, "message": "no"}


def test_other_params_make_another_call_of_the_same_exchange_and_leave_the_first_as_it_is() -> None:
    params, meta = {"name": msgspec.Raw(b'"a"')}, {"traceparent": msgspec.Raw(b'"t"')}
    exchange = a_call()
    first = Call(exchange, Era.MODERN, params, meta, "c", lambda *_: None, "files", ALICE, {"mcp-name": "a"})
    other: Object = {"name": msgspec.Raw(b'"b"')}
    assert first.with_params(other) == replace(first, params=other) != first
    assert first.with_params(params) is first and first.params is params


# -- what an exchange does on its way


S, E = ExchangeState, ExchangeEvent
RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "a\nb"}]}}
ERROR = {"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "m"}}
LOG = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": 1}}


def progress(token: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 4}}


def message_of(frame: Frame | None) -> Any:
    return None if frame is None else json.loads(frame.data)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda call: call.finish_translated(parse(encode(RESULT))), S.ANSWERED),
        (lambda call: call.finish_translated(parse(encode(ERROR))), S.ANSWERED),
        (lambda call: call.fail(OUTCOME_UNKNOWN, "it is gone"), S.FAILED),
        (lambda call: call.fail(CANCELLED, "the client left"), S.CANCELLED),
        (lambda call: call.abandon(), S.ABANDONED),
    ],
)
def test_the_first_end_counts(end: Callable[[Exchange], None], state: ExchangeState) -> None:
    call, outcomes = a_call(), list[Outcome]()
    call.watch(lambda _, outcome, __: outcomes.append(outcome))
    call.step(E.SEND)
    end(call)
    assert call.is_over and call.state is state
    frames = 0 if state is S.ABANDONED else 1
    assert len(outcomes) == frames
    call.fail(OUTCOME_UNKNOWN, "once more")
    call.finish_translated(parse(encode(RESULT)))
    assert call.state is state and len(outcomes) == frames


def test_a_call_waits_for_its_client_and_releases_what_it_holds_at_its_end() -> None:
    call, released = a_call(), list[str]()
    call.replay = {"a": "1", "b": "2"}
    assert (call.take_replay("a"), call.take_replay("a"), call.take_replay("b")) == ("1", None, "2"), "each once"
    for name in ("first", "last"):
        call.when_done(lambda name=name: released.append(name))  # type: ignore[misc]  # bound in this round
    call.step(E.SEND)
    first = call.replies
    call.suspendable()
    call.suspend({})
    assert call.replies is not first and first.is_closed
    for _ in range(2):
        call.client_answered()
        assert call.state is S.SENT
    call.suspend({})
    assert call.is_suspended and not released
    call.fail(OUTCOME_UNKNOWN, "the server is gone")
    for _ in range(2):
        call.done()
    assert released == ["last", "first"] and not call.is_suspended
    call.when_done(lambda: released.append("again"))
    call.done()
    assert released[2:] == ["again"], "after the end of an earlier use"


def test_a_call_has_its_number_as_progress_token_at_the_server() -> None:
    call = a_call()
    meta: Object = {"progressToken": msgspec.Raw(b'"theirs"'), "x": msgspec.Raw(b"1")}
    frame = call.frame(5, {"name": msgspec.Raw(b'"t"')}, meta)
    sent = msgspec.json.decode(frame)
    assert (sent["id"], sent["method"]) == (5, "tools/call")
    assert sent["params"] == {"name": "t", "_meta": {"progressToken": 5, "x": 1}}
    assert call.progress_token is not None and bytes(call.progress_token) == b'"theirs"'
    plain = a_call()
    assert msgspec.json.decode(plain.frame(1, {}, {})) == {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    assert plain.progress_token is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RESULT, RESULT | {"id": "two"}),
        (ERROR, ERROR | {"id": "two"}),
        (progress(1), progress(2)),
        (LOG, LOG),
    ],
)
def test_a_frame_names_the_later_request(before: Any, after: Any) -> None:
    frame = Frame(encode(before), final="id" in before, error_code=-1 if "error" in before else None)
    changed = rewritten_ids("two", msgspec.Raw(b"2"))(frame)
    assert changed is not None and message_of(changed) == after
    assert (changed.final, changed.error_code) == (frame.final, frame.error_code)


@requirement("spec.bridge")
async def test_a_call_that_ends_while_its_client_answers_is_answered_under_the_clients_next_request() -> None:
    """The server does not wait for its own question: progress and result come before the client's answers."""
    exchange = a_call()
    exchange.progress_token = msgspec.Raw(b"1")
    exchange.step(E.SEND)
    exchange.suspendable()
    exchange.suspend({"resultType": msgspec.Raw(b'"input_required"')})
    exchange.emit(encode(progress(1)))
    exchange.finish(parse(encode(RESULT)))
    exchange.resume(2, None, msgspec.Raw(b"2"))
    assert message_of(await exchange.replies.next()) == progress(2)
    assert message_of(await exchange.replies.next()) == RESULT | {"id": 2}
    assert await exchange.replies.next() is None
    assert rewritten_ids(2, None)(Frame(encode(progress(1)))) is None, "progress that nobody wants is left out"


class Files:
    """The files of a process, which are renewed once the test lets them be."""

    renewed = frozenset({"files"})
    known = ("a token",)

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.error: Exception | None = None
        self.is_needed: Callable[[], bool] = bool
        self.were_needed_at_the_start = False

    def renew_while(self, is_needed: Callable[[], bool]) -> None:
        self.is_needed = is_needed
        self.were_needed_at_the_start = is_needed()

    async def renew(self) -> None:
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error


@requirement("cred.refresh")
async def test_the_files_of_a_process_are_needed_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream, files = FakeUpstream(), Files()
    given: Any = LinkResources(files=cast("SecretFiles", files))
    monkeypatch.setattr(upstream, "resources", returning(given))
    files.goes_on.set()
    await upstream.conversation.ready()
    assert files.were_needed_at_the_start and not files.is_needed(), "nobody has called it yet"


@requirement("cred.refresh")
async def test_a_call_is_sent_once_the_files_of_its_process_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream, files = FakeUpstream(), Files()
    given: Any = LinkResources(files=cast("SecretFiles", files))
    monkeypatch.setattr(upstream, "resources", returning(given))
    conversation = upstream.conversation
    files.goes_on.set()
    await conversation.start(first := a_call(), {}, {})
    assert conversation.is_open and not conversation.is_open_to(None), "no call is sent without a look"
    assert conversation.links.secrets() == {"a token"} and files.is_needed()
    files.goes_on.clear()
    second, third = a_call(), a_call()
    starts = [asyncio.create_task(conversation.start(call, {}, {})) for call in (second, third)]
    await turns()
    assert len(upstream.links[0].sent) == 1 and len(conversation.calls) == 3
    conversation.cancel(third, "enough")
    files.goes_on.set()
    await asyncio.gather(*starts)
    assert [message["id"] for message in upstream.links[0].sent] == [first.number, second.number]
    files.error = UpstreamUnavailable("there is no credential")
    with pytest.raises(UpstreamUnavailable, match="no credential"):
        await conversation.start(a_call(), {}, {})
    assert len(upstream.links[0].sent) == 2 and conversation.is_open and len(conversation.calls) == 2
    for call in (first, second):
        conversation.message(Message(jsonrpc="2.0", id=call.number, result=msgspec.Raw(b"{}")))
    assert not files.is_needed()
    conversation.hold_link()
    assert files.is_needed(), "a task of the server"
    conversation.free_link()
    assert not files.is_needed()
