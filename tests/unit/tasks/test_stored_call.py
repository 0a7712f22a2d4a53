"""The call of a task as it is stored: with the rights that it had, and no larger than it may be."""

import msgspec

from gateway.tasks.stored_call import MAX_BYTES, StoredCall, stored
from session_store import Context, ContextField
from tests.requirements import requirement

CONTEXT = Context(workspace="red", permissions=("write",), fields=(ContextField("team", "blue"),))


@requirement("task.durable", "wall.authority")
def test_a_call_is_read_as_it_was_stored() -> None:
    params = {"name": msgspec.Raw(b'"t"'), "arguments": msgspec.Raw(b'{"a":[1,2.50]}')}
    answered = {"requestState": msgspec.Raw(b'"sealed"'), "inputResponses": msgspec.Raw(b"{}")}
    found = StoredCall.read(stored(params | answered, CONTEXT))
    assert found.context == CONTEXT and {name: bytes(raw) for name, raw in found.params.items()} == {
        "name": b'"t"',
        "arguments": b'{"a":[1,2.50]}',
    }


@requirement("task.durable")
def test_a_large_call_is_not_stored() -> None:
    assert stored({"arguments": msgspec.Raw(b'"' + b"x" * MAX_BYTES + b'"')}, CONTEXT) == b""
