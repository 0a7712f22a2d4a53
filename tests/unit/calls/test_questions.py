"""What servers ask the client of a session: where it waits, how much may, and how it ends."""

from typing import Any, cast

import msgspec
import pytest

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.exchange_state import ExchangeEvent
from gateway.calls.live_session import LiveSession
from gateway.calls.questions import (
    MAX_QUESTIONS,
    MAX_QUESTIONS_OF_CALL,
    MAX_SUSPENDED,
    Questions,
    give_up,
)
from gateway.calls.suspended_call import InputRequest
from gateway.errors import CANCELLED, UNREAD
from session_store import EventLog
from session_store.testing import FakeClock, a_session
from transports.jsonrpc import Message, Object, encode, parse
from transports.reply_queue import ReplyQueue

pytestmark = pytest.mark.anyio


class Server:
    """A conversation, as questions use it."""

    name = "s"

    def __init__(self) -> None:
        self.answers: list[tuple[bytes, Any]] = []
        self.refusals: list[tuple[bytes, int]] = []
        self.cancelled: list[str] = []

    def answer(self, request_id: bytes, message: Message) -> None:
        assert isinstance(message.result, msgspec.Raw)
        self.answers.append((request_id, msgspec.json.decode(message.result)))

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        self.refusals.append((request_id, code))

    def cancel(self, exchange: Exchange, reason: str, code: int = CANCELLED) -> None:
        self.cancelled.append(reason)
        exchange.fail(code, reason)

    @property
    def conversation(self) -> Conversation:
        return cast("Conversation", self)


class Client:
    """The session's own stream."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.reads = True

    def send(self, frame: bytes) -> bool:
        if self.reads:
            self.frames.append(msgspec.json.decode(frame))
        return self.reads


def roots(server_id: object = 1, params: object = None) -> Message:
    body = {"jsonrpc": "2.0", "id": server_id, "method": "roots/list", "params": params or {}}
    return parse(encode(body))


def response(number: int, result: object) -> Message:
    return parse(encode({"jsonrpc": "2.0", "id": number, "result": result}))


def call(server: Server | None = None) -> Exchange:
    exchange = Exchange(method="tools/call", client_id=7, live=None, replies=ReplyQueue())
    if server is not None:
        exchange.sent_as(server.conversation, 1, None, 1.0)
    return exchange


def suspended(server: Server, questions: Questions, *asked: InputRequest) -> Exchange:
    exchange = call(server)
    for question in asked:
        assert questions.suspend(exchange, question)
    exchange.suspend({})
    return exchange


def elicitation(server: Server, server_id: bytes = b"1", message: str = "?") -> InputRequest:
    params: Object = {"message": msgspec.Raw(encode(message))}
    return InputRequest(server.conversation, server_id, "elicitation/create", params)


async def test_a_legacy_client_answers_by_the_gateways_own_id() -> None:
    server, client = Server(), Client()
    questions = Questions(client.send)
    questions.ask(server.conversation, roots("theirs"), None)
    assert client.frames == [{"jsonrpc": "2.0", "id": 1, "method": "roots/list", "params": {}}]
    assert not questions.answered(response(2, {}))
    assert questions.answered(response(1, {"roots": []}))
    assert not questions.answered(response(1, {"roots": []}))
    assert server.answers == [(b'"theirs"', {"roots": []})]


async def test_a_question_goes_to_the_stream_of_its_call() -> None:
    server, client = Server(), Client()
    questions, exchange = Questions(client.send), call(server)
    questions.ask(server.conversation, roots(), exchange)
    frame = await exchange.replies.next(1.0)
    assert client.frames == [] and frame is not None and b"roots/list" in frame.data


async def test_the_progress_of_a_question_finds_its_server() -> None:
    server, client = Server(), Client()
    questions = Questions(client.send)
    questions.ask(server.conversation, roots(1, {"_meta": {"progressToken": "theirs"}}), None)
    assert client.frames[0]["params"]["_meta"]["progressToken"] == 1
    assert questions.asker(1) == (server.conversation, msgspec.Raw(b'"theirs"'))
    assert questions.asker(2) is None


async def test_no_more_questions_wait_for_a_client_than_it_may_have() -> None:
    server, client = Server(), Client()
    questions = Questions(client.send)
    for number in range(MAX_QUESTIONS + 1):
        questions.ask(server.conversation, roots(number), None)
    assert len(client.frames) == MAX_QUESTIONS and server.refusals == [(b"%d" % MAX_QUESTIONS, UNREAD)]


async def test_a_client_that_does_not_read_is_not_asked() -> None:
    server, client = Server(), Client()
    questions, client.reads = Questions(client.send), False
    questions.ask(server.conversation, roots(), None)
    assert server.refusals == [(b"1", UNREAD)] and not questions.answered(response(1, {}))


async def test_a_question_that_its_server_withdraws_is_cancelled_by_the_id_that_the_client_knows() -> None:
    server, client = Server(), Client()
    questions = Questions(client.send)
    questions.ask(server.conversation, roots("theirs"), None)
    questions.withdraw(server.conversation, {"requestId": msgspec.Raw(b'"theirs"'), "reason": msgspec.Raw(b'"done"')})
    assert client.frames[1]["method"] == "notifications/cancelled"
    assert client.frames[1]["params"] == {"requestId": 1, "reason": "done"}
    assert not questions.answered(response(1, {}))


async def test_questions_of_a_link_that_is_gone_are_withdrawn_and_those_of_results_stay() -> None:
    server, other, client = Server(), Server(), Client()
    questions, exchange, answers = Questions(client.send), call(server), list[Message]()
    questions.ask(server.conversation, roots(), None)
    questions.ask(other.conversation, roots(), None)
    questions.ask_for_result(exchange, "roots/list", {}, answers.append)
    questions.closed(server.conversation)
    assert [questions.answered(response(number, {})) for number in (1, 2, 3)] == [False, True, True]
    assert len(answers) == 1 and other.answers == [(b"1", {})]


async def test_a_call_that_is_over_takes_its_questions_with_it() -> None:
    server, client = Server(), Client()
    questions, exchange, answers = Questions(client.send), call(server), list[Message]()
    questions.ask_for_result(exchange, "roots/list", {}, answers.append)
    questions.withdraw_for(exchange)
    assert not questions.answered(response(1, {})) and answers == []


async def test_a_session_that_ends_answers_every_server_that_waits() -> None:
    server, client = Server(), Client()
    questions = Questions(client.send)
    questions.ask(server.conversation, roots(), None)
    suspended(server, questions, elicitation(server))
    questions.end("the session has ended")
    assert server.refusals == [(b"1", UNREAD)] and not questions.has_suspended and not questions.suspended
    assert server.answers == [(b"1", {"action": "cancel"})]


async def test_a_modern_client_gets_the_questions_of_a_call_by_keys() -> None:
    server, questions = Server(), Questions(Client().send)
    exchange = suspended(server, questions, elicitation(server), elicitation(server, b"2", "really?"))
    held = exchange.suspended
    assert held is not None and questions.has_suspended and set(held.requests()) == {"q1", "q2"}
    turn = held.turn
    exchange.resumed()
    held.take_answers({"q2": msgspec.Raw(b'{"action":"accept"}'), "q9": msgspec.Raw(b"1")})
    assert server.answers == [(b"2", {"action": "accept"})] and held.turn == turn + 1
    assert set(held.requests()) == {"q1"} and list(held.answers.values()) == ['{"action":"accept"}']
    assert not questions.has_suspended


async def test_a_client_that_does_not_come_back_cancels_the_call() -> None:
    server, questions = Server(), Questions(Client().send)
    sampling = InputRequest(server.conversation, b"2", "sampling/createMessage", {})
    exchange = suspended(server, questions, elicitation(server), sampling)
    give_up(exchange)
    assert server.answers == [(b"1", {"action": "cancel"})] and [number for number, _ in server.refusals] == [b"2"]
    assert exchange.is_over and not questions.has_suspended


async def test_a_server_that_withdraws_a_question_gets_no_answer_to_it() -> None:
    server, questions = Server(), Questions(Client().send)
    exchange = suspended(server, questions, elicitation(server), elicitation(server, b"2"))
    questions.withdraw(server.conversation, {"requestId": msgspec.Raw(b"1")})
    assert exchange.suspended is not None and set(exchange.suspended.requests()) == {"q2"}
    questions.closed(server.conversation)
    assert exchange.suspended.requests() == {}


async def test_what_waits_for_a_modern_client_is_bounded() -> None:
    server, questions = Server(), Questions(Client().send)
    one = call(server)
    asked = [questions.suspend(one, elicitation(server)) for _ in range(MAX_QUESTIONS_OF_CALL + 1)]
    assert asked == [True] * MAX_QUESTIONS_OF_CALL + [False]
    for _ in range(MAX_SUSPENDED):
        suspended(server, questions, elicitation(server))
    assert not questions.suspend(call(server), elicitation(server))


async def test_calls_that_have_ended_are_remembered_by_name_for_a_while() -> None:
    server, questions = Server(), Questions(Client().send)
    for _ in range(MAX_SUSPENDED + 5):
        give_up(suspended(server, questions, elicitation(server)))
    suspended(server, questions, elicitation(server))
    assert len(questions.suspended) == MAX_SUSPENDED + 1 and questions.has_suspended


async def test_questions_whose_call_is_unclear_are_bounded() -> None:
    questions = Questions(Client().send)
    held = [questions.hold_unclear(10) for _ in range(MAX_QUESTIONS_OF_CALL + 1)]
    assert held == [True] * MAX_QUESTIONS_OF_CALL + [False]
    questions.release_unclear(10)
    assert questions.hold_unclear(10)


async def test_a_session_ends_the_calls_that_wait_for_its_client_on_a_shared_server_too() -> None:
    server, live = Server(), LiveSession(a_session(FakeClock()), cast("EventLog", _Events()))
    exchange = suspended(server, live.questions, elicitation(server))
    assert live.has_suspended and live.is_busy
    await live.close()
    assert exchange.is_over and server.cancelled == ["the session has ended"] and not live.is_busy


async def test_an_id_that_a_client_uses_again_hides_no_call() -> None:
    live = LiveSession(a_session(FakeClock()), cast("EventLog", _Events()))
    server, first, second = Server(), call(), call()
    for exchange in (first, second):
        exchange.sent_as(server.conversation, 1, None, 1.0)
        live.exchange_begins(exchange)
    assert set(live.in_flight_as(7)) == {first, second} and live.in_flight_as("7") == []
    for exchange in live.in_flight_as(7):
        exchange.cancel("the client cancelled")
    assert first.is_over and second.is_over
    with pytest.raises(Exception, match="is no step from cancelled"):
        first.step(ExchangeEvent.SEND)


class _Events:
    async def drop(self, session_id: str) -> None: ...
