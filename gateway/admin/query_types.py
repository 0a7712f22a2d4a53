"""Define operators' queries and filters, pages of results, and the errors that operators get."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, get_args

import msgspec

from gateway.admin.report_types import SESSION_STATES, SessionRow, SessionTotals, TaskRow, is_failure
from session_store import Task, TaskStatus, TimelineEntry, TimelineHead

SHORTEST_PREFIX: Final = 4
"""The minimum length of the beginning of an id by which an operator names a session or a task."""

TASK_STATUSES: Final[tuple[str, ...]] = (*get_args(TaskStatus), "tool_error")
"""The statuses of tasks. `tool_error`: the task is completed, and its tool has reported an error."""


@dataclass(frozen=True, slots=True)
class About:
    """The description of a REST parameter, in the annotation of an argument or field."""

    words: str = ""
    """The text of the description."""
    name: str = ""
    """The parameter's name in REST; empty if it is the name in Python."""
    most: int = 0
    """The maximum of a number; 0: none, or the parameter is no number."""


Limit = Annotated[int, About("Maximum number of items: 50 by default, at most 1000", most=1_000)]

ONLY: Final = ("all", "failing", "busy")


class OperatorError(Exception):
    """An operator's request cannot be done. The message says why, and what to do. `status` is the HTTP status."""

    status = 400


class NoSuch(OperatorError):
    """No session, task, replica, server or tool has the given name."""

    status = 404


class Ambiguous(OperatorError):
    """Several sessions, tasks or replicas have the given name, or an id that begins with it. `candidates`: some of the
    sessions."""

    status = 409

    def __init__(self, message: str, candidates: tuple[SessionRow, ...] = ()) -> None:
        super().__init__(message)
        self.candidates = candidates


class TooLate(OperatorError):
    """The request cannot be done in the present state of the named session or task, such as a task that has ended."""

    status = 409


class TooShort(OperatorError):
    """The given beginning of an id is too short. `what` is the kind of thing that was meant, such as `session`."""

    def __init__(self, what: str) -> None:
        super().__init__(f"give at least {SHORTEST_PREFIX} characters of the {what}'s id")


class UnknownHere(OperatorError):
    """A command that works on the store alone has asked for data that the store does not have. A running gateway has to
    be asked."""


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for tasks. The annotations of the fields describe them for REST.

    `query`: words that must all be in principal, endpoint, server, tool and message, taken together; or the beginning
    of the id of a task or of its session. `after`: `TaskPage.after` of the previous page; empty for the first page.
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

    def matches(self, task: Task) -> bool:
        """Return True if the task has the status `status`, and matches `query`: its facts contain all words, or its own
        id or its session's id begins with `query`."""
        if self.status not in ("", task.status) and not (self.status == "tool_error" and task.is_tool_error):
            return False
        facts = (str(task.principal), task.endpoint, task.server, task.tool, task.message)
        starts = task.id.startswith(self.query) or task.session_id.startswith(self.query)
        return starts or has_words(self.query, facts)


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tasks, newest first. `after`: the value of the parameter `after` in a query for the next page; empty if
    this is the last page."""

    tasks: list[TaskRow]
    after: str = ""


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter that selects sessions: those whose facts equal all fields that are set. `client` is a client's name
    without version, `server` a server that the session uses. `failing`: only sessions with failed calls.

    Raises:
        OperatorError: no field is set, which would mean all sessions; or `state` is none of `SESSION_STATES`.
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
        """Return the filter with these values. `values`: the text of each given field by its name, as in a URL's query.

        Raises:
            OperatorError: there are no values; a value is empty, which would select more sessions; or `state` or
                `failing` has an unknown value.
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
        """Return the fields that are set, as text by name. `of` makes an equal filter from them."""
        found = {name: value for name, value in msgspec.structs.asdict(self).items() if value}
        return found | ({"failing": "true"} if self.failing else {})

    def __str__(self) -> str:
        named = [f"{name} {value}" for name, value in self.given.items() if name != "failing"]
        return " and ".join([*named, *(["failing calls"] if self.failing else [])])


FILTERS: Final = SessionFilter.__struct_fields__

SORTS: Final = ("id", "used", "created", "calls", "failures", "last_failure", "in_flight", "memory")


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for live sessions. The annotations of the fields describe them for REST.

    - `query`: words that must all be in the facts about a session, taken together, or the beginning of its id; or the
      correlation id of a failed call or an audit event.
    - `only`: `all`, `failing` (with failed calls) or `busy` (with calls in flight, or waiting for the client).
    - `which`: a filter that the sessions must match, too; None: no filter.
    - `sort`: one of `SORTS`. Ids are in their order, all other values with the highest or latest first. If it is empty,
      `only` decides (`order`).
    - `after`: `Page.after` of the previous page; empty for the first page.

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
        """Return the sort order that applies, one of `SORTS`: `sort`, or its default. The default is `last_failure` for
        `failing`, `in_flight` for `busy`, and `id` for `all`."""
        return self.sort or {"failing": "last_failure", "busy": "in_flight"}.get(self.only, "id")

    @property
    def is_plain(self) -> bool:
        """Return True if the query is for all sessions in order of id, so that a page can be read from the store
        directly."""
        return not self.query and self.only == "all" and self.which is None and self.order == "id"


_DAY_S: Final = 86_400
_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_ZONE: Final = re.compile(r"-?[0-9]{1,3}")


class DayHours(msgspec.Struct, frozen=True, kw_only=True):
    """A period of every day: from the minute `since` to the minute `until`, both included. It may pass midnight. An
    empty `since` is the begin of the day, an empty `until` its end. The times are those of a clock that is `zone`
    minutes ahead of UTC.

    Raises:
        OperatorError: `since` or `until` is no time of day, or `zone` is no number of minutes.
    """

    since: Annotated[str, About("From this time of day on: HH:MM", name="from")] = ""
    until: Annotated[str, About("Up to this time of day, also behind midnight: HH:MM", name="to")] = ""
    zone: Annotated[str, About("How many minutes the clock of these times is ahead of UTC (0 by default)")] = ""

    def __post_init__(self) -> None:
        for name, text in (("from", self.since), ("to", self.until)):
            if text and not _CLOCK.fullmatch(text):
                raise OperatorError(f"{name}: must be a time of day, such as 14:30")
        if self.zone and not _ZONE.fullmatch(self.zone):
            raise OperatorError("zone: must be how many minutes the clock is ahead of UTC, such as -300")

    @property
    def are_all(self) -> bool:
        return not self.since and not self.until

    @property
    def clock(self) -> str:
        """Return the name of the clock for people, such as `UTC+05:45`."""
        ahead = int(self.zone or 0)
        return f"UTC{'-' if ahead < 0 else '+'}{abs(ahead) // 60:02}:{abs(ahead) % 60:02}" if ahead else "UTC"

    def meet(self, first: float, last: float) -> bool:
        """Return True if a part of the time from `first` to `last` (Unix time) is in these hours."""
        if self.are_all:
            return True
        begin, end = _minute(self.since or "00:00"), _minute(self.until or "23:59")
        begin_s, length_s = (begin - int(self.zone or 0)) * 60, ((end - begin) % 1_440 + 1) * 60
        return (begin_s - first) % _DAY_S <= last - first or (first - begin_s) % _DAY_S < length_s


def _minute(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)


def has_words(query: str, facts: Iterable[str]) -> bool:
    """Return True if every word of `query` is in the texts `facts`, taken together. Upper and lower case are equal.
    True for an empty query."""
    text = "\n".join(facts).lower()
    return all(word in text for word in query.lower().split())


def is_part(given: str, text: str) -> bool:
    """Return True if `text` contains `given`. Upper and lower case are equal. True for an empty `given`."""
    return given.lower() in text.lower()


class PastQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for sessions of the last day, live or ended. Fields that are not set restrict nothing. `query` has words
    to find in the facts about a session. `principal`, `client`, `server` and `tool` are parts of names. `failed`: only
    sessions with failed calls. `hours`: only sessions that were in use in these hours.

    If `server` or `tool` is set, one entry of the session's timeline must match `server`, `tool`, `failed` and `hours`
    at once.
    """

    query: Annotated[
        str,
        About("Words to find in id, principal, client, workspace, endpoint, era, and how it ended", name="q"),
    ] = ""
    principal: Annotated[str, About("With this part of a principal, as listed")] = ""
    client: Annotated[str, About("With this part of a client's name")] = ""
    server: Annotated[str, About("That used a server with this part of a name")] = ""
    tool: Annotated[str, About("That called a tool or method with this part of a name")] = ""
    failed: Annotated[bool, About("true: sessions in which calls have failed")] = False
    hours: DayHours = DayHours()
    limit: Limit = 50

    @property
    def is_of_entries(self) -> bool:
        """Return True if the entries of a session's timeline must be read to say whether it matches (`has_entry`);
        False if its head is enough (`matches`)."""
        return bool(self.server or self.tool)

    def matches(self, head: TimelineHead) -> bool:
        """Return True if the facts in the head of a session's timeline match all fields of the query except `server`
        and `tool`."""
        facts = (head.session, head.principal, head.client, head.workspace, head.endpoint, head.era, head.ended)
        last = max(head.updated_at, head.ended_at)
        return (
            is_part(self.principal, head.principal)
            and is_part(self.client, head.client)
            and (head.failed > 0 or not self.failed)
            and self.hours.meet(head.created_at or last, last)
            and has_words(self.query, facts)
        )

    def has_entry(self, entries: Iterable[TimelineEntry]) -> bool:
        """Return True if one of these entries matches `server`, `tool`, `failed` and `hours`."""
        return any(
            is_part(self.server, one.server)
            and is_part(self.tool, one.name)
            and (not self.failed or is_failure(one))
            and self.hours.meet(one.at, max(one.at, one.until))
            for one in entries
        )


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page of live sessions.

    - `after`: the value of the parameter `after` in a query for the next page; empty if this is the last page.
    - `totals`: totals of all sessions that match the query; None if they were not counted.
    - `unanswered`: the number of replicas that did not answer. Their sessions are missing.
    - `is_reading`: True while the sessions that no replica serves are still being read from the store, so that some
      are missing.
    """

    sessions: list[SessionRow]
    after: str = ""
    totals: SessionTotals | None = None
    unanswered: int = 0
    is_reading: bool = False
