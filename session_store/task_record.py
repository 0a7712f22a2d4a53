"""How shared and durable stores keep a task: a head for lists, and a body with everything that may be large."""

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from session_store.ports.tasks import Task

__all__ = ["head_of", "joined", "parts", "without_body"]

_BODY: Final = ("request", "questions", "answers", "result")

_MAX_ERROR: Final = 4_096
"""Bytes of an error that stands in the head. A larger one is part of the body."""


def parts(task: Task) -> tuple[bytes, bytes]:
    """Head and body, encoded."""
    body = {name: value for name in _in_body(task) if (value := getattr(task, name))}
    return msgspec.msgpack.encode(without_body(task)), msgspec.msgpack.encode(body)


def joined(head: bytes, body: bytes) -> Task:
    """The task of these parts."""
    return replace(head_of(head), **msgspec.msgpack.decode(body, type=dict[str, bytes]))


def head_of(head: bytes) -> Task:
    """The task of that head, with an empty body."""
    return msgspec.msgpack.decode(head, type=Task)


def without_body(task: Task) -> Task:
    """The task as it stands in lists."""
    empty: dict[str, Any] = dict.fromkeys(_in_body(task), b"")
    return replace(task, **empty)


def _in_body(task: Task) -> tuple[str, ...]:
    """The fields that are not in its head."""
    return (*_BODY, "error") if len(task.error) > _MAX_ERROR else _BODY
