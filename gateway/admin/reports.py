"""What operators are shown, as values that travel between replicas and out by REST, where no id is whole.

Times are seconds; memory is bytes.
"""

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from gateway.observability.metrics import Sample
from gateway.observability.observed import Counted, Failure
from gateway.sandbox.refusals import RefusedRow
from gateway.sessions.returns import UnreturningClient
from session_store import Session, TimelineHead
from session_store.ports.timelines import TimelineKind
from session_store.session import redact

__all__ = [
    "SESSION_STATES",
    "ProcessFacts",
    "ReplicaReport",
    "ServerReport",
    "SessionPart",
    "SessionRow",
    "SessionState",
    "SessionTimeline",
    "SessionTotals",
    "TaskRow",
    "TimelineRow",
    "detached",
    "row_of",
]


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A server's link of one session, or of all that share it: its process, where it has one."""

    server: str
    era: str
    pid: int | None = None
    memory_bytes: int = 0
    restarts: int = 0
    in_flight: int = 0
    stderr: list[str] = []


SessionState = Literal["idle", "busy", "waiting", "draining", "detached"]
"""`busy`: a call is in flight. `waiting`: a call waits for its client. `draining`: its replica hands it over.
`detached`: no replica serves it now; the next request of its client attaches it to one."""

SESSION_STATES: Final = get_args(SessionState)


class SessionPart(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that only the replica that serves a session knows, in addition to its record. `id` is the full id."""

    id: str
    state: SessionState = "idle"
    calls: int = 0
    failed: int = 0
    in_flight: int = 0
    parked: int = 0
    streams: int = 0
    servers: list[str] = []
    processes: list[ProcessFacts] = []
    failures: list[Failure] = []
    refused: list[RefusedRow] = []


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session as operators see it; `session` is how its id begins. `state` is one of `SESSION_STATES`."""

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
    upstreams: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}
    processes: list[ProcessFacts] = []
    failures: list[Failure] = []
    refused: list[RefusedRow] = []
    state_keys: list[str] = []


class SessionTotals(msgspec.Struct, kw_only=True):
    """Of all sessions that match a query: how many, how many in each state and with failures, and their calls."""

    sessions: int = 0
    states: dict[str, int] = {}
    failing: int = 0
    calls: int = 0
    failed: int = 0
    in_flight: int = 0

    def count(self, state: SessionState, *, calls: int, failed: int, in_flight: int) -> None:
        """Count one more session."""
        self.states[state] = self.states.get(state, 0) + 1
        self.sessions += 1
        self.failing += failed > 0
        self.calls += calls
        self.failed += failed
        self.in_flight += in_flight

    def add(self, other: "SessionTotals") -> None:
        """Count the sessions of another one as well."""
        for state, count in other.states.items():
            self.states[state] = self.states.get(state, 0) + count
        self.sessions += other.sessions
        self.failing += other.failing
        self.calls += other.calls
        self.failed += other.failed
        self.in_flight += other.in_flight


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
    `unreturning`: clients that opened sessions here and returned to none. `unavailable`: servers that it cannot use."""

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
        """The status for people."""
        return "tool error" if self.tool_error else self.status.replace("_", " ")

    @property
    def has_failed(self) -> bool:
        """Whether the call has come to nothing good."""
        return self.tool_error or self.status == "failed"


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened in a session, or `count` alike between `at` and `until` (Unix time).

    `name`: the tool or the method; for a `session` or a `move` the event of the audit trail. `took_s`: the duration,
    the sum of all of them. `why`: the message of an error, or the reason.
    """

    at: float
    kind: TimelineKind
    server: str = ""
    name: str = ""
    outcome: str = ""
    took_s: float = 0.0
    count: int = 1
    until: float = 0.0
    correlation: str = ""
    why: str = ""
    replica: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether it went wrong."""
        return self.kind == "refusal" or self.outcome.startswith(("error", "tool error", "refused", "failed"))


class SessionTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The newest entries of a session, in order of time."""

    head: TimelineHead
    entries: list[TimelineRow] = []


def detached(session: Session) -> SessionPart:
    """What is known of a session that no replica serves."""
    before = Counted.of(session.counted)
    failures = [*reversed(before.failures)]
    return SessionPart(id=session.id, state="detached", calls=before.calls, failed=before.failed, failures=failures)


def row_of(session: Session, part: SessionPart | None, now: float, *, state_bytes: int = 0) -> SessionRow:
    """A record and what its replica knows, put together."""
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
        state=part.state,
        state_bytes=state_bytes,
        calls=part.calls,
        failed=part.failed,
        in_flight=part.in_flight,
        parked=part.parked,
        streams=part.streams,
        upstreams=session.links,
        metadata=session.metadata,
        processes=part.processes,
        failures=part.failures,
        refused=part.refused,
    )
