"""Define the values that operators are shown. They travel between replicas and out by REST, and contain no whole id.

Times are seconds; memory is bytes.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import msgspec

from gateway.calls.session_frames import SeenFrame, StderrLine
from gateway.observability.metrics import Sample
from gateway.observability.observed_call import Counted, Failure
from gateway.sandbox.refusals import RefusedRow
from gateway.sessions.returns import UnreturningClient
from session_store import Session, TimelineEntry, TimelineHead
from session_store.session import redact
from transports.jsonrpc import Object

Origin = Literal["inherited", "sandbox", "package", "session", "rule", "configuration", "secret", "gateway"]
"""Where a variable or a header comes from: the gateway's own environment, the sandbox, the package that the command
names, the context of the session, a rule of the policy, the configuration of the server, a secret of the principal, or
the gateway itself."""

SessionState = Literal["idle", "busy", "waiting", "draining", "detached"]
"""`busy`: a call is in flight. `waiting`: a call waits for its client. `draining`: its replica hands it over.
`detached`: no replica serves it now; the next request of its client attaches it to one."""

SESSION_STATES: Final = get_args(SessionState)
MOST_DEAD: Final = 5
"""How many dead processes of a server are shown."""

Outcome = Literal["ok", "tool_error", "error", "asks", "timeout", "too_large", "unreadable"]


Range = Literal["5m", "15m", "1h", "6h", "24h"]

RANGES: Final[dict[Range, tuple[int, int]]] = {
    "5m": (300, 60),
    "15m": (900, 60),
    "1h": (3_600, 60),
    "6h": (21_600, 600),
    "24h": (86_400, 600),
}
"""The ranges of the history. Each has its length, and the length of the records that it is made of, in seconds."""

UsageBy = Literal["tool", "server", "principal", "client"]


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step: when it began (Unix time), calls that ended in it, how many failed, and their durations in seconds.
    `sessions`: live at its end on all replicas."""

    at: int
    calls: int = 0
    failed: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    sessions: int = 0


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """A range of the history: its points in order of time, `step_s` apart. The last one is not over yet."""

    range: Range
    step_s: int
    points: list[HistoryPoint]


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Use in a range. `name` is the tool or the method, the principal or the client; `server` is empty for those two.
    Durations are in seconds and known for tools and servers, `sessions` (opened in the range) for principals and
    clients."""

    name: str
    server: str = ""
    calls: int = 0
    failed: int = 0
    per_min: float = 0.0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    sessions: int = 0


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable of a process, or a header. `where` is the setting or the field that it comes from.
    `value` is None if it is not shown."""

    name: str
    origin: Origin
    where: str = ""
    value: str | None = None


class HiddenTools(msgspec.Struct, frozen=True, kw_only=True):
    """Tools of one server that a session does not see for one reason: how many, and the first of their names."""

    reason: str
    count: int
    names: list[str] = []


class ServerEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a session.

    `kind`: `command`, `url` or `object`. `hidden`: why the session does not see it; empty if it does. `shared`: one
    process or connection is for all sessions. `pid`: its process; None if none runs. `injected`: variables, folders and
    profile are those of a link that is open; otherwise they are what the next one will get, as far as that is known.
    `cwd`, `home` and `temporary` are folders. `sandbox` is the profile in the lines of `sandbox explain`,
    and `holds` the same as data. `tools`: how many it lists; None if that is not known. `visible_tools`: how many of
    them the session sees. `era`: in which the gateway speaks with it; empty if that is not known yet. `why`: sentences.
    """

    server: str
    kind: str
    hidden: str = ""
    shared: bool = False
    era: str = ""
    pid: int | None = None
    injected: bool = False
    cwd: str = ""
    home: str = ""
    temporary: str = ""
    profile: str = ""
    sandbox: list[str] = []
    holds: dict[str, Any] = {}
    variables: list[Variable] = []
    headers: list[Variable] = []
    more_variables: int = 0
    tools: int | None = None
    visible_tools: int = 0
    hidden_tools: list[HiddenTools] = []
    why: list[str] = []


class SessionEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What the servers of a session were given, and why the session sees what it sees.

    `replica`: which one says so. `held`: it serves the session; otherwise it says what the record and its own
    configuration say. `why`: sentences about the session, in the order in which a request is decided. `more_servers`:
    how many servers are left out.
    """

    session: str
    replica: str
    held: bool
    endpoint: str
    principal: str
    trust: str
    why: list[str] = []
    servers: list[ServerEnvironment] = []
    more_servers: int = 0


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A server's link of one session, or of all that share it: its process, where it has one."""

    server: str
    era: str
    pid: int | None = None
    memory_bytes: int = 0
    restarts: int = 0
    in_flight: int = 0
    stderr: list[str] = []


class SessionPart(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that only the replica that serves a session knows, in addition to its record. `id` is the full id."""

    id: str
    state: SessionState = "idle"
    calls: int = 0
    failed: int = 0
    in_flight: int = 0
    parked: int = 0
    streams: int = 0
    memory_bytes: int = 0
    servers: list[str] = []
    processes: list[ProcessFacts] = []
    failures: list[Failure] = []
    refused: list[RefusedRow] = []

    @property
    def failed_at(self) -> float:
        """Return the Unix time of the last failed call; 0 if there is none."""
        return self.failures[0].at if self.failures else 0.0


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session as operators see it; `session` is how its id begins. `state` is one of `SESSION_STATES`.
    `memory_bytes`: of its server processes, about."""

    session: str
    principal: str
    endpoint: str
    era: str
    client: str
    workspace: str
    trust: str
    permissions: tuple[str, ...]
    age_s: float
    idle_s: float
    expires_in_s: float
    owner: str
    state: SessionState = "detached"
    state_bytes: int = 0
    calls: int = 0
    failed: int = 0
    in_flight: int = 0
    parked: int = 0
    streams: int = 0
    memory_bytes: int = 0
    upstreams: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}
    processes: list[ProcessFacts] = []
    failures: list[Failure] = []
    refused: list[RefusedRow] = []
    state_keys: list[str] = []


class SessionTotals(msgspec.Struct, kw_only=True):
    """Of all sessions that match a query: how many, how many in each state and with failures, their calls, and the
    memory of their server processes."""

    sessions: int = 0
    states: dict[str, int] = {}
    failing: int = 0
    calls: int = 0
    failed: int = 0
    in_flight: int = 0
    memory_bytes: int = 0

    def count(self, part: SessionPart) -> None:
        """Count one more session."""
        self.states[part.state] = self.states.get(part.state, 0) + 1
        self.sessions += 1
        self.failing += part.failed > 0
        self.calls += part.calls
        self.failed += part.failed
        self.in_flight += part.in_flight
        self.memory_bytes += part.memory_bytes

    def add(self, other: "SessionTotals") -> None:
        """Add the totals of other sessions."""
        for state, count in other.states.items():
            self.states[state] = self.states.get(state, 0) + count
        self.sessions += other.sessions
        self.failing += other.failing
        self.calls += other.calls
        self.failed += other.failed
        self.in_flight += other.in_flight
        self.memory_bytes += other.memory_bytes


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A server that a replica cannot use now. `state`: `starting` or `failing`. `attempts`: failed ones in a row.
    `output`: the last lines that the server wrote."""

    server: str
    state: str
    reason: str
    attempts: int = 0
    output: list[str] = []


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway process: what it is, what it holds, and its last minutes. `silent`: the replica does not answer.
    `unreturning`: clients that opened sessions here and returned to none. `unavailable`: servers that it cannot use.
    `memory_bytes`: of the gateway's own process. `server_memory`: of server processes, about, by server. `most_memory`:
    what all of these together may have now; 0: any. `memory_short`: little of it is left."""

    replica: str
    address: str = ""
    silent: bool = False
    here: bool = False
    pid: int = 0
    version: str = ""
    up_s: float = 0.0
    ready: bool = False
    draining: bool = False
    sessions: int = 0
    in_flight: int = 0
    streams: int = 0
    processes: int = 0
    memory_bytes: int = 0
    server_memory: dict[str, int] = {}
    most_memory: int = 0
    memory_short: bool = False
    calls: int = 0
    failed: int = 0
    forwarded: int = 0
    restarts: int = 0
    history: list[Sample] = []
    unreturning: list[UnreturningClient] = []
    unavailable: list[ServerReport] = []


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A task as operators see it; `task` and `session` are how their ids begin.

    `runs`: how often it was started. `asked`: how many questions its client was asked. `error_code` and `error`: the
    JSON-RPC error of a task that failed. `tool_error`: the task is completed, and its tool has reported an error.
    """

    task: str
    session: str
    principal: str
    endpoint: str
    server: str
    tool: str
    status: str
    message: str
    age_s: float
    idle_s: float
    expires_in_s: float
    runs: int = 1
    asked: int = 0
    error_code: int = 0
    error: str = ""
    tool_error: bool = False

    @property
    def outcome(self) -> str:
        """Return the status for people."""
        return "tool error" if self.tool_error else self.status.replace("_", " ")

    @property
    def has_failed(self) -> bool:
        """Return True if the call or its tool has failed."""
        return self.tool_error or self.status == "failed"


class TimelineRow(TimelineEntry, frozen=True, array_like=False):
    """An entry of a timeline, by the names of its fields. For a `session` or a `move`, `name` is the event of the audit
    trail."""

    @property
    def has_failed(self) -> bool:
        """Return True if the entry is a refusal or a failure."""
        return self.kind == "refusal" or self.outcome.startswith(("error", "tool error", "refused", "failed"))


class SessionTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The newest entries of a session, in order of time."""

    head: TimelineHead
    entries: list[TimelineRow] = []


class DeadProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has ended by itself: how the id of its session begins, empty if it belonged to none, and its last
    lines on stderr."""

    session: str
    output: list[str]


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a server, by one replica or by all: `ServerRow` says what each field is."""

    server: str
    kind: str
    shared: bool = False
    state: str = "ok"
    reason: str = ""
    attempts: int = 0
    output: list[str] = []
    tools: int = 0
    processes: int = 0
    memory_bytes: int = 0
    links: int = 0
    in_flight: int = 0
    started: int = 0
    failed_starts: int = 0
    start_failure: str = ""
    start_failed_at: float = 0.0
    restarts: dict[str, int] = {}
    died: list[DeadProcess] = []


class ServerPart(ServerFacts, frozen=True, kw_only=True):
    """What one replica knows of a server."""

    start_times_s: list[float] = []


class ServerRow(ServerFacts, frozen=True, kw_only=True):
    """A configured server on all replicas together.

    `kind`: `command`, `url` or `object`. `state`: `ok`, `starting` or `failing`, where it is worst; then `reason`,
    `attempts` (failed ones in a row) and `output` (the last lines that it wrote) say more. `states`: how many replicas
    say which. `tools`: how many it lists. `memory_bytes`: of its processes, about. `links`: connections of sessions to
    it, with a process each or without. `started`, `failed_starts` and `restarts` (by reason) count since the replicas
    began, `start_p50_s` and `start_max_s` are of the last starts. `start_failure` is why the last one that failed did,
    at `start_failed_at`. `died`: processes of sessions that ended by themselves and are not replaced.
    `calls`, `failed`, `p50_s` and `p99_s` are of the range that was asked for, and so are the rows `usage` by tool.
    """

    states: dict[str, int] = {}
    start_p50_s: float = 0.0
    start_max_s: float = 0.0
    calls: int = 0
    failed: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    usage: list[UsageRow] = []


class FramesPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some messages of a session, oldest first. `after` names the last one, `missed` counts those in front of them that
    are not kept any more. `by` has switched the watch on, which ends in `ends_in_s`."""

    watched: bool
    by: str = ""
    ends_in_s: float = 0.0
    frames: list[SeenFrame] = []
    after: int = 0
    missed: int = 0


class StderrPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines that a session's servers wrote to stderr; otherwise as `FramesPage`. If nobody watches the session,
    these are the last lines of each server, without numbers."""

    watched: bool
    by: str = ""
    ends_in_s: float = 0.0
    lines: list[StderrLine] = []
    after: int = 0
    missed: int = 0


class FrameQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for messages and lines of a session: the newest, or the oldest after a number. `session` is the whole
    id."""

    session: str
    frames: int = 0
    after_frame: int = 0
    lines: int = 0
    after_line: int = 0


class FrameReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages and lines that a replica has seen of a session. `problem`: why the session cannot be watched."""

    frames: FramesPage = FramesPage(watched=False)
    stderr: StderrPage = StderrPage(watched=False)
    problem: str = ""


class ToolRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tool of one server, as the server lists it. `operation` is `read` or `write`, by its annotations."""

    server: str
    name: str
    title: str = ""
    description: str = ""
    operation: str = ""
    annotations: dict[str, Any] = {}
    input_schema: Any = None
    output_schema: Any = None

    @property
    def text(self) -> str:
        """Return the text in which words of a query are searched."""
        return "\n".join((self.server, self.name, self.title, self.description)).lower()


class CatalogPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some tools, in the order of the configuration, and how many there are. `unknown` are servers whose tools are not
    known: they have not answered yet, or answer with the credentials of a session only."""

    tools: list[ToolRow]
    total: int
    unknown: list[str]


class Attempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call to try. `session` is how the id of a live session begins; empty for a new session, which ends after the
    call unless `keep` is set."""

    server: str
    tool: str
    arguments: Object = {}
    session: str = ""
    keep: bool = False


class TriedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a tried call. In JSON, a field that is empty is left out.

    `outcome`: `ok` and `tool_error` have a `result`, `error` has the JSON-RPC `error`; `asks`: the tool wants an answer
    of its user, whom a tried call does not have; `timeout`, `too_large` and `unreadable` are explained in `note`.
    `session` is how the id of the session begins, empty if none was opened. `kept`: it is live now. `messages` are
    what the server sent before the answer, `asked` is what it wanted to know, both cut.
    """

    server: str
    tool: str
    outcome: Outcome
    session: str = ""
    kept: bool = False
    correlation: str = ""
    duration_s: float = 0.0
    size: int = 0
    result: Any = None
    error: Any = None
    note: str = ""
    messages: list[str] = []
    asked: list[str] = []


def detached(session: Session) -> SessionPart:
    """Return the facts that the record has of a session that no replica serves."""
    before = Counted.of(session.counted)
    failures = [*reversed(before.failures)]
    return SessionPart(id=session.id, state="detached", calls=before.calls, failed=before.failed, failures=failures)


_OF_PART: Final = [name for name in SessionPart.__struct_fields__ if name in SessionRow.__struct_fields__]


def row_of(session: Session, part: SessionPart | None, now: float, *, state_bytes: int = 0) -> SessionRow:
    """Return a session's row from its record and the facts of the replica that serves it; None if none does."""
    part = part or detached(session)
    return SessionRow(
        session=redact(session.id),
        principal=str(session.principal),
        endpoint=session.endpoint,
        era=session.era,
        client=f"{session.client.name} {session.client.version}".strip(),
        workspace=session.context.workspace,
        trust=session.context.trust,
        permissions=session.context.permissions,
        age_s=round(now - session.created_at, 1),
        idle_s=round(max(0.0, now - session.used_at), 1),
        expires_in_s=round(session.expires_at - now, 1),
        owner=session.owner,
        state_bytes=state_bytes,
        upstreams=session.links,
        metadata=session.metadata,
        **{name: getattr(part, name) for name in _OF_PART},
    )
