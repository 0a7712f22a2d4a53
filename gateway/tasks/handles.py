"""The ids of tasks that clients get: signed, so that an id alone finds the session and the server of its task. Pure.

A handle shows what it names, and nobody else can make one. Who holds it is checked against the session.
"""

import base64
import hashlib
import hmac
import re
from typing import Final, Literal

import msgspec

from session_store import KeyRing, Purpose

__all__ = ["MAX_ID_CHARS", "TaskHandle", "TaskHandles", "claimed"]

MAX_ID_CHARS: Final = 512
"""Characters of a server's own id. A task with a longer one cannot be named in a header."""

_MAX_TEXT: Final = 6_144
"""Characters of a handle that are read at most: those of the longest that is signed fit."""

_HANDLE: Final = re.compile(r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{43}")


class TaskHandle(msgspec.Struct, frozen=True, array_like=True):
    """The task that a handle names.

    `kind`: `made` is a task of the gateway, and `id` names its record; `relayed` is a task of the server, and `id` is
    the server's own. `endpoint` is where the call was made that became the task.
    """

    kind: Literal["made", "relayed"]
    session_id: str
    endpoint: str
    server: str
    id: str


class TaskHandles:
    """Signs handles with the first key of a ring, and reads those of all its keys.

    The form is base64url, a dot, and the signature as base64url: safe in headers and URLs. A task has one handle as
    long as the first key stays.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._keys = ring.derive(Purpose.TASK)
        self._decoder = msgspec.msgpack.Decoder(TaskHandle)

    def sign(self, handle: TaskHandle) -> str:
        """The handle for clients. Raises `ValueError`: the server's id is longer than `MAX_ID_CHARS`, or empty."""
        if not 0 < len(handle.id) <= MAX_ID_CHARS:
            raise ValueError(f"the id of a task must have 1 to {MAX_ID_CHARS} characters")
        content = _base64url(msgspec.msgpack.encode(handle))
        return f"{content}.{_signature(self._keys[0], content)}"

    def read(self, text: str) -> TaskHandle | None:
        """The task that a handle names; None if the text is none that `sign` made with a key of this ring."""
        if len(text) > _MAX_TEXT or not _HANDLE.fullmatch(text):
            return None
        content, _, signature = text.partition(".")
        # The texts are compared, so each handle has one spelling.
        if not any(hmac.compare_digest(_signature(key, content), signature) for key in self._keys):
            return None
        try:
            return self._decoder.decode(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
        except (msgspec.MsgspecError, ValueError):
            return None  # another version of the gateway has signed it


def claimed(text: str) -> TaskHandle | None:
    """The task that a text claims to name, whoever has made it. For operators, who may see every task."""
    content = text.partition(".")[0]
    if len(text) > _MAX_TEXT or not _HANDLE.fullmatch(text):
        return None
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)), type=TaskHandle)
    except (msgspec.MsgspecError, ValueError):
        return None


def _signature(key: bytes, content: str) -> str:
    return _base64url(hmac.digest(key, content.encode(), hashlib.sha256))


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
