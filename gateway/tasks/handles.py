"""Sign and read handles, the ids of tasks for clients. A handle names the session and the server of its task. Pure.

A handle can be decoded by anybody, but only the gateway can make one. Its sender must be the principal of the session.
"""

import base64
import re
from typing import Final, Literal

import msgspec

from gateway.tasks.errors import UnknownTask
from session_store import KeyRing, Purpose, Task
from session_store.ports.tasks import task_name
from session_store.session import redact
from session_store.tokens import Macs, is_canonical

MAX_ID_CHARS: Final = 512
"""Limit on the characters of a server's own task id. A task with a longer one cannot be named in a header."""

_MAX_TEXT: Final = 6_144
"""Limit on the characters of a handle. The longest handle that is signed fits."""

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

    @property
    def name(self) -> str:
        """Return the name of the record of a made task (`Task.name`)."""
        return task_name(self.session_id, self.id)

    @property
    def log_facts(self) -> dict[str, str]:
        """Return the fields of a log line about the task."""
        return {"session": redact(self.session_id), "server": self.server, "task": redact(self.id)}


_decoder: Final = msgspec.msgpack.Decoder(TaskHandle)


class TaskHandles:
    """Signs handles with the first key of a ring, and reads those of all its keys.

    The form is base64url, a dot, and the signature as base64url: safe in headers and URLs. A task has one handle as
    long as the first key stays.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._macs = Macs(ring, Purpose.TASK)

    def sign(self, handle: TaskHandle) -> str:
        """Return the handle as text, for clients. Raises `ValueError`: `handle.id` is empty, or longer than
        `MAX_ID_CHARS`."""
        if not 0 < len(handle.id) <= MAX_ID_CHARS:
            raise ValueError(f"the id of a task must have 1 to {MAX_ID_CHARS} characters")
        content = _base64url(msgspec.msgpack.encode(handle))
        return f"{content}.{_base64url(self._macs.of(content.encode()))}"

    def of_record(self, task: Task) -> str:
        """Return the handle of a task that the gateway has made."""
        return self.sign(TaskHandle("made", task.session_id, task.endpoint, task.server, task.id))

    def read(self, text: str) -> TaskHandle | None:
        """Return the task that a handle names. None: the text was not signed with a key of this ring."""
        if len(text) > _MAX_TEXT or not _HANDLE.fullmatch(text) or not is_canonical(text):
            return None
        content, _, signature = text.partition(".")
        if not self._macs.verify(content.encode(), _bytes(signature)):
            return None
        return _decoded(content)  # None: another version of the gateway signed it

    def read_at(self, text: str, endpoint: str) -> TaskHandle:
        """Return the task that a handle names, for a client at that endpoint.

        Raises:
            UnknownTask: the text is no valid handle, or the task's call was made at another endpoint.
        """
        handle = self.read(text)
        if handle is None:
            raise UnknownTask
        if handle.endpoint != endpoint:
            unknown = UnknownTask()
            unknown.about(handle.log_facts)
            raise unknown
        return handle


def claimed(text: str) -> TaskHandle | None:
    """Return the task that a handle names, unverified: for operators, who may see every task. None: no handle."""
    return None if len(text) > _MAX_TEXT or not _HANDLE.fullmatch(text) else _decoded(text.partition(".")[0])


def _decoded(content: str) -> TaskHandle | None:
    try:
        return _decoder.decode(_bytes(content))
    except (msgspec.MsgspecError, ValueError):
        return None


def _bytes(coded: str) -> bytes:
    return base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4))


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
