"""Define the store of tasks: calls that continue without their client (MCP extension
`io.modelcontextprotocol/tasks`)."""

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec.structs import replace

from session_store.session import Principal

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
"""The status of a task, as clients see it (ext-tasks, Task Status). `input_required`: the task waits for its client's
answer to a question. `completed`: also if the tool has failed. `failed`: the call has ended with a JSON-RPC error, or
its outcome is unknown. `cancelled`: by the client or an operator, or because its session has ended."""

OVER: Final[frozenset[TaskStatus]] = frozenset({"completed", "failed", "cancelled"})
"""The final states of a task."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One task. `session_id` and `id` name it together. All times are in seconds since the epoch."""

    id: str
    session_id: str
    principal: Principal
    """The principal that made the call. Other principals cannot see the task."""
    origin: str = ""
    """Distinguishes anonymous clients where tasks are counted (`Session.origin`)."""
    endpoint: str
    server: str
    tool: str
    operation: str = "write"
    """`read` or `write`, from the tool's annotations."""
    created_at: float
    updated_at: float
    ttl_s: float
    """Counts from `created_at`. Then the task expires."""
    kept_s: float = 0.0
    """How long the outcome is kept; 0: as long as the gateway keeps outcomes."""
    poll_ms: int
    status: TaskStatus = "working"
    message: str = ""
    request: bytes = b""
    """Empty, or a JSON object with two things: the params and the `_meta` of the call if the call may run again, and
    what a later owner needs to follow the server's own task."""
    is_repeatable: bool = False
    epoch: int = 0
    """The epoch of the owner that runs the task (`Session.epoch`)."""
    runs: int = 1
    """How often the call was started."""
    upstream_id: str = ""
    """The server's own id of the task, if the server has made one that a later owner can follow."""
    questions: bytes = b""
    """The open questions to the client, as a JSON object (`inputRequests`)."""
    asked: int = 0
    """The number of questions so far."""
    answers: bytes = b""
    """The client's answers so far, if the call may run again: a JSON object by the content of the questions."""
    result: bytes = b""
    """The outcome as JSON: the result of the call here, or its error in `error`."""
    error: bytes = b""
    is_tool_error: bool = False
    """The task is completed, and its result says that the tool has failed (MCP, `isError`)."""
    reason: str = ""
    """The tool's text about `is_tool_error`, cut."""
    version: int = 1
    """Counts the changes."""

    @property
    def is_over(self) -> bool:
        """Return True if the task has ended."""
        return self.status in OVER

    @property
    def name(self) -> str:
        """Return the name of the task, which is unique among the tasks of all sessions."""
        return task_name(self.session_id, self.id)

    @property
    def counted_as(self) -> str:
        """Return the key under which quotas count the task (`Principal.counted_as`)."""
        return self.principal.counted_as(self.origin)

    @property
    def place(self) -> tuple[float, str]:
        """Return the sort key of the task among the tasks of its session: the time of its creation, then its id."""
        return self.created_at, self.id

    @property
    def place_of_all(self) -> tuple[float, str]:
        """Return the sort key of the task among the tasks of all sessions: the time of its creation, then its name."""
        return self.created_at, self.name

    @property
    def expires_at(self) -> float:
        """Return the time at which the task expires, and the store deletes it."""
        return self.created_at + self.ttl_s


class TaskStore(Protocol):
    """Store tasks by session and id. All methods may raise `StoreUnavailable`.

    Lists have only the heads of tasks (`without_body`): `request`, `questions`, `answers` and `result` are empty, and
    so is an `error` of more than 4 KiB. A store must not read these for a list: together they may be hundreds of
    megabytes.

    Every task expires, and is then unknown. A task outlives its session if the session expires; `drop_session` is for a
    session that was ended.
    """

    async def create(self, task: Task) -> None:
        """Store a new task. When this returns, `get` finds the task on every replica.

        Raises:
            StoreFull: the store has its maximum of tasks or of their bytes.
        """

    async def get(self, session_id: str, task_id: str) -> Task | None:
        """Return the task; None if it is unknown."""

    async def replace(self, task: Task) -> bool:
        """Store a changed copy of a task, under the next version, and return True. Return False, and change nothing, if
        the task is unknown, or its stored version is not `task.version`. `created_at`, `principal` and `origin` must
        not change.

        Raises:
            StoreFull: the store has a limit, and no room for a larger copy.
        """

    async def of_session(
        self, session_id: str, *, after: tuple[float, str] = (0.0, ""), limit: int = 100
    ) -> list[Task]:
        """Return at most `limit` tasks of a session, as heads (without the large fields), in the order of their
        `place`. The list starts after the place `after`, whether or not a task has it."""

    async def heads(self, names: Sequence[str]) -> list[Task]:
        """Return the heads of these tasks (copies without the large fields), in the order of `names` (`Task.name`; at
        most 100). Unknown tasks are left out."""

    async def page(self, *, before: Task | None = None, limit: int = 100) -> list[Task]:
        """Return at most `limit` tasks of all sessions, as heads (without the large fields), newest first. The list
        starts after the task `before`, which may have expired.

        For operators. Some stores list only the newest tasks.
        """

    async def drop_session(self, session_id: str) -> None:
        """Delete the tasks of a session."""


def task_name(session_id: str, task_id: str) -> str:
    """Return the name (`Task.name`) of the task with these ids."""
    return f"{session_id}/{task_id}"


def ids_of(name: str) -> tuple[str, str]:
    """Return the ids (session, task) in a task's name (`Task.name`)."""
    session_id, _, task_id = name.partition("/")
    return session_id, task_id


_BODY: Final = ("request", "questions", "answers", "result")

_MAX_ERROR: Final = 4_096
"""The most bytes of an error that is part of the head. A larger one is part of the body."""


def parts(task: Task) -> tuple[bytes, bytes]:
    """Return a task as two encoded parts (MessagePack): its head, which has the fields for lists, and its body, which
    has the large fields."""
    body = {name: value for name in _in_body(task) if (value := getattr(task, name))}
    return msgspec.msgpack.encode(without_body(task)), msgspec.msgpack.encode(body)


def joined(head: bytes, body: bytes) -> Task:
    """Return the task whose encoded head and body are given (`parts`)."""
    return replace(head_of(head), **msgspec.msgpack.decode(body, type=dict[str, bytes]))


def head_of(head: bytes) -> Task:
    """Return the task whose encoded head is given (`parts`). Its large fields (the body) are empty."""
    return msgspec.msgpack.decode(head, type=Task)


def without_body(task: Task) -> Task:
    """Return a copy of the task in which the large fields (the body) are empty: the head of the task, for lists."""
    empty: dict[str, Any] = dict.fromkeys(_in_body(task), b"")
    return replace(task, **empty)


def _in_body(task: Task) -> tuple[str, ...]:
    return (*_BODY, "error") if len(task.error) > _MAX_ERROR else _BODY
