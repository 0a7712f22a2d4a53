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
    """One task. Times are in seconds since the epoch; `ttl_s` counts from `created_at`.

    `session_id` and `id` name it together. `principal` is the one that made the call: other principals cannot see the
    task. `origin` distinguishes anonymous clients where tasks are counted (`Session.origin`). `server` and `tool` were
    called, at the endpoint of that name. `operation` is `read` or `write`, from the tool's annotations. `request` is
    empty, or a JSON object: the params and the `_meta` of the call if the call may run again, and what a later owner
    needs to follow the server's own task. `epoch` is the epoch of the owner that runs the task (`Session.epoch`), and
    `runs` is how often it was started. `upstream_id` is the server's own id of the task, if the server has made one
    that a later owner can follow.

    `kept_s` is how long the outcome is kept; 0: as long as the gateway keeps outcomes.

    `questions` has the open questions to the client as a JSON object (`inputRequests`), `asked` is the number of
    questions so far. `answers` has the client's answers so far, if the call may run again, as a JSON object by the
    content of the questions. `result` and `error` have the outcome as JSON. `is_tool_error`: the task is completed, and
    its result says that the tool has failed (MCP, `isError`); `reason` is the tool's text about it, cut. `version`
    counts the changes.
    """

    id: str
    session_id: str
    principal: Principal
    origin: str = ""
    endpoint: str
    server: str
    tool: str
    operation: str = "write"
    created_at: float
    updated_at: float
    ttl_s: float
    kept_s: float = 0.0
    poll_ms: int
    status: TaskStatus = "working"
    message: str = ""
    request: bytes = b""
    is_repeatable: bool = False
    epoch: int = 0
    runs: int = 1
    upstream_id: str = ""
    questions: bytes = b""
    asked: int = 0
    answers: bytes = b""
    result: bytes = b""
    error: bytes = b""
    is_tool_error: bool = False
    reason: str = ""
    version: int = 1

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
        """Return the sort key of the task among those of its session: its age, then its id."""
        return self.created_at, self.id

    @property
    def place_of_all(self) -> tuple[float, str]:
        """Return the sort key of the task among those of all sessions: its age, then its name."""
        return self.created_at, self.name

    @property
    def expires_at(self) -> float:
        """Return the time at which the task expires, and the store deletes it."""
        return self.created_at + self.ttl_s


class TaskStore(Protocol):
    """Store tasks by session and id. All methods may raise `StoreUnavailable`.

    Lists have only the heads of tasks: `request`, `questions`, `answers` and `result` are empty, and so is an `error`
    of more than 4 KiB. A store must not read these for a list: together they may be hundreds of megabytes.

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
        """Store a changed copy of a task under the next version. Return False, and change nothing, if the task is
        unknown, or its stored version is not `task.version`. `created_at`, `principal` and `origin` must not change.

        Raises:
            StoreFull: the store has a limit, and no room for a larger copy.
        """

    async def of_session(
        self, session_id: str, *, after: tuple[float, str] = (0.0, ""), limit: int = 100
    ) -> list[Task]:
        """Return the heads of a session's tasks, in the order of their `place`, starting after the place `after`. There
        need not be a task at `after`."""

    async def heads(self, names: Sequence[str]) -> list[Task]:
        """Return the heads of the tasks with these names (`Task.name`; at most 100 names), in the order of the names.
        Unknown tasks are left out."""

    async def page(self, *, before: Task | None = None, limit: int = 100) -> list[Task]:
        """Return the heads of tasks of all sessions, newest first, starting after the task `before`, which may have
        expired.

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
    """Return the head of a task (the fields for lists) and the body (the large fields), each encoded with
    MessagePack."""
    body = {name: value for name in _in_body(task) if (value := getattr(task, name))}
    return msgspec.msgpack.encode(without_body(task)), msgspec.msgpack.encode(body)


def joined(head: bytes, body: bytes) -> Task:
    """Decode a task from its encoded head and body (see `parts`)."""
    return replace(head_of(head), **msgspec.msgpack.decode(body, type=dict[str, bytes]))


def head_of(head: bytes) -> Task:
    """Decode the head of a task, and return it as a task in which the large fields (the body) are empty."""
    return msgspec.msgpack.decode(head, type=Task)


def without_body(task: Task) -> Task:
    """Return the head of a task, for lists: a copy of the task in which the large fields (the body) are empty."""
    empty: dict[str, Any] = dict.fromkeys(_in_body(task), b"")
    return replace(task, **empty)


def _in_body(task: Task) -> tuple[str, ...]:
    return (*_BODY, "error") if len(task.error) > _MAX_ERROR else _BODY
