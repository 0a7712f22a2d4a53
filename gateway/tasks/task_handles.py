"""Sign and read handles: the ids of tasks that clients see. A handle names the task's session and server. Pure.

Anyone can decode a handle, but only the gateway can sign one. It is valid only from the principal of the session.
"""

import base64
import re
from typing import Final, Literal

import msgspec

from gateway.tasks.errors import UnknownTask
from session_store import KeyRing, Purpose, Task
from session_store.ports.tasks import task_name
from session_store.session import redact
from session_store.token_signing import Macs, is_canonical

MAX_ID_CHARS: Final = 512
"""Maximum characters of a server's own task id. A longer one would make the handle too long for an HTTP header."""

_MAX_TEXT: Final = 6_144
"""Maximum characters of a handle. No handle that the gateway signs is longer."""

_HANDLE: Final = re.compile(r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{43}")


class TaskHandle(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a handle, which is the id of a task for clients."""

    kind: Literal["made", "relayed"]
    """`made` for a task of the gateway, `relayed` for a task of a server."""
    session_id: str
    endpoint: str
    """The endpoint to which the client has sent the call."""
    server: str
    id: str
    """The id of the task's record in the store, or the id that the server gave the task."""

    @property
    def name(self) -> str:
        """Return the name of the stored record (`Task.name`) of a task that the gateway has created."""
        return task_name(self.session_id, self.id)

    @property
    def log_facts(self) -> dict[str, str]:
        """Return the fields of a log line about the task."""
        return {"session": redact(self.session_id), "server": self.server, "task": redact(self.id)}


_decoder: Final = msgspec.msgpack.Decoder(TaskHandle)


class TaskHandles:
    """Signs handles with the first key of a key ring, and reads handles signed with any of its keys.

    A handle is base64url, a dot, and the signature as base64url: safe in headers and URLs. A task's handle changes only
    with the first key.
    """

    def __init__(self, ring: KeyRing) -> None:
        self._macs = Macs(ring, Purpose.TASK)

    def sign(self, handle: TaskHandle) -> str:
        """Return the signed text of a handle, for clients. Raises `ValueError`: `handle.id` is empty or longer than
        `MAX_ID_CHARS`."""
        if not 0 < len(handle.id) <= MAX_ID_CHARS:
            raise ValueError(f"the id of a task must have 1 to {MAX_ID_CHARS} characters")
        content = _base64url(msgspec.msgpack.encode(handle))
        return f"{content}.{_base64url(self._macs.of(content.encode()))}"

    def of_record(self, task: Task) -> str:
        """Return the signed handle of a task that the gateway has created, for its client. `task` is the task's
        record."""
        return self.sign(TaskHandle("made", task.session_id, task.endpoint, task.server, task.id))

    def read(self, text: str) -> TaskHandle | None:
        """Return the contents of a handle; None if it was not signed with a key of this ring, or cannot be decoded."""
        if len(text) > _MAX_TEXT or not _HANDLE.fullmatch(text) or not is_canonical(text):
            return None
        content, _, signature = text.partition(".")
        if not self._macs.verify(content.encode(), _bytes(signature)):
            return None
        return _decoded(content)  # None: another version of the gateway signed it

    def read_at(self, text: str, endpoint: str) -> TaskHandle:
        """Return the contents of a handle that a client has sent to this endpoint.

        Raises:
            UnknownTask: the text is not a valid handle, or the task belongs to another endpoint.
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
    """Return the contents of a handle without verifying its signature; None if the text is no handle. Only for
    operators, who may see every task."""
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
