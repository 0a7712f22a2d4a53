"""Define operators' queries and filters, pages of results, and the errors that operators get."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, get_args

import msgspec

from gateway.admin.reports import SESSION_STATES, SessionRow, SessionTotals, TaskRow
from session_store import Task, TaskStatus, TimelineHead

SHORTEST_PREFIX: Final = 4
"""The minimum length of the beginning of an id by which an operator names a session or a task."""

TASK_STATUSES: Final[tuple[str, ...]] = (*get_args(TaskStatus), "tool_error")
"""The statuses of tasks. `tool_error`: the task is completed, and its tool has reported an error."""


@dataclass(frozen=True, slots=True)
class About:
    """The description of a REST parameter. `words`: its text. `name`: its name in REST, if that is not the name in
    Python. `most`: the maximum of a number."""

    words: str = ""
    name: str = ""
    most: int = 0


Limit = Annotated[int, About("Maximum number of items: 50 by default, at most 1000", most=1_000)]

ONLY: Final = ("all", "failing", "busy")


class OperatorError(Exception):
    """An operator's request cannot be done. The message says why, and what to do. `status` is the HTTP status."""

    status = 400


class NoSuch(OperatorError):
    """No session, task, replica, server or tool has the given name."""

    status = 404


class Ambiguous(OperatorError):
    """Several sessions, tasks or replicas have the given name. `candidates` are some of the sessions."""

    status = 409

    def __init__(self, message: str, candidates: tuple[SessionRow, ...] = ()) -> None:
        super().__init__(message)
        self.candidates = candidates


class TooLate(OperatorError):
    """The state of the named session or task does not allow the request."""

    status = 409


class TooShort(OperatorError):
    """The given beginning of an id is too short. `what` is the kind of thing that was meant, such as `session`."""

    def __init__(self, what: str) -> None:
        super().__init__(f"give at least {SHORTEST_PREFIX} characters of the {what}'s id")


class UnknownHere(OperatorError):
    """The store alone does not have the data; a running gateway has to be asked."""


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for tasks.

    `query` has words to find in principal, endpoint, server, tool and message; or the beginning of the id of a task or
    of its session. `status` is one of `TASK_STATUSES`; empty: all. `after` is the `after` of the previous page.
    """

    query: Annotated[
        str,
        About("Words to find in principal, endpoint, server, tool or message; or how an id begins", name="q"),
    ] = ""
    status: Annotated[str, About(f"Of this status only: {', '.join(TASK_STATUSES)}")] = ""
    limit: Limit = 50
    after: Annotated[str, About("Start after this entry: `after` of the previous page")] = ""

    def __post_init__(self) -> None:
        if self.status and self.status not in TASK_STATUSES:
            raise OperatorError(f"status: must be one of {', '.join(TASK_STATUSES)}")

    @property
    def matches_all(self) -> bool:
        """Return True if the query selects all tasks."""
        return not self.query and not self.status

    def matches(self, task: Task) -> bool:
        """Return True if the task has the given status and matches `query`: its facts contain all words, or its own or
        its session's id begins with it."""
        if self.status not in ("", task.status) and not (self.status == "tool_error" and task.is_tool_error):
            return False
        facts = (str(task.principal), task.endpoint, task.server, task.tool, task.message)
        text = "\n".join(facts).lower()
        starts = task.id.startswith(self.query) or task.session_id.startswith(self.query)
        return starts or all(word in text for word in self.query.lower().split())


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tasks, newest first. `after` is where the next page begins; empty if there is none."""

    tasks: list[TaskRow]
    after: str = ""


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter that selects the sessions with all given values; they must be equal. `client` is a client's name,
    `server` the name of a server that the session uses, `state` one of `SESSION_STATES`. `failing`: only sessions with
    failed calls.

    Raises:
        OperatorError: no value is given, which would mean all sessions; or there is no such state.
    """

    principal: Annotated[str, About("The principal, as listed")] = ""
    client: Annotated[str, About("The client's name, without its version")] = ""
    workspace: Annotated[str, About("The workspace")] = ""
    server: Annotated[str, About("The name of a server that the session uses")] = ""
    state: Annotated[str, About(f"{', '.join(SESSION_STATES)} (no replica serves it until its client comes back)")] = ""
    failing: Annotated[bool, About("true: sessions in which calls have failed")] = False

    def __post_init__(self) -> None:
        if not any(msgspec.structs.astuple(self)):
            raise OperatorError(
                "name the sessions: give a principal, a client or a workspace, a server, a state, or failing"
            )
        if self.state and self.state not in SESSION_STATES:
            raise OperatorError(f"state: must be one of {', '.join(SESSION_STATES)}")

    @classmethod
    def of(cls, values: Mapping[str, str]) -> "SessionFilter":
        """Return the filter with these values.

        Raises:
            OperatorError: a value is empty, which would select more sessions; or a name or value is unknown.
        """
        if empty := [name for name, value in values.items() if not value]:
            raise OperatorError(f"{empty[0]}: is empty; give a value, or leave it out")
        if values.get("failing", "true") != "true":
            raise OperatorError("failing: must be true, or left out")
        texts = {name: value for name, value in values.items() if name != "failing"}
        return cls(**texts, failing="failing" in values)

    @property
    def is_of_records(self) -> bool:
        """Return True if the records in the store are enough to apply the filter: no replica has to be asked."""
        return not self.state and not self.failing

    @property
    def given(self) -> dict[str, str]:
        """Return the values that are set, as text by name, in the form that `of` reads."""
        found = {name: value for name, value in msgspec.structs.asdict(self).items() if value}
        return found | ({"failing": "true"} if self.failing else {})

    def __str__(self) -> str:
        named = [f"{name} {value}" for name, value in self.given.items() if name != "failing"]
        return " and ".join([*named, *(["failing calls"] if self.failing else [])])


FILTERS: Final = SessionFilter.__struct_fields__

SORTS: Final = ("id", "used", "created", "calls", "failures", "last_failure", "in_flight", "memory")


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for live sessions.

    `query` has words to find in id, principal, client, workspace, endpoint, era, trust, owner and servers; or the
    correlation id of a failed call or an audit event. `only` is `all`, `failing` (with failed calls) or `busy` (with
    calls in flight). `after` is the `after` of the previous page. `sort` is one of `SORTS`: ids in their order, other
    values with the highest or latest first. If it is empty, `failing` is sorted by the last failure, `busy` by calls in
    flight, and `all` by id.

    Raises:
        OperatorError: `only` or `sort` has no such value.
    """

    query: Annotated[
        str,
        About(
            "Words in id, principal, client, workspace, endpoint, era, trust, owner, servers; or a correlation id",
            name="q",
        ),
    ] = ""
    only: Annotated[str, About("all, failing (the latest failure first), or busy (the most calls in flight first)")] = (
        "all"
    )
    which: SessionFilter | None = None
    sort: Annotated[
        str, About(f"{', '.join(SORTS)}: the highest or latest first, ids in their order (id by default)")
    ] = ""
    limit: Limit = 50
    after: Annotated[
        str, About("Start after this entry: `after` of the previous page, with the same filter and order")
    ] = ""

    def __post_init__(self) -> None:
        for name, value, known in (("only", self.only, ONLY), ("sort", self.sort, ("", *SORTS))):
            if value not in known:
                raise OperatorError(f"{name}: must be one of {', '.join(filter(None, known))}")

    @property
    def order(self) -> str:
        """Return the sort order that applies: one of `SORTS`."""
        return self.sort or {"failing": "last_failure", "busy": "in_flight"}.get(self.only, "id")

    @property
    def is_plain(self) -> bool:
        """Return True if the query is for all sessions, in order of id."""
        return not self.query and self.only == "all" and self.which is None and self.order == "id"


class PastQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for sessions of the last day, live or ended. `query` has words to find in their facts; `principal` and
    `client` must be equal."""

    query: Annotated[
        str,
        About("Words to find in id, principal, client, workspace, endpoint, era, and how it ended", name="q"),
    ] = ""
    principal: Annotated[str, About("Of this principal only, as listed")] = ""
    client: Annotated[str, About("Of clients with this name only")] = ""
    limit: Limit = 50

    def matches(self, head: TimelineHead) -> bool:
        """Return True if the session has the given principal and client, and its facts contain all words of the
        query."""
        facts = (head.session, head.principal, head.client, head.workspace, head.endpoint, head.era, head.ended)
        text = "\n".join(facts).lower()
        return (
            self.principal in ("", head.principal)
            and self.client in ("", head.client)
            and all(word in text for word in self.query.lower().split())
        )


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page of sessions. `after` is where the next page begins; empty if there is none. `totals` are of all sessions
    that match; None if they are not counted. `unanswered`: the number of replicas that did not answer; their sessions
    are missing. `is_reading`: sessions that no replica serves are still being read from the store, so some are
    missing."""

    sessions: list[SessionRow]
    after: str = ""
    totals: SessionTotals | None = None
    unanswered: int = 0
    is_reading: bool = False
