"""Define operators' queries and filters, pages of results, and the errors that operators get."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, get_args

import msgspec

from gateway.admin.reports import SESSION_STATES, SessionRow, SessionTotals, TaskRow
from session_store import Task, TaskStatus, TimelineHead

SHORTEST_PREFIX: Final = 4
"""The fewest characters of a session's id that name it."""

TASK_STATUSES: Final[tuple[str, ...]] = (*get_args(TaskStatus), "tool_error")
"""What becomes of a task. `tool_error`: it is completed, and its tool has reported an error."""


@dataclass(frozen=True, slots=True)
class About:
    """The description of a parameter in REST: `words` for its text, `name` if its name differs there, and `most` for
    its highest number."""

    words: str = ""
    name: str = ""
    most: int = 0


Limit = Annotated[int, About("Maximum number of items: 50 by default, at most 1000", most=1_000)]

ONLY: Final = ("all", "failing", "busy")


class OperatorError(Exception):
    """An operator's request cannot be done. The message says why, and what to do. `status` is the HTTP status."""

    status = 400


class NoSuch(OperatorError):
    """Nothing has that name."""

    status = 404


class Ambiguous(OperatorError):
    """Several things have that name. `candidates` are some of them if they are sessions."""

    status = 409

    def __init__(self, message: str, candidates: tuple[SessionRow, ...] = ()) -> None:
        super().__init__(message)
        self.candidates = candidates


class TooLate(OperatorError):
    """The named thing is not in a state in which this can be done."""

    status = 409


class TooShort(OperatorError):
    """The given beginning of an id is too short. `what` is the kind of thing it should name."""

    def __init__(self, what: str) -> None:
        super().__init__(f"give at least {SHORTEST_PREFIX} characters of the {what}'s id")


class UnknownHere(OperatorError):
    """This model of operators does not have the data: a store alone, or a gateway, where the other one has it."""


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for tasks.

    `query` holds words to find in principal, endpoint, server, tool and message; or how the id of a task or of its
    session begins. `status` is one of `TASK_STATUSES`, or empty for all. `after` is the last task of the page before.
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
        """Return True if no task is left out."""
        return not self.query and not self.status

    def matches(self, task: Task) -> bool:
        """Return True if the task has that status, and all words of the query occur in its facts."""
        if self.status not in ("", task.status) and not (self.status == "tool_error" and task.is_tool_error):
            return False
        facts = (str(task.principal), task.endpoint, task.server, task.tool, task.message)
        text = "\n".join(facts).lower()
        starts = task.id.startswith(self.query) or task.session_id.startswith(self.query)
        return starts or all(word in text for word in self.query.lower().split())


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some tasks, newest first, and where the next page begins (empty: there is none)."""

    tasks: list[TaskRow]
    after: str = ""


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for sessions that have every given value, exactly. `client` is a client's name, `server` one that the
    session uses, `state` one of `SESSION_STATES`. `failing`: only sessions in which calls have failed.

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
            OperatorError: a value is empty, which would widen the filter, or a name or value is unknown.
        """
        if empty := [name for name, value in values.items() if not value]:
            raise OperatorError(f"{empty[0]}: is empty; give a value, or leave it out")
        if values.get("failing", "true") != "true":
            raise OperatorError("failing: must be true, or left out")
        texts = {name: value for name, value in values.items() if name != "failing"}
        return cls(**texts, failing="failing" in values)

    @property
    def is_of_records(self) -> bool:
        """Return True if the sessions' records alone are enough to apply the filter."""
        return not self.state and not self.failing

    @property
    def given(self) -> dict[str, str]:
        """Return the values that are given, as text by name. `of` reads them."""
        found = {name: value for name, value in msgspec.structs.asdict(self).items() if value}
        return found | ({"failing": "true"} if self.failing else {})

    def __str__(self) -> str:
        named = [f"{name} {value}" for name, value in self.given.items() if name != "failing"]
        return " and ".join([*named, *(["failing calls"] if self.failing else [])])


FILTERS: Final = SessionFilter.__struct_fields__

SORTS: Final = ("id", "used", "created", "calls", "failures", "last_failure", "in_flight", "memory")


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for live sessions.

    `query` holds words to find in id, principal, client, workspace, endpoint, era, trust, owner and servers; or a
    correlation id of a failed call or an audit event. `only` selects all sessions, those with failed calls, or those
    with calls in flight. `after` is the `after` of the page before. `sort`: by id, or by the highest or latest value.
    If it is empty, `failing` is sorted by the last failure, `busy` by calls in flight, and `all` by id.

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
        """Return the name of the order in which the sessions are listed."""
        return self.sort or {"failing": "last_failure", "busy": "in_flight"}.get(self.only, "id")

    @property
    def is_plain(self) -> bool:
        """Return True if the query is for all sessions, in order of id."""
        return not self.query and self.only == "all" and self.which is None and self.order == "id"


class PastQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for sessions of the last day, live or ended. `query` holds words to find in their facts; `principal` and
    `client` are compared exactly."""

    query: Annotated[
        str,
        About("Words to find in id, principal, client, workspace, endpoint, era, and how it ended", name="q"),
    ] = ""
    principal: Annotated[str, About("Of this principal only, as listed")] = ""
    client: Annotated[str, About("Of clients with this name only")] = ""
    limit: Limit = 50

    def matches(self, head: TimelineHead) -> bool:
        """Return True if the session has all given values."""
        facts = (head.session, head.principal, head.client, head.workspace, head.endpoint, head.era, head.ended)
        text = "\n".join(facts).lower()
        return (
            self.principal in ("", head.principal)
            and self.client in ("", head.client)
            and all(word in text for word in self.query.lower().split())
        )


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Some sessions, and where the next page begins (empty: there is none). `totals` are of all sessions that the query
    is about; None where they are not counted. `unanswered`: replicas that did not answer, whose sessions are missing.
    `is_reading`: sessions that no replica serves are still being looked for in the store, and some are missing.
    """

    sessions: list[SessionRow]
    after: str = ""
    totals: SessionTotals | None = None
    unanswered: int = 0
    is_reading: bool = False
