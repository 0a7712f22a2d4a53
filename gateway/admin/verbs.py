"""Define the operators' verbs: the requests that operators can make, and how REST receives them.

A verb is a method of `Operators`. Its decorator gives its place in REST, its annotations give the parameters and the
answer. Routes, OpenAPI and the client of the commands are derived from these.
`gateway.admin.verb_handlers` implements the verbs.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol, TypeVar, get_args, get_origin

import msgspec

from gateway.admin.query_types import (
    About,
    OperatorError,
    Page,
    PastQuery,
    SessionFilter,
    SessionQuery,
    TaskPage,
    TaskQuery,
)
from gateway.admin.report_types import (
    RANGES,
    Approval,
    Attempt,
    CatalogPage,
    FramesPage,
    HistoryView,
    Range,
    ReloadReport,
    ReplicaReport,
    ServerRow,
    SessionEnvironment,
    SessionRow,
    SessionTimeline,
    StderrPage,
    TaskRow,
    TriedCall,
    UnapprovedRow,
    UsageBy,
    UsageRow,
)
from gateway.calls.messages_for_operators import MOST_FRAMES
from gateway.context.consented_tokens import Connection
from gateway.sessions.client_return_tracking import ClientWarning
from gateway.version import __version__
from session_store import TimelineHead

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An argument of a verb, as REST and commands pass it."""

    at: str
    """The argument's name in Python."""
    name: str
    """Its name in REST."""
    kind: Any
    """Its type."""
    default: Any
    about: About
    within: "tuple[Parameter, ...]" = ()
    """If the type is a struct: one parameter for each field. REST gets these in place of the struct."""

    def read(self, given: Mapping[str, str]) -> Any:
        """Return the argument's value from the parameters of a request, which `given` has as text by name. If its
        parameter is missing, return the default. Raises `OperatorError` if the value is invalid."""
        if self.kind is SessionFilter:
            named = {one.name: given[one.name] for one in self.within if one.name in given}
            return SessionFilter.of(named) if named or self.default is not None else None
        if self.within:
            return self.kind(**{one.at: one.read(given) for one in self.within})
        text = given.get(self.name, "")
        if not text:
            return self.default
        if (among := get_args(self.kind)) and text not in among:
            raise OperatorError(f"{self.name}: must be one of {', '.join(filter(None, among))}")
        if self.kind is bool and text != "true":
            raise OperatorError(f"{self.name}: must be true, or left out")
        if self.kind is not int:
            return self.kind is bool or text
        most = self.about.most
        if not text.isascii() or not text.isdigit() or len(text) > 17 or (most and not 1 <= int(text) <= most):
            right = f"from 1 to {most}" if most else f"`{self.name}` of the previous page"
            raise OperatorError(f"{self.name}: must be a number{' ' if most else ', '}{right}")
        return int(text)

    def written(self, value: Any) -> dict[str, str]:
        """Return the parameters of a request that pass `value` as this argument: the reverse of `read`. Empty values
        are left out."""
        if self.within and value is not None:
            return {name: text for one in self.within for name, text in one.written(getattr(value, one.at)).items()}
        return {self.name: "true" if value is True else str(value)} if value else {}

    @property
    def flat(self) -> "Iterable[Parameter]":
        """Return the REST parameters that pass this argument: the parameter itself, or those of its fields."""
        return (flat for one in self.within for flat in one.flat) if self.within else (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A row in the table of verbs: a method of `Operators`, and how REST receives and answers it."""

    name: str
    """The name of the method."""
    method: str
    """The HTTP method."""
    path: str
    summary: str
    takes: tuple[Parameter, ...]
    """The arguments that come from the URL."""
    gives: Any
    """The type of the method's result."""
    answers: str
    """The key of the result in the object that REST returns; if empty, REST returns the result itself."""
    is_exact: bool
    """True if REST refuses unknown parameters, because a mistyped filter would select more."""
    by: bool
    """True if the method gets the name of the operator."""
    sends: Any
    """The type of the request's body; None if it has none."""

    @property
    def type(self) -> Any:
        """Return the type of what REST answers: that of the result, or of the object with the key `answers`."""
        return dict[str, self.gives] if self.answers else self.gives  # type: ignore[name-defined]  # it is made at run time


VERBS: Final[list[Verb]] = []

By = Annotated[str, "the name of the operator, empty where it is not known"]


def verb(
    method: str, path: str, *, answers: str = "", is_exact: bool = False, sends: Any = None
) -> Callable[[Method], Method]:
    """Add the decorated method to the table of verbs. Its summary in OpenAPI is the first paragraph of its docstring.
    `method` and `path`: the HTTP method, and the path below the REST interface. `answers`, `is_exact` and `sends`: as
    in `Verb`."""

    def known(declared: Method) -> Method:
        signature = inspect.signature(declared)
        _, *given = signature.parameters.values()
        fields = [(one.name, one.annotation, one.default) for one in given if one.annotation not in (By, sends)]
        VERBS.append(
            Verb(
                name=declared.__name__,
                method=method,
                path=path,
                summary=" ".join((inspect.getdoc(declared) or "").partition("\n\n")[0].split()).rstrip("."),
                takes=_parameters(fields),
                gives=signature.return_annotation,
                answers=answers,
                is_exact=is_exact,
                by=any(one.annotation == By for one in given),
                sends=sends,
            )
        )
        return declared

    return known


def _parameters(fields: Iterable[tuple[str, Any, Any]]) -> tuple[Parameter, ...]:
    found = []
    for at, annotation, default in fields:
        kind, *more = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        about = next((one for one in more if isinstance(one, About)), About())
        structs = [one for one in (kind, *get_args(kind)) if isinstance(one, type) and issubclass(one, msgspec.Struct)]
        within = [(each.name, each.type, each.default) for one in structs for each in msgspec.structs.fields(one)]
        found.append(
            Parameter(
                at=at,
                name=about.name or at,
                kind=structs[0] if structs else kind,
                default=default,
                about=about,
                within=_parameters(within),
            )
        )
    return tuple(found)


SessionName = Annotated[str, About("How its id begins: 4 characters or more, as listed", name="session")]
TaskName = Annotated[
    str, About("How its id begins: 4 characters or more, as listed; or the id that its client has", name="task")
]
ReplicaName = Annotated[str, About("How its name begins", name="replica")]
Over = Annotated[Range, About(f"How far to look back: {', '.join(RANGES)} (15m by default)", name="range")]
After = Annotated[
    int, About("The oldest entries after this number: `after` of the previous page. If left out: the newest")
]
Reason = Annotated[
    str, About("Why, in at most 200 characters, for the audit trail; required for a session of somebody else")
]
FramesLimit = Annotated[int, About(f"Maximum number of items: 100 by default, at most {MOST_FRAMES}", most=MOST_FRAMES)]


class Operators(Protocol):
    """The verbs: what operators can ask for, in any interface. `prefix` is the beginning of the id of a session (at
    least `SHORTEST_PREFIX` characters; empty: the only live session) or task, or of the name of a replica. `by`: the
    operator's name; empty if unknown.

    Every method may raise `StoreUnavailable` or an `OperatorError`: `NoSuch`, `Ambiguous` or `TooShort` if `prefix`
    does not name exactly one session, task or replica.
    """

    @property
    def sees_calls(self) -> bool:
        """Return True if running gateways can be asked, so that calls, processes, failures and replicas are known."""
        ...

    def follow(self, session: str = "") -> AsyncIterator[dict[str, Any]]:
        """Yield audit events as they happen, each once, oldest first, until the replica that is asked drains.
        `session`: at least 8 characters of the beginning of a session's id, whose events are wanted; empty: all."""
        ...

    # -- sessions

    @verb("GET", "/sessions")
    async def sessions(self, query: SessionQuery) -> Page:
        """List the live sessions of all replicas, page by page: those that match all given parameters, and their
        totals."""
        ...

    @verb("GET", "/sessions/{session}")
    async def session(self, prefix: SessionName) -> SessionRow:
        """Show one session: its record, its processes, last failures, what its sandboxes refused, keys of its state."""
        ...

    @verb("DELETE", "/sessions/{session}", answers="ended")
    async def end(self, prefix: SessionName, by: By = "") -> str:
        """End a session at once, on every replica.

        Returns the beginning of the session's id.
        """
        ...

    @verb("DELETE", "/sessions", answers="ended", is_exact=True)
    async def end_all(self, which: SessionFilter, by: By = "") -> int:
        """End all sessions that have every given value; at least one is required.

        Returns the number of ended sessions.
        """
        ...

    @verb("GET", "/sessions/{session}/timeline")
    async def timeline(self, prefix: SessionName) -> SessionTimeline:
        """Show what happened in a session that is live or has ended in the last day, in order of time."""
        ...

    @verb("GET", "/sessions/{session}/environment")
    async def environment(self, prefix: SessionName) -> SessionEnvironment:
        """Show what the servers of a live session were given (variables, folders, no secret), and why the session sees
        what it sees."""
        ...

    @verb("GET", "/timelines")
    async def past_sessions(self, query: PastQuery) -> list[TimelineHead]:
        """List the sessions of the last day, live and ended, the last used first, without their entries.

        A server or a tool is looked for in the newest 200 entries of the newest 500 sessions that match otherwise.
        """
        ...

    @verb("GET", "/sessions/{session}/frames")
    async def frames(self, prefix: SessionName, by: By, *, after: After = 0, limit: FramesLimit = 100) -> FramesPage:
        """Read the messages (frames) that are recorded of a session, redacted; as an event stream, also new ones as
        they pass.

        Returns at most `limit` messages: the newest, or with `after` the oldest with a higher number.
        """
        ...

    @verb("PUT", "/sessions/{session}/frames")
    async def switch_frames_on(self, prefix: SessionName, by: By, reason: Reason = "") -> FramesPage:
        """Record the messages (frames) and stderr lines of a session for the next 10 minutes.

        Returns a page without messages, which says when this ends. Raises `TooLate` if no replica serves the session
        now.
        """
        ...

    @verb("DELETE", "/sessions/{session}/frames")
    async def switch_frames_off(self, prefix: SessionName, by: By) -> FramesPage:
        """Stop recording the messages (frames) and stderr lines of a session, and delete those that were recorded.

        Returns an empty page.
        """
        ...

    @verb("GET", "/sessions/{session}/stderr")
    async def stderr(self, prefix: SessionName, by: By, *, after: After = 0, limit: FramesLimit = 100) -> StderrPage:
        """Read the stderr lines that are recorded of a session's servers, redacted; as an event stream, also new ones
        as they come. If nothing is recorded of the session, read the last lines of each server.

        Returns at most `limit` recorded lines: the newest, or with `after` the oldest with a higher number.
        """
        ...

    # -- tasks

    @verb("GET", "/tasks")
    async def tasks(self, query: TaskQuery) -> TaskPage:
        """List the tasks of all sessions, newest first, page by page. Tasks that are over stay until they expire."""
        ...

    @verb("GET", "/tasks/{task}")
    async def task(self, prefix: TaskName) -> TaskRow:
        """Show one task: who made it, what it calls, and its outcome."""
        ...

    @verb("DELETE", "/tasks/{task}", answers="cancelled")
    async def cancel_task(self, prefix: TaskName, by: By = "") -> str:
        """Cancel the call of a task on whichever replica runs it (409: it is over); its record stays.

        Returns the beginning of the task's id. Raises `TooLate` if the task is over, or no replica runs it now.
        """
        ...

    # -- tools

    @verb("GET", "/catalog")
    async def catalog(
        self,
        query: Annotated[str, About("Words in server, name, title, description", name="q")] = "",
        server: Annotated[str, About("The tools of this server only")] = "",
        limit: Annotated[int, About("Maximum number of items: 100 by default, at most 1000", most=1_000)] = 100,
    ) -> CatalogPage:
        """List the tools of all servers, with their schemas, as the servers have listed them to the gateway."""
        ...

    @verb("GET", "/lock", answers="unapproved")
    async def unapproved(
        self, server: Annotated[str, About("The items of this server only")] = ""
    ) -> list[UnapprovedRow]:
        """List what servers offer and the lock hides (tools, prompts, templates), as the asked replica has seen it."""
        ...

    @verb("POST", "/lock", answers="replicas", sends=Approval)
    async def approve(self, approval: Approval, by: By = "") -> list[ReloadReport]:
        """Write an item that the lock hides, named by its digest, into the lock, and have all replicas load it.

        Returns what each replica did. Raises `OperatorError` if the lock cannot be written.
        """
        ...

    @verb("POST", "/calls", sends=Attempt)
    async def call(self, attempt: Attempt, by: By = "") -> TriedCall:
        """Call a tool, in a fresh session that ends after the call (or is kept), or in a live one."""
        ...

    # -- credentials

    @verb("GET", "/credentials", answers="credentials")
    async def credentials(self) -> list[Connection]:
        """List who has connected an account to which server, by consent. No token is shown."""
        ...

    @verb("DELETE", "/credentials", answers="revoked", is_exact=True)
    async def revoke(
        self,
        principal: Annotated[str, About("Whose credentials, as listed")] = "",
        secret: Annotated[str, About("The credentials of this name only")] = "",
        by: By = "",
    ) -> int:
        """Remove connected credentials: of a principal, of a name, or of a principal and a name; at least one is
        required.

        Returns the number of removed credentials.
        """
        ...

    # -- how much

    @verb("GET", "/history")
    async def history(
        self,
        over: Over = "15m",
        server: Annotated[str, About("Calls of this server only")] = "",
        tool: Annotated[str, About("Calls of this tool or method only")] = "",
    ) -> HistoryView:
        """Show calls, failures, durations and live sessions of all replicas together, step by step."""
        ...

    @verb("GET", "/usage")
    async def usage(
        self,
        by: Annotated[UsageBy, About(f"{', '.join(get_args(UsageBy))} (tool by default)")] = "tool",
        over: Over = "15m",
    ) -> list[UsageRow]:
        """List how much each tool, server, principal or client was used in a range, the most calls first."""
        ...

    @verb("GET", "/tools")
    async def tools(self, over: Over = "15m") -> list[UsageRow]:
        """List calls, failures and durations of each tool in a range, the most calls first."""
        ...

    @verb("GET", "/servers")
    async def servers(self, over: Over = "15m") -> list[ServerRow]:
        """List the configured servers on all replicas together: state, starts, processes, last output, use by tool."""
        ...

    # -- replicas

    @verb("GET", "/replicas")
    async def replicas(self) -> list[ReplicaReport]:
        """List all replicas: their counts, and their last five minutes, second by second.

        A replica that does not answer is `silent`.
        """
        ...

    @verb("GET", "/warnings")
    async def warnings(self) -> list[ClientWarning]:
        """List clients that return to no session, or share one, each with the setting that mends it."""
        ...

    @verb("POST", "/replicas/{replica}/drain", answers="drained")
    async def drain(self, prefix: ReplicaName, by: By = "") -> str:
        """Have a replica take no new sessions, and wait until it has handed its own to the others.

        Returns the replica's name.
        """
        ...

    @verb("DELETE", "/replicas/{replica}/drain", answers="admitted")
    async def admit(self, prefix: ReplicaName, by: By = "") -> str:
        """Have a drained replica take sessions again.

        Returns the replica's name.
        """
        ...

    @verb("POST", "/reload", answers="replicas")
    async def reload(self, by: By = "") -> list[ReloadReport]:
        """Have all replicas load their configuration again. Each applies all of it, or nothing.

        Returns what each replica did.
        """
        ...

    # -- events

    @verb("GET", "/events")
    async def events(
        self,
        limit: Annotated[int, About("Maximum number of items: 100 by default, at most 10000", most=10_000)] = 100,
        session: Annotated[
            str, About("Of this session only, among the newest 2000: how its id begins, 8 characters")
        ] = "",
    ) -> list[dict[str, Any]]:
        """List audit events, newest first; as an event stream (Accept: text/event-stream), new ones as they happen."""
        ...


def openapi(base: str) -> dict[str, Any]:
    """Return the description of all verbs in OpenAPI 3.1, as data to encode as JSON. `base`: the path prefix of their
    routes."""
    kinds = [kind for one in VERBS for kind in (one.type, one.sends)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for component in components.values():
        if "description" in component:  # a docstring with its indent, which Markdown would show as code
            component["description"] = inspect.cleandoc(component["description"])
    problem = {
        "description": "It gets no further",
        "content": {
            "application/problem+json": {
                "schema": {
                    "type": "object",
                    "properties": {"status": {"type": "integer"}, "detail": {"type": "string"}},
                    "required": ["status", "detail"],
                }
            }
        },
    }
    paths: dict[str, Any] = {}
    for one, schema, body in zip(VERBS, schemas[::2], schemas[1::2], strict=True):
        sent = {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}
        paths.setdefault(base + one.path, {})[one.method.lower()] = {
            "operationId": one.name,
            "summary": one.summary,
            "parameters": [
                {
                    "name": parameter.name,
                    "in": "path" if f"{{{parameter.name}}}" in one.path else "query",
                    "description": parameter.about.words,
                    "required": f"{{{parameter.name}}}" in one.path,
                    "schema": {"type": "integer" if parameter.about.most else "string"},
                }
                for taken in one.takes
                for parameter in taken.flat
            ],
            **(sent if one.sends is not None else {}),
            "responses": {
                "200": {"description": "Done", "content": {"application/json": {"schema": schema}}},
                "default": problem,
            },
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "MCP Session Gateway: operations", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }
