"""The call of a task as it is stored: with the rights that it had, no larger than it may be, each answer given once."""

import msgspec
import pytest

from gateway.protocol.client_capabilities import ClientDeclaration
from gateway.protocol.tasks import MAX_ID_CHARS, TaskAtServer
from gateway.tasks.gateway_tasks import stored_call
from gateway.tasks.gateway_tasks.stored_call import (
    MAX_BYTES,
    FollowedCall,
    RecordedAnswers,
    StoredCall,
    following,
    stored,
)
from session_store import Context, ContextField
from tests.requirements import requirement
from transports.era import Era
from transports.jsonrpc import encode

pytestmark = requirement("task.durable")

CONTEXT = Context(workspace="red", permissions=("write",), fields=(ContextField("team", "blue"),))
EMPTY = encode(StoredCall({}, CONTEXT))


def followed(own_id: str = "t/1", capabilities: bytes = b"{}") -> FollowedCall:
    caller = ClientDeclaration(b'{"name":"c"}', capabilities)
    return FollowedCall(TaskAtServer(own_id, "2026-11-22T09:00:00Z", Era.LEGACY), caller)


@requirement("wall.authority")
def test_a_call_is_read_as_it_was_stored() -> None:
    params = {"name": msgspec.Raw(b'"t"'), "arguments": msgspec.Raw(b'{"a":[1,2.50]}')}
    answered = {"requestState": msgspec.Raw(b'"sealed"'), "inputResponses": msgspec.Raw(b"{}")}
    found = StoredCall.read(stored(params | answered, CONTEXT))
    assert (found.context, found.params) == (CONTEXT, params)


@requirement("task.followed")
def test_what_is_stored_is_bounded() -> None:
    assert stored({"arguments": msgspec.Raw(b'"' + b"x" * MAX_BYTES + b'"')}, CONTEXT) == b""
    assert following(EMPTY, followed(own_id="x" * (MAX_ID_CHARS + 1))) == b""
    assert following(EMPTY, followed(capabilities=b"x" * MAX_BYTES)) == b""


@requirement("task.followed")
def test_what_the_next_owner_needs_to_follow_a_task_is_stored_beside_the_call() -> None:
    call = stored({"name": msgspec.Raw(b'"t"')}, CONTEXT)
    for request, name in ((call, b'"t"'), (EMPTY, b"")):
        found = StoredCall.read(following(request, followed()))
        assert (found.followed, found.context, bytes(found.params.get("name", b""))) == (followed(), CONTEXT, name)


YES, NO = b'{"action":"accept"}', b'{"action":"decline"}'


def test_each_answer_is_given_once_and_equal_questions_keep_their_order() -> None:
    recorded = RecordedAnswers.of({"early": YES.decode()})
    for answer in (YES, NO):
        recorded.add("go on?", msgspec.Raw(answer))
    again = RecordedAnswers(recorded.encoded())
    assert [again.take("go on?") for _ in range(3)] == [YES.decode(), NO.decode(), None]
    assert (again.take("other"), again.take("early"), again.take("early")) == (None, YES.decode(), None)


def test_what_is_too_large_or_of_another_version_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = RecordedAnswers.of({"q": YES.decode()})
    monkeypatch.setattr(stored_call, "PART_BYTES", 10)
    assert recorded.encoded() == b"" and RecordedAnswers().encoded() == b""
    assert [RecordedAnswers(data).take("q") for data in (b"", b"no JSON", b'{"q":"text"}')] == [None] * 3
