"""Define the values that operators are shown. Replicas send them to each other, and REST returns them without whole
ids.

Times are seconds; memory is bytes.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import msgspec

from gateway.calls.messages_for_operators import SeenFrame, StderrLine
from gateway.observability.metrics import Sample
from gateway.observability.observed_call import Counted, Failure
from gateway.sandbox.refusal_reports import RefusedRow
from gateway.sessions.client_return_tracking import ClientWarning
from session_store import Session, TimelineEntry, TimelineHead
from session_store.session import redact
from transports.jsonrpc import Object

Origin = Literal["inherited", "sandbox", "package", "session", "rule", "configuration", "secret", "gateway"]
"""Where a variable or a header comes from: the gateway's own environment, the sandbox, the package that the command
names, the context of the session, a rule of the policy, the configuration of the server, a secret of the principal, or
the gateway itself."""

SessionState = Literal["idle", "busy", "waiting", "draining", "detached"]
"""`busy`: a call is in flight. `waiting`: a call waits for its client. `draining`: its replica hands it to another one.
`detached`: no replica serves it now; the next request of its client attaches it to one."""

SESSION_STATES: Final = get_args(SessionState)
MOST_DEAD: Final = 5
"""How many dead processes of a server are shown."""

TriedOutcome = Literal["ok", "tool_error", "error", "asks", "timeout", "too_large", "unreadable"]

Range = Literal["5m", "15m", "1h", "6h", "24h"]

RANGES: Final[dict[Range, tuple[int, int]]] = {
    "5m": (300, 60),
    "15m": (900, 60),
    "1h": (3_600, 60),
    "6h": (21_600, 600),
    "24h": (86_400, 600),
}
"""The ranges of the history. Each has its length and the length of one step, in seconds."""

UsageBy = Literal["tool", "server", "principal", "client"]


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the history. The step begins at `at` (Unix time). `calls` ended in it, and `failed` of these failed.
    `p50_s` and `p99_s` are the median and the 99th percentile of the durations of all these calls. `sessions`: how many
    were live at the end of the step, on all replicas."""

    at: int
    calls: int = 0
    failed: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    sessions: int = 0


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """A range of the history: its points in order of time, `step_s` apart. The last step is not over yet."""

    range: Range
    step_s: int
    points: list[HistoryPoint]


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """How much one tool, server, principal or client was used in a range. `name`: the tool or method, the principal, or
    the client; empty in the row of a server. `server`: the server, or that of the tool; empty for a principal or
    client. Only tools and servers have durations. Only principals and clients have `sessions`: those opened in the
    range."""

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
    """An environment variable of a process, or a header. `where` is the setting or field that gives it. `value` is None
    if the value is hidden or unknown."""

    name: str
    origin: Origin
    where: str = ""
    value: str | None = None


class HiddenTools(msgspec.Struct, frozen=True, kw_only=True):
    """Tools of one server that are hidden from a session for one reason: their number, and the first of their names."""

    reason: str
    count: int
    names: list[str] = []


class ServerEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a session: its variables, folders and sandbox, and what the session sees of it.

    - `kind`: `command`, `url`, `object`, or `left out` (its configuration has faults).
    - `hidden`: why the session does not see the server; empty if it does.
    - `shared`: all sessions use one process or connection. `pid`: the server's process; None if none runs.
    - `injected`: True if a link is open. Variables, folders and profile are then those of this link; otherwise, they
      are those that the next link is expected to have.
    - `cwd`, `home` and `temporary`: folders of the process. `sandbox`: the lines of `sandbox explain`. `holds`: the
      same as data.
    - `tools`: how many the server lists; None if unknown. `visible_tools`: how many of them the session sees.
    - `era`: the era that the server speaks; empty if unknown. `why`: explanations in sentences.
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
    """The servers of a session with their variables, folders and sandboxes, and the reasons for what the session sees.

    `replica`: the one that reports this. `held`: that replica serves the session; otherwise it has derived the report
    from the session's record and its own configuration. `why`: sentences about the session, in the order in which a
    request is decided. `more_servers`: the number of servers that are left out.
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
    """A server as one session uses it, or all sessions if they share it. `pid`: its process; None if there is none."""

    server: str
    era: str
    pid: int | None = None
    memory_bytes: int = 0
    restarts: int = 0
    in_flight: int = 0
    stderr: list[str] = []


class SessionPart(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a session that are not in its record: only the replica that serves it knows them. `id` is the full
    id."""

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
    """A session as operators see it; `session` is the beginning of its id. `memory_bytes`: an estimate for its server
    processes."""

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
    """Totals of all sessions that match a query. `states`: the number of sessions by state. `failing`: the number of
    sessions with failed calls. `memory_bytes`: an estimate for their server processes."""

    sessions: int = 0
    states: dict[str, int] = {}
    failing: int = 0
    calls: int = 0
    failed: int = 0
    in_flight: int = 0
    memory_bytes: int = 0

    def count(self, part: SessionPart) -> None:
        self.add(
            SessionTotals(
                sessions=1,
                states={part.state: 1},
                failing=int(part.failed > 0),
                calls=part.calls,
                failed=part.failed,
                in_flight=part.in_flight,
                memory_bytes=part.memory_bytes,
            )
        )

    def add(self, other: "SessionTotals") -> None:
        for state, count in other.states.items():
            self.states[state] = self.states.get(state, 0) + count
        self.sessions += other.sessions
        self.failing += other.failing
        self.calls += other.calls
        self.failed += other.failed
        self.in_flight += other.in_flight
        self.memory_bytes += other.memory_bytes


class ServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A server that a replica cannot use now. `state`: `starting` or `failing`. `attempts`: the number of failed
    attempts in a row. `output`: the last lines that the server wrote."""

    server: str
    state: str
    reason: str
    attempts: int = 0
    output: list[str] = []


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one gateway process.

    - `silent`: the replica does not answer; only its name and address are known. `here`: it is the replica that was
      asked.
    - `warnings`: clients that opened sessions here and returned to none, or share one.
    - `unavailable`: servers that the replica cannot use now.
    - `memory_bytes`: the memory of the gateway's own process. `server_memory`: estimates for server processes, by
      server.
    - `most_memory`: what gateway and servers together may have now; 0: no limit. `memory_short`: little of it is left.
    - `configuration_number`: the number of its configuration file among those of all replicas; 0: it has no file, or is
      the only replica. `outdated`: another replica has a newer file.
    """

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
    configuration_number: int = 0
    outdated: bool = False
    calls: int = 0
    failed: int = 0
    forwarded: int = 0
    restarts: int = 0
    history: list[Sample] = []
    warnings: list[ClientWarning] = []
    unavailable: list[ServerReport] = []


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A task as operators see it; `task` and `session` are the beginnings of the two ids.

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
        """Return the status in words, such as `tool error`."""
        return "tool error" if self.tool_error else self.status.replace("_", " ")

    @property
    def has_failed(self) -> bool:
        return self.tool_error or self.status == "failed"


def is_failure(entry: TimelineEntry) -> bool:
    return entry.kind == "refusal" or entry.outcome.startswith(("error", "tool error", "refused", "failed"))


class TimelineRow(TimelineEntry, frozen=True, array_like=False):
    """An entry of a session's timeline. In JSON, it is an object with a name for each field. In entries of the kinds
    `session` and `move`, `name` is the event of the audit trail."""

    @property
    def has_failed(self) -> bool:
        """Return True if the entry is a refusal or a failure."""
        return is_failure(self)


class SessionTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The newest entries in a session's timeline, in order of time, and its head with the facts about the session."""

    head: TimelineHead
    entries: list[TimelineRow] = []


class DeadProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A server's process that ended by itself. `session` is the beginning of its session's id; empty if sessions share
    the server. `output`: its last lines."""

    session: str
    output: list[str]


class ReportedServer(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a server, on one replica (`ServerPart`) or on all (`ServerRow`, which describes the fields)."""

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


class ServerPart(ReportedServer, frozen=True, kw_only=True):
    """Facts about a server that one replica knows. `start_times_s`: the durations of its last starts."""

    start_times_s: list[float] = []


class ServerRow(ReportedServer, frozen=True, kw_only=True):
    """A configured server on all replicas together.

    - `kind`: `command`, `url`, `object`, or `left out` (its configuration has faults).
    - `state`: `ok`, `starting` or `failing`: the worst on any replica. `reason`, `attempts` (failed ones in a row) and
      `output` (the server's last lines) explain it. `states`: the number of replicas by state.
    - `tools`: how many the server lists. `memory_bytes`: an estimate for its processes. `links`: its open connections.
    - `started`, `failed_starts` and `restarts` (by reason) count since the replicas began. `start_p50_s` and
      `start_max_s`: median and maximum of the durations of the last starts.
    - `start_failure`: the reason of the last failed start, at the Unix time `start_failed_at`.
    - `died`: processes that ended by themselves and are not replaced.
    - `calls`, `failed`, `p50_s`, `p99_s`, and `usage` by tool: those of the range that was asked for.
    """

    states: dict[str, int] = {}
    start_p50_s: float = 0.0
    start_max_s: float = 0.0
    calls: int = 0
    failed: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    usage: list[UsageRow] = []


class WatchPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of what the watch of a session has recorded, oldest first. `watched`: False if nobody watches the session.
    `by`: the operator who has started the watch. `ends_in_s`: the time until it ends. `after`: the number of the last
    item on the page. `missed`: the number of older items that are no longer kept."""

    watched: bool
    by: str = ""
    ends_in_s: float = 0.0
    after: int = 0
    missed: int = 0


class FramesPage(WatchPage, frozen=True, kw_only=True):
    """Recorded messages of a session."""

    frames: list[SeenFrame] = []


class StderrPage(WatchPage, frozen=True, kw_only=True):
    """Recorded stderr lines of a session's servers. If nobody watches the session, these are the last lines of each
    server, without numbers."""

    lines: list[StderrLine] = []


class FrameQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for messages and stderr lines of a session; `session` is the full id. `frames`, `lines`: the most
    messages and lines to return. They are the newest, or the oldest with a higher number than `after_frame` or
    `after_line`."""

    session: str
    frames: int = 0
    after_frame: int = 0
    lines: int = 0
    after_line: int = 0


class FrameReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages and lines that a replica has recorded of a session. `problem`: why it cannot be watched; else empty."""

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


class UnapprovedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tool, prompt or resource template that is hidden from clients because the lock file does not approve it.
    `kind`: `tools`, `prompts` or `templates`. `reason`: why it is not approved. `difference`: how it differs from what
    is approved, as lines. `digest`: names this definition in an `Approval`; empty if it cannot be approved here."""

    server: str
    kind: str
    name: str
    digest: str
    reason: str
    difference: list[str]


class Approval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's approval of an item: its server, its `kind` (as in `UnapprovedRow`), and the digest of what the
    operator was shown."""

    server: str
    kind: str
    digest: str


class CatalogPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tools, in the order of the configuration. `total`: the number of tools that match. `unknown`: servers
    whose tools are unknown, because they have not answered yet, or answer only with the credentials of a session."""

    tools: list[ToolRow]
    total: int
    unknown: list[str]


class Attempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call that an operator tries. `session` is the beginning of a live session's id; empty for a new session. A
    new session ends after the call, unless `keep` is True."""

    server: str
    tool: str
    arguments: Object = {}
    session: str = ""
    keep: bool = False


class ReloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a reload on one replica. `difference`: what has changed, and what only a restart changes. `fault`:
    why the configuration was refused; nothing has changed then. Both are empty if the replica did not answer."""

    replica: str
    difference: str = ""
    fault: str = ""


class TriedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a tool call that an operator has tried. In JSON, empty fields are left out.

    - `outcome`: with `ok` and `tool_error`, `result` has the tool's result; with `error`, `error` is the JSON-RPC
      error. `asks`: the tool asks its user, but a tried call has none. `note` explains `timeout`, `too_large` and
      `unreadable`.
    - `session`: the beginning of the session's id; empty if none was opened, or if the store did not answer after the
      call. `kept`: the session is live now.
    - `messages`: notifications of the server before its answer, cut. `asked`: its questions, cut.
    """

    server: str
    tool: str
    outcome: TriedOutcome
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
    """Return the facts of a session that no replica serves, from its record: counts and failures of calls."""
    before = Counted.of(session.counted)
    failures = [*reversed(before.failures)]
    return SessionPart(id=session.id, state="detached", calls=before.calls, failed=before.failed, failures=failures)


_OF_PART: Final = [name for name in SessionPart.__struct_fields__ if name in SessionRow.__struct_fields__]


def row_of(session: Session, part: SessionPart | None, now: float, *, state_bytes: int = 0) -> SessionRow:
    """Return a session's row at the Unix time `now`. `part`: the facts of the replica that serves the session; None if
    no replica does. The other facts come from the record; `state_bytes` is the size of the session's state."""
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
