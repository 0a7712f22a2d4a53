"""The questions of one call, round by round."""

import msgspec

from gateway.calls.suspended_call import InputRequest, SuspendedCall, question_digest
from tests.unit.calls.parts import Server
from transports.jsonrpc import Object, encode


def question(server: Server, server_id: bytes, method: str = "elicitation/create", message: str = "?") -> InputRequest:
    return InputRequest(server.conversation, server_id, method, {"message": msgspec.Raw(encode(message))})


def asked(*questions: InputRequest) -> SuspendedCall:
    call = SuspendedCall()
    for each in questions:
        call.add(each)
    return call


def test_identical_questions_have_one_digest_whatever_their_ids() -> None:
    plain: Object = {"message": msgspec.Raw(b'"?"'), "mode": msgspec.Raw(b'"form"')}
    turned: Object = {"mode": msgspec.Raw(b'"form"'), "message": msgspec.Raw(b'"?"'), "_meta": msgspec.Raw(b"{}")}
    assert question_digest("elicitation/create", plain) == question_digest("elicitation/create", turned)
    assert question_digest("roots/list", plain) != question_digest("elicitation/create", plain)


def test_a_question_keeps_no_more_than_itself() -> None:
    whole = encode({"message": "?" * 10})
    params = msgspec.json.decode(whole, type=Object)
    kept = InputRequest(Server().conversation, b"1", "roots/list", params)
    assert kept.params is not None and kept.size == 12 and bytes(kept.params["message"]) == bytes(params["message"])
    assert kept.params["message"] is not params["message"]


def test_the_keys_of_questions_are_never_used_again() -> None:
    server = Server()
    call = asked(question(server, b"1"))
    assert call.gather() and not call.gather(), "those of one round are gathered once"
    call.gathered()
    assert call.gather()
    call.ask_until(10.0)
    turn = call.turn
    assert call.until == 10.0
    call.take_answers({"q1": msgspec.Raw(b"{}")})
    assert call.turn != turn, "a state is good for one round"
    call.add(question(server, b"2"))
    assert set(call.requests()) == set(call.asked()) == {"q2"} and server.answers == [(b"1", {})]


def test_answers_of_earlier_rounds_are_known_by_the_digest_of_their_question() -> None:
    first, second = question(Server(), b"1", message="a"), question(Server(), b"2", message="b")
    call = asked(first, second)
    call.take_answers({"q2": msgspec.Raw(b'{"action":"accept"}'), "q7": msgspec.Raw(b"1")})
    assert call.answers == {second.digest: '{"action":"accept"}'} and call.asked() == {"q1": first.digest}
    assert call.size == first.size
