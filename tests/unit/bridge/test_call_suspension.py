"""The questions of a legacy server to modern clients: under which call each is asked, and that each has one answer."""

import asyncio
from time import monotonic
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.bridge import call_suspension, question_rounds
from gateway.bridge.call_suspension import answer_suspended, ask_modern
from gateway.bridge.modern_server import MAX_ROUNDS, CallRounds, ModernServerBridge
from gateway.bridge.modern_server_subscriptions import GatewaySubscription
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import CallsInFlight
from gateway.calls.lifecycles import ExchangeState
from gateway.calls.live_session import LiveSession
from gateway.calls.questions_to_client import MAX_QUESTIONS_OF_CALL, give_up
from gateway.errors import CALL_TIMED_OUT, CANCELLED, OUTCOME_UNKNOWN, UNREAD, UPSTREAM_UNAVAILABLE
from gateway.protocol.client_capabilities import declaration_in_meta
from session_store import ClientFacts, MemoryEventLog, StoreUnavailable
from tests.requirements import requirement
from tests.support.fake_upstream import FakeUpstream, a_call, a_live, answer_of
from tests.unit.calls import parts
from tests.unit.calls.parts import until
from transports.jsonrpc import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Message, encode, parse
from transports.upstream_port import UpstreamUnavailable

pytestmark = requirement("spec.unnamed-question")

META = b'{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{}}}'
ACCEPT = {"action": "accept", "content": {"name": "Ada"}}
CANCEL = {"action": "cancel"}


class Server(parts.Server):
    """A conversation with a server on stdio, which asks a modern client's session during its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.live = a_live(None, ask_modern, era="modern")
        self.calls = CallsInFlight()
        self._last = 0
        self.links = SimpleNamespace(start_idle_timer=lambda: None)

    @property
    def given(self) -> list[Any]:
        return [answer for _, answer in self.answers]

    @property
    def refused(self) -> list[int]:
        return [code for _, code in self.refusals]

    def call(self, live: LiveSession | None = None) -> Exchange:
        self._last += 1
        exchange = a_call(live or self.live)
        exchange.declaration = declaration_in_meta(META)
        exchange.sent_as(self.conversation, self._last, None, 1.0)
        self.calls.add_sent(exchange)
        return exchange

    def asks(self, method: str = "elicitation/create", call: Exchange | None = None, **more: Any) -> None:
        """Ask. `call` is the one that the question names. `more`: further params."""
        params = {"message": "Your name?", "requestedSchema": {"type": "object", "properties": {}}} | more
        message = parse(encode({"jsonrpc": "2.0", "id": "theirs", "method": method, "params": params}))
        self.calls.add_question(b'"theirs"', self.live)
        ask_modern(self.live, self.conversation, message, call)

    def cancel(self, exchange: Exchange, reason: str, code: int = CANCELLED) -> None:
        Conversation.end(self.conversation, exchange)
        exchange.fail(code, reason)

    def completes(self, exchange: Exchange) -> None:
        assert self.calls.pop(exchange.number) is exchange
        exchange.finish(parse(b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_UNCLEAR_FOR_S", "_GATHER_S"):
        monkeypatch.setattr(call_suspension, name, 0.001)


def shown(exchange: Exchange) -> bool:
    return exchange.is_suspended and exchange.suspended is not None and bool(exchange.suspended.questions)


def answer(exchange: Exchange, response: Any) -> None:
    assert exchange.suspended is not None
    raw = msgspec.Raw(encode(response))
    answer_suspended(exchange, dict.fromkeys(exchange.suspended.questions, raw))


async def asked_during_two(method: str = "elicitation/create") -> tuple[Server, Exchange, Exchange]:
    """Two calls. The server has asked during the second, and the first has the question."""
    server = Server()
    first, second = server.call(), server.call()
    server.asks(method)
    await until(lambda: shown(first))
    assert not shown(second)
    return server, first, second


async def moved(method: str = "elicitation/create") -> tuple[Server, Exchange, Exchange]:
    """Two calls. The first, under which the server's question was asked, has ended, and the second has the question."""
    server, first, second = await asked_during_two(method)
    server.completes(first)
    await until(lambda: shown(second))
    return server, first, second


@pytest.mark.parametrize("end", ["completes", "is cancelled"])
async def test_a_question_that_names_no_call_moves_to_the_next_call_when_its_call_ends(end: str) -> None:
    server, first, second = await asked_during_two()
    server.completes(first) if end == "completes" else server.cancel(first, "enough")
    await until(lambda: shown(second))
    assert not server.given and second.suspended is not None and len(second.suspended.questions) == 1
    answer(second, ACCEPT)
    assert server.given == [ACCEPT] and not server.refused and second.state is ExchangeState.SENT


async def test_the_first_answer_to_a_question_counts_under_whichever_call_it_comes() -> None:
    server, first, second = await moved()
    answer(first, ACCEPT)  # the client was on its way with it
    answer(second, {"action": "decline"})
    give_up(first)
    assert server.given == [ACCEPT] and not server.refused


@pytest.mark.parametrize(
    ("method", "answers", "refused"),
    [("elicitation/create", [CANCEL], []), ("sampling/createMessage", [], [INTERNAL_ERROR])],
)
async def test_the_server_gets_an_answer_when_no_call_is_left_to_ask_under(
    method: str, answers: list[Any], refused: list[int]
) -> None:
    server, _, second = await moved(method)
    later = server.call()
    server.completes(second)
    assert (server.given, server.refused) == (answers, refused)
    assert later.suspended is None, "a call that was sent later has not asked"


async def test_a_question_that_nobody_answers_is_given_up_under_the_call_that_has_it() -> None:
    server, _, second = await moved()
    give_up(second)
    assert (await answer_of(second))["error"]["code"] == CALL_TIMED_OUT and second.state is ExchangeState.FAILED
    assert server.given == [CANCEL]


async def test_a_question_of_a_shared_process_reaches_no_session_whose_call_came_later() -> None:
    server = Server()
    calls = [server.call() for _ in range(2)]
    server.asks()
    for call in calls:
        server.completes(call)
    stranger = server.call(Server().live)
    await until(lambda: bool(server.refused))
    assert server.refused == [METHOD_NOT_FOUND] and stranger.suspended is None and not server.live.suspended


async def test_a_question_that_its_server_cancels_while_it_waits_for_other_calls_is_not_asked() -> None:
    server = Server()
    calls = [server.call() for _ in range(2)]
    server.asks()
    server.calls.remove_question(b'"theirs"')
    await asyncio.sleep(0)
    held = server.live.questions._unclear
    await until(lambda: not held)
    assert not server.refused and not any(call.suspended for call in calls)


@requirement("wall.memory")
async def test_so_many_questions_wait_for_other_calls() -> None:
    server = Server()
    for _ in range(2):
        server.call()
    for _ in range(MAX_QUESTIONS_OF_CALL + 1):
        server.asks()
    assert server.refused == [UNREAD]


async def test_a_question_of_a_call_that_may_not_ask_reaches_no_other_session() -> None:
    server = Server()
    mine, stranger = server.call(), server.call(Server().live)
    mine.method = "completion/complete"
    server.asks(call=mine)
    assert server.refused == [METHOD_NOT_FOUND] and stranger.suspended is None


async def test_a_question_that_names_its_call_ends_with_it() -> None:
    server = Server()
    first, second = server.call(), server.call()
    server.asks(call=first)
    await until(lambda: shown(first))
    server.completes(first)
    assert server.given == [CANCEL] and second.suspended is None


@requirement("spec.letter")
@pytest.mark.parametrize(
    ("method", "more", "code"),
    [
        ("roots/list", {}, METHOD_NOT_FOUND),
        ("elicitation/create", {"mode": "url"}, INVALID_PARAMS),
        ("sampling/createMessage", {"tools": []}, INVALID_PARAMS),
    ],
)
async def test_a_server_is_refused_what_the_client_has_not_declared(method: str, more: Any, code: int) -> None:
    server = Server()
    call = server.call()
    server.asks(method, **more)
    assert server.refused == [code] and call.suspended is None


INPUT_REQUIRED = {"resultType": "input_required", "requestState": "1"}


async def sent_to_modern(live: LiveSession | None = None, **more: Any) -> tuple[FakeUpstream, Exchange]:
    """A call that a modern server has got."""
    upstream, exchange = FakeUpstream(), a_call(live)
    exchange.use_bridge(ModernServerBridge(upstream.conversation, {}, {}, **more))
    await upstream.conversation.start(exchange, {}, {})
    return upstream, exchange


async def test_a_round_that_cannot_be_sent_ends_the_call() -> None:
    upstream, exchange = await sent_to_modern()
    upstream.links[0].answer(INPUT_REQUIRED)
    upstream.error = StoreUnavailable("redis is gone")
    await upstream.links[0].close()
    assert (await answer_of(exchange))["error"]["code"] == OUTCOME_UNKNOWN, "its first round had begun"
    assert exchange.is_over and not upstream.conversation.has_calls


@requirement("rep.no-retry")
@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_call_whose_headers_are_refused_in_a_later_round_is_not_said_to_be_unsent(is_begun: bool) -> None:
    async def list_tools() -> None:
        raise UpstreamUnavailable("it lists no tools")

    upstream, exchange = await sent_to_modern(list_tools=list_tools)
    link = upstream.links[0]
    if is_begun:
        link.was_sent.clear()
        link.answer(INPUT_REQUIRED)
        await asyncio.wait_for(link.was_sent.wait(), 60)
    error = msgspec.Raw(encode({"code": HEADER_MISMATCH, "message": "other headers"}))
    upstream.conversation.message(Message(jsonrpc="2.0", id=exchange.number, error=error))
    code = (await answer_of(exchange))["error"]["code"]
    assert code == (OUTCOME_UNKNOWN if is_begun else UPSTREAM_UNAVAILABLE)


@requirement("rep.no-retry")
async def test_a_round_whose_headers_are_refused_is_sent_again_and_not_the_call_from_its_beginning() -> None:
    async def list_tools() -> None:
        """Say nothing new."""

    upstream, exchange = await sent_to_modern(list_tools=list_tools)
    link = upstream.links[0]
    for answer in (INPUT_REQUIRED, {"code": HEADER_MISMATCH, "message": "other headers"}):
        link.was_sent.clear()
        if "code" in answer:
            refused = Message(jsonrpc="2.0", id=exchange.number, error=msgspec.Raw(encode(answer)))
            upstream.conversation.message(refused)
        else:
            link.answer(answer)
        await asyncio.wait_for(link.was_sent.wait(), 60)
    assert [message.get("params", {}).get("requestState") for message in link.sent] == [None, "1", "1"]


async def test_a_call_that_is_repeated_without_questions_is_bounded_by_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [monotonic()]
    monkeypatch.setattr(question_rounds, "monotonic", lambda: now[0])
    monkeypatch.setattr(CallRounds, "poll_s", 0.0)
    upstream, exchange = await sent_to_modern()
    link = upstream.links[0]
    for _ in range(MAX_ROUNDS + 5):
        link.was_sent.clear()
        link.answer(INPUT_REQUIRED)
        await asyncio.wait_for(link.was_sent.wait(), 60)
    assert not exchange.is_over
    now[0] += upstream.conversation.deadlines.call_s + 1
    link.answer(INPUT_REQUIRED)
    assert (await answer_of(exchange))["error"]["code"] == CALL_TIMED_OUT


@requirement("spec.letter")
@pytest.mark.parametrize("mode", ["form", "url"])
async def test_a_legacy_client_is_asked_what_it_has_declared_by_a_modern_server_too(mode: str) -> None:
    live = a_live(MemoryEventLog(), client=ClientFacts(initialize_params=b'{"capabilities":{"elicitation":{}}}'))
    upstream, exchange = await sent_to_modern(live)
    question = {"method": "elicitation/create", "params": {"mode": mode, "message": "?"}}
    upstream.links[0].answer(INPUT_REQUIRED | {"inputRequests": {"q": question}})
    told = await answer_of(exchange)
    assert told.get("method") == ("elicitation/create" if mode == "form" else None)
    if mode == "url":
        assert told["error"]["code"] == INTERNAL_ERROR and "has not declared" in told["error"]["message"]


@requirement("spec.complete")
def test_no_request_of_a_client_cancels_a_subscription_of_the_gateway() -> None:
    live = a_live()
    one, other = (GatewaySubscription(live, lambda: None).client_id for _ in range(2))
    assert isinstance(one, str) and one != other, "no count, and no text that stays the same"
