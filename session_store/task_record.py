"""How shared and durable stores keep a task: a head for lists, and a body with everything that may be large."""

import msgspec
from msgspec.structs import replace

from session_store.ports.tasks import Task

__all__ = ["head_of", "joined", "parts", "without_body"]

_BODY = ("request", "questions", "answers", "result")


def parts(task: Task) -> tuple[bytes, bytes]:
    """Head and body, encoded."""
    body = {name: value for name in _BODY if (value := getattr(task, name))}
    return msgspec.msgpack.encode(without_body(task)), msgspec.msgpack.encode(body)


def joined(head: bytes, body: bytes) -> Task:
    """The task of these parts."""
    return replace(head_of(head), **msgspec.msgpack.decode(body, type=dict[str, bytes]))


def head_of(head: bytes) -> Task:
    """The task of that head, with an empty body."""
    return msgspec.msgpack.decode(head, type=Task)


def without_body(task: Task) -> Task:
    """The task as it stands in lists."""
    return replace(task, **dict.fromkeys(_BODY, b""))
