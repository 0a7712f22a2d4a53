"""The call of a task as it is stored: with the rights that it had, and no larger than it may be."""

import msgspec

from gateway.protocol.capabilities import Caller
from gateway.tasks.made.stored_call import MAX_BYTES, FollowedCall, StoredCall, following, stored
from session_store import Context, ContextField
from tests.requirements import requirement
from transports.era import Era
from transports.jsonrpc import encode

pytestmark = requirement("task.durable")

CONTEXT = Context(workspace="red", permissions=("write",), fields=(ContextField("team", "blue"),))
EMPTY = encode(StoredCall({}, CONTEXT))


def followed(own_id: str = "t/1", capabilities: bytes = b"{}") -> FollowedCall:
    caller = Caller(b'{"name":"c"}', capabilities)
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
