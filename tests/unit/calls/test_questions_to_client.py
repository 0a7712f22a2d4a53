"""What servers ask the client of a session: where it waits, how much may, and how it ends."""

from typing import Any, cast

import msgspec
import pytest

from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.live_session import LiveSession
from gateway.calls.questions_to_client import MAX_QUESTIONS, MAX_QUESTIONS_OF_CALL, MAX_SUSPENDED, Questions, give_up
from gateway.calls.suspended_call import InputRequest
from gateway.errors import UNREAD
from session_store import EventLog, MemoryEventLog, Session, TimelineEntry
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.fake_upstream import a_call, a_live
from tests.unit.calls.parts import Server, request
from transports.jsonrpc import Message, encode, parse


class Client:
    """The session's own stream."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.reads = True

    def send(self, frame: bytes) -> bool:
        if self.reads:
            self.frames.append(msgspec.json.decode(frame))
        return self.reads


def asking() -> tuple[Server, Client, Questions]:
    client = Client()
    return Server(), client, Questions(client.send)


def call(server: Server) -> Exchange:
    exchange = a_call()
    exchange.sent_as(server.conversation, 1, None, 1.0)
    return exchange


def answer(number: int, **result: object) -> Message:
    return parse(encode({"jsonrpc": "2.0", "id": number, "result": result}))


def suspended(server: Server, questions: Questions, *asked: InputRequest) -> Exchange:
    exchange = call(server)
    for question in asked:
        assert questions.suspend(exchange, question)
    exchange.suspend({})
    return exchange


def elicitation(server: Server, server_id: bytes = b"1") -> InputRequest:
    return InputRequest(server.conversation, server_id, "elicitation/create", {"message": msgspec.Raw(b'"?"')})


async def test_a_legacy_client_answers_by_the_gateways_own_id() -> None:
    server, client, questions = asking()
    questions.ask(server.conversation, request("roots/list", "theirs"), None)
    assert client.frames == [{"jsonrpc": "2.0", "id": 1, "method": "roots/list", "params": {}}]
    assert not questions.answered(answer(2))
    assert questions.answered(answer(1, roots=[]))
    assert not questions.answered(answer(1, roots=[]))
    assert server.answers == [(b'"theirs"', {"roots": []})]
    questions.ask(server.conversation, request("roots/list", _meta={"progressToken": "theirs"}), None)
    assert client.frames[1]["params"]["_meta"]["progressToken"] == 2
    assert questions.asker(2) == (server.conversation, msgspec.Raw(b'"theirs"')), "its progress finds its server"
    assert questions.asker(3) is None


async def test_a_client_that_does_not_read_or_has_all_the_questions_that_it_may_have_is_not_asked() -> None:
    server, client, questions = asking()
    for number in range(MAX_QUESTIONS + 1):
        questions.ask(server.conversation, request("roots/list", number), None)
    assert len(client.frames) == MAX_QUESTIONS and server.refusals == [(b"%d" % MAX_QUESTIONS, UNREAD)]
    server, client, questions = asking()
    client.reads = False
    questions.ask(server.conversation, request("roots/list"), None)
    assert server.refusals == [(b"1", UNREAD)] and not questions.answered(answer(1))


async def test_a_question_that_its_server_withdraws_is_cancelled_by_the_id_that_the_client_knows() -> None:
    server, client, questions = asking()
    questions.ask(server.conversation, request("roots/list", "theirs"), None)
    questions.withdraw(server.conversation, b'"theirs"', {"reason": msgspec.Raw(b'"done"')})
    assert client.frames[1]["method"] == "notifications/cancelled"
    assert client.frames[1]["params"] == {"requestId": 1, "reason": "done"}
    assert not questions.answered(answer(1))


async def test_questions_of_a_link_that_is_gone_are_withdrawn_and_those_of_results_end_with_their_call() -> None:
    server, _, questions = asking()
    other, answers = Server(), list[Message]()
    stays, over = call(server), call(server)
    questions.ask(server.conversation, request("roots/list"), None)
    questions.ask(other.conversation, request("roots/list"), None)
    for exchange in (stays, over):
        questions.ask_from_result(exchange, "roots/list", {}, answers.append)
    questions.closed(server.conversation)
    questions.withdraw_for(over)
    assert [questions.answered(answer(number)) for number in range(1, 5)] == [False, True, True, False]
    assert len(answers) == 1 and other.answers == [(b"1", {})]


async def test_a_session_that_ends_answers_every_server_that_waits() -> None:
    server, _, questions = asking()
    questions.ask(server.conversation, request("roots/list"), None)
    suspended(server, questions, elicitation(server))
    questions.end("the session has ended")
    assert server.refusals == [(b"1", UNREAD)] and not questions.has_suspended and not questions.suspended
    assert server.answers == [(b"1", {"action": "cancel"})]


async def test_a_client_that_does_not_come_back_cancels_the_call() -> None:
    server, _, questions = asking()
    sampling = InputRequest(server.conversation, b"2", "sampling/createMessage", {})
    exchange = suspended(server, questions, elicitation(server), sampling)
    give_up(exchange)
    assert server.answers == [(b"1", {"action": "cancel"})] and [number for number, _ in server.refusals] == [b"2"]
    assert exchange.is_over and not questions.has_suspended
    for _ in range(MAX_SUSPENDED + 5):
        give_up(suspended(server, questions, elicitation(server)))
    suspended(server, questions, elicitation(server))
    assert len(questions.suspended) == MAX_SUSPENDED + 1, "those that have ended are remembered by name for a while"
    assert questions.has_suspended


async def test_a_server_withdraws_its_own_questions_only_and_gets_no_answer_to_them() -> None:
    server, other, questions = Server(), Server(), asking()[2]
    exchange = suspended(server, questions, elicitation(server), elicitation(server, b"2"), elicitation(other))
    questions.withdraw(server.conversation, b"1", {})
    assert exchange.suspended is not None and set(exchange.suspended.requests()) == {"q2", "q3"}
    questions.closed(server.conversation)
    assert set(exchange.suspended.requests()) == {"q3"} and questions.has_suspended
    exchange.suspended.give_up()
    assert exchange.suspended.requests() == {} and exchange.suspended.size == 0
    assert server.answers == server.refusals == [] and other.answers == [(b"1", {"action": "cancel"})]
    exchange.client_answered()
    assert not questions.has_suspended, "its client has come back"


async def test_what_waits_for_a_modern_client_is_bounded() -> None:
    server, _, questions = asking()
    one = call(server)
    asked = [questions.suspend(one, elicitation(server)) for _ in range(MAX_QUESTIONS_OF_CALL + 1)]
    held = [questions.hold_unclear(10) for _ in range(MAX_QUESTIONS_OF_CALL + 1)]
    assert asked == held == [True] * MAX_QUESTIONS_OF_CALL + [False]
    questions.release_unclear(10)
    assert questions.hold_unclear(10)
    for _ in range(MAX_SUSPENDED):
        suspended(server, questions, elicitation(server))
    assert not questions.suspend(call(server), elicitation(server))


async def test_a_session_ends_the_calls_that_wait_for_its_client_on_a_shared_server_too() -> None:
    server, live = Server(), a_live(MemoryEventLog())
    exchange = suspended(server, live.questions, elicitation(server))
    assert live.has_suspended and live.is_busy
    await live.close()
    assert exchange.is_over and server.cancelled == ["the session has ended"] and not live.is_busy


async def test_an_id_that_a_client_uses_again_hides_no_call() -> None:
    live, server = a_live(MemoryEventLog()), Server()
    first, second = call(server), call(server)
    for exchange in (first, second):
        live.exchange_begins(exchange)
    assert set(live.in_flight_as(7)) == {first, second} and live.in_flight_as("7") == []
    for exchange in live.in_flight_as(7):
        exchange.cancel("the client cancelled")
    assert first.is_over and second.is_over
    with pytest.raises(Exception, match="is no step from cancelled"):
        first.step(ExchangeEvent.SEND)


@requirement("ops.timeline")
async def test_a_question_and_its_answer_are_entries_of_the_timeline() -> None:
    entries: list[tuple[Session, TimelineEntry]] = []
    session = a_session(FakeClock())
    live = LiveSession(session, cast("EventLog", None), None, lambda *entry: entries.append(entry))
    server, live.questions._send = Server(), lambda frame: True
    live.questions.ask(server.conversation, request("elicitation/create", message="the secret question"), None)
    assert live.questions.answered(answer(1)) and server.answers
    assert [(one.kind, one.name, one.outcome) for _, one in entries] == [
        ("question", "elicitation/create", "asked"),
        ("question", "elicitation/create", "answered"),
    ]
    assert entries[0][0] is live.session and "secret" not in str(entries)
