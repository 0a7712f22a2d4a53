"""Report the state of this replica to operators, and carry out their orders. Both may be requested by another
replica."""

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from gateway.admin.query_types import SessionQuery
from gateway.admin.report_types import (
    MOST_DEAD,
    DeadProcess,
    FrameQuery,
    FrameReport,
    FramesPage,
    ProcessFacts,
    ReloadReport,
    ReplicaReport,
    ServerPart,
    ServerReport,
    SessionEnvironment,
    SessionPart,
    StderrPage,
)
from gateway.admin.session_environments import SessionEnvironments
from gateway.admin.session_list_selection import ListingPage, listing_page, part_of, suspended_of
from gateway.calls.conversation import Conversation
from gateway.calls.live_session import MOST_WATCHED, FrameWatches, LiveSession, LiveSessions
from gateway.calls.messages_for_operators import SeenFrame, StderrLine
from gateway.calls.server_start_failures import MOST_LINES, newest
from gateway.cluster.ownership import Cluster
from gateway.config.configuration_difference import Difference
from gateway.config.configuration_errors import ConfigurationError
from gateway.observability.activity_buffer import Activity
from gateway.observability.metrics import Metrics
from gateway.observability.process_memory import resident_bytes
from gateway.policy.memory_admission import ServerMemory
from gateway.sandbox.refusal_reports import RefusedRow
from gateway.sessions.client_return_tracking import ClientWarning
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.version import __version__
from session_store import TimelinePart
from session_store.redaction import scrubbed_start, scrubbed_text
from session_store.session import redact
from transports.work_steps import SCANNED_AT_ONCE, let_others_run, slices

_MOST_CHARS: Final = 300
_MOST_WARNINGS: Final = 50
_LISTED_LINES: Final = 10
"""The most output lines of a process in a report about several sessions. A report about one session has all kept
lines."""
_MOST_BODY_CHARS: Final = 256 << 10
"""The most characters of all message bodies in one report, which is sent over the bus of the store."""

Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])


class ReplicaQuestion(NamedTuple):
    """A query that one replica sends to others, and that a method of `Replica` answers: its name, and the types of
    arguments and answer."""

    name: str
    """The name of the query on the bus."""
    takes: tuple[Any, ...]
    """The types of the method's arguments."""
    gives: Any
    """The type of the answer."""


QUESTIONS: Final[dict[Callable[..., Awaitable[Any]], ReplicaQuestion]] = {}
"""All queries between replicas, by the method of `Replica` that answers."""


def question(name: str) -> Callable[[Method], Method]:
    """Register the decorated method of `Replica` as the answer to a query, so that other replicas can call it. `name`:
    the name of the query on the bus. The method's annotations give the types of arguments and answer."""

    def known(method: Method) -> Method:
        _, *takes = inspect.signature(method).parameters.values()
        gives = inspect.signature(method).return_annotation
        QUESTIONS[method] = ReplicaQuestion(name, tuple(one.annotation for one in takes), gives)
        return method

    return known


Reloads = Callable[[], Awaitable[Difference]]


async def _no_reload() -> Difference:
    raise ConfigurationError("this gateway is not running")


class Serving(Protocol):
    """What operators can do with the serving of this process: start and end its drain."""

    @property
    def is_draining(self) -> bool: ...

    async def is_ready(self) -> bool:
        """Return True if this process takes requests."""
        ...

    async def drain(self) -> None:
        """Hand the sessions to other replicas and take no new ones. Return when that is done."""
        ...

    def admit(self) -> None:
        """End the drain: take sessions again."""
        ...


class ReplicaCounts(msgspec.Struct):
    """What a replica holds at one moment, in numbers: sessions, exchanges, standalone streams and processes."""

    processes: dict[str, int]
    """The number of running processes, by server."""
    sessions: int = 0
    without_workspace: int = 0
    """The number of sessions without a workspace."""
    in_flight: int = 0
    """The number of exchanges in flight."""
    suspended: int = 0
    """The number of calls that wait for their client."""
    streams: int = 0
    """The number of standalone streams."""


@dataclass(eq=False, repr=False, kw_only=True)
class Replica:
    """Answer operators' queries about one gateway process, and carry out operators' orders in it. Methods with
    `@question` are also called by other replicas."""

    name: str
    live: LiveSessions
    upstreams: Sequence[ConfiguredUpstream]
    metrics: Metrics
    memory: ServerMemory
    activity: Activity
    cluster: Cluster | None
    serving: Serving
    environments: SessionEnvironments
    watches: FrameWatches
    warnings: Callable[[], list[ClientWarning]]
    """Returns the clients that need a session key."""
    refused: Callable[[str], list[RefusedRow]]
    """Returns what a session's sandboxes have refused. Gets the beginning of the session's id."""
    stop_task: Callable[[str, str], bool]
    """Cancels a task. Gets its `Task.name` and the reason; returns False if this replica does not run it."""

    def __post_init__(self) -> None:
        self._began = time()
        self._reload: Reloads = _no_reload

    @property
    def is_draining(self) -> bool:
        return self.serving.is_draining

    @property
    def is_outdated(self) -> bool:
        """Return True if another replica has a newer configuration file."""
        return self.cluster is not None and self.cluster.configuration.is_outdated

    async def answer(self, what: str, args: Any) -> Any:
        """Answer the query named `what` of another replica: call the method that is registered for it with `args`, and
        return its result as plain data. Raises `LookupError` if this version does not know the query."""
        for method, asked in QUESTIONS.items():
            if asked.name == what:
                given = args if len(asked.takes) > 1 else [args][: len(asked.takes)]
                taken = (msgspec.convert(one, kind) for one, kind in zip(given, asked.takes, strict=True))
                return msgspec.to_builtins(await method(self, *taken))
        raise LookupError(what)

    @question("report")
    async def report(self) -> ReplicaReport:
        """Return the state of this process: readiness, counts, memory, recent history, and servers that cannot be
        used."""
        counts = await self.counts()
        return ReplicaReport(
            replica=self.name,
            address="" if self.cluster is None else self.cluster.address,
            pid=os.getpid(),
            version=__version__,
            up_s=round(time() - self._began, 1),
            ready=await self.serving.is_ready(),
            draining=self.is_draining,
            sessions=counts.sessions,
            in_flight=counts.in_flight,
            streams=counts.streams,
            processes=sum(counts.processes.values()),
            memory_bytes=resident_bytes() or 0,
            server_memory=dict(self.memory.by_server()),
            most_memory=self.memory.state().most,
            memory_short=self.memory.is_short,
            configuration_number=0 if self.cluster is None else self.cluster.configuration.own,
            outdated=self.is_outdated,
            calls=self.metrics.calls,
            failed=self.metrics.failed,
            forwarded=self.metrics.forwarded["answered"],
            restarts=sum(upstream.restarts.total() for upstream in self.upstreams),
            history=list(self.metrics.samples),
            warnings=self.warnings()[:_MOST_WARNINGS],
            unavailable=[_unavailable(upstream) for upstream in self.upstreams if not upstream.has_answered],
        )

    async def counts(self) -> ReplicaCounts:
        """Count sessions, exchanges, streams and processes of this replica. Work in steps, so that calls do not
        wait."""
        counts = ReplicaCounts(dict.fromkeys((upstream.name for upstream in self.upstreams), 0))
        for some in slices(list(self.live), SCANNED_AT_ONCE // 2):
            for live in some:
                counts.sessions += 1
                counts.without_workspace += not live.session.context.workspace
                counts.streams += live.open_streams
                if live.exchanges or live.has_suspended:
                    # Calls that were moved to a child session count for that session.
                    counts.in_flight += sum(exchange.live is live for exchange in live.exchanges)
                    counts.suspended += suspended_of(live)
                _count_processes(live.every_conversation(), counts.processes)
            await let_others_run()
        for upstream in self.upstreams:
            _count_processes(upstream.shared, counts.processes)
        return counts

    @question("servers")
    async def servers(self) -> list[ServerPart]:
        """Return what this replica knows of each server. Work in steps, so that calls do not wait."""
        upstreams = [*self.upstreams]  # a reload changes these in place
        links: dict[str, list[tuple[str, Conversation]]] = {upstream.name: [] for upstream in upstreams}
        for some in slices(list(self.live), SCANNED_AT_ONCE // 2):
            for live in some:
                for one in live.every_conversation():
                    links.setdefault(one.name, []).append((redact(live.session.id), one))
            await let_others_run()
        for upstream in upstreams:
            links[upstream.name] += [("", one) for one in upstream.shared]
        memory = self.memory.by_server()
        return [_part_of_server(each, links[each.name], memory[each.name]) for each in upstreams]

    @question("parts")
    async def parts(self, session_ids: list[str]) -> list[SessionPart]:
        """Return what only this replica knows about the given sessions, such as their server processes and what their
        sandboxes have refused. Leave out sessions that this replica does not serve."""
        lines = MOST_LINES if len(session_ids) == 1 else _LISTED_LINES
        found = [live for one in session_ids if (live := self.live.get(one)) is not None]
        return [
            msgspec.structs.replace(
                part_of(live, self.memory),
                processes=[self._process(live, conversation, lines) for conversation in live.every_conversation()],
                refused=self.refused(redact(live.session.id)),
            )
            for live in found
        ]

    def _process(self, live: LiveSession, conversation: Conversation, lines: int) -> ProcessFacts:
        pid = None if conversation.link is None else conversation.link.pid
        return ProcessFacts(
            server=conversation.name,
            era=str(conversation.era),
            pid=pid,
            memory_bytes=0 if pid is None else self.memory.of_session(live.session.id, pid),
            restarts=conversation.links.restarts,
            in_flight=len(conversation.calls),
            stderr=_lines(conversation.output_tail, lines),
        )

    @question("brief parts")
    async def brief_parts(self, session_ids: list[str]) -> list[SessionPart]:
        """Return facts about the given sessions that this replica serves, without processes and refusals."""
        return [part_of(live, self.memory) for one in session_ids if (live := self.live.get(one)) is not None]

    @question("held")
    async def serves(self, session_ids: list[str]) -> list[str]:
        """Return those of the given session ids that this replica serves."""
        return [one for one in session_ids if self.live.get(one) is not None]

    @question("listing")
    async def listing(self, query: SessionQuery) -> ListingPage:
        return await listing_page(self.live, query, time, self.memory)

    @question("timeline")
    async def unwritten(self, name: str) -> TimelinePart | None:
        return self.activity.unwritten(name)

    @question("write activity")
    async def write_activity(self) -> None:
        await self.activity.write_seen()

    @question("environment")
    async def environment(self, session_id: str) -> SessionEnvironment | None:
        live = self.live.get(session_id)
        return None if live is None else self.environments.of(live.session, live)

    @question("watch")
    async def watch(self, session_id: str, by: str) -> FrameReport | None:
        """Watch a session for the operator `by`: record its messages and stderr lines. Return a report on the watch. If
        too many sessions are watched, return a report with a `problem` instead. Return None if this replica does not
        serve the session."""
        live = self.live.get(session_id)
        if live is None:
            return None
        if not self.watches.start(live, by):
            return FrameReport(
                problem=f"{MOST_WATCHED} sessions are watched on this session's replica already: switch one of them off"
            )
        return _seen_of(live, FrameQuery(session=session_id))

    @question("unwatch")
    async def unwatch(self, session_id: str) -> bool | None:
        """Stop watching a session. Return True if it was watched, False if not, and None if this replica does not serve
        it."""
        live = self.live.get(session_id)
        if live is None:
            return None
        was_watched = live.recorder is not None
        self.watches.stop(live)
        return was_watched

    @question("frames")
    async def frames(self, query: FrameQuery) -> FrameReport | None:
        """Return the recorded messages and stderr lines that the query selects. Return None if this replica does not
        serve the session."""
        live = self.live.get(query.session)
        return None if live is None else _seen_of(live, query)

    @question("cancel task")
    async def cancel_task(self, name: str, reason: str) -> bool:
        """Cancel the task whose `Task.name` is `name`, for this reason. Return False if this replica does not run the
        task."""
        return self.stop_task(name, reason)

    @question("drain")
    async def drain(self) -> None:
        await self.serving.drain()

    def reload_with(self, reload: Reloads) -> None:
        """Set the function by which `reload` loads the configuration of this replica again."""
        self._reload = reload

    @question("reload")
    async def reload(self) -> ReloadReport:
        """Load the configuration of this replica again. Return a report that says what has changed, or why the
        configuration was refused."""
        try:
            return ReloadReport(replica=self.name, difference=(await self._reload()).text)
        except ConfigurationError as error:
            return ReloadReport(replica=self.name, fault=str(error))

    @question("admit")
    async def admit(self) -> None:
        self.serving.admit()


def _reason(upstream: ConfiguredUpstream) -> str:
    """Return why a server cannot be used, with credentials redacted. If the server is left out, the reason comes from
    the configuration, and contains no credential. It is not redacted then: words after the name of a variable would be
    taken for a credential."""
    reason = upstream.state.reason
    return reason[:_MOST_CHARS] if upstream.is_left_out else scrubbed_start(reason, _MOST_CHARS)


def _unavailable(upstream: ConfiguredUpstream) -> ServerReport:
    found = upstream.state
    return ServerReport(
        server=upstream.name,
        state=found.state,
        reason=_reason(upstream),
        attempts=found.attempts,
        output=_lines(found.output_tail),
    )


def _count_processes(conversations: Iterable[Conversation], counts: dict[str, int]) -> None:
    for conversation in conversations:
        if conversation.link is not None and conversation.link.pid is not None:
            counts[conversation.name] = counts.get(conversation.name, 0) + 1


def _part_of_server(
    upstream: ConfiguredUpstream, links: Sequence[tuple[str, Conversation]], memory_bytes: int
) -> ServerPart:
    """Return what this replica knows of a server. `links`: the conversations with it, each after the beginning of its
    session's id; an empty text stands for the id if sessions share the server. `memory_bytes`: that of its
    processes."""
    settings, found = upstream.settings, upstream.state
    tools = upstream.probed_tools
    return ServerPart(
        server=upstream.name,
        kind="left out" if upstream.is_left_out else settings.kind,
        shared=settings.shared,
        state=found.state,
        reason=_reason(upstream),
        attempts=found.attempts,
        output=_lines(found.output_tail),
        tools=0 if tools is None else len(tools.schemas),
        processes=sum(one.link is not None and one.link.pid is not None for _, one in links),
        memory_bytes=memory_bytes,
        links=sum(one.link is not None for _, one in links),
        in_flight=sum(len(one.calls) for _, one in links),
        started=upstream.starts["started"],
        failed_starts=upstream.starts["failed"],
        start_failure=scrubbed_start(upstream.start_failure[1], _MOST_CHARS),
        start_failed_at=upstream.start_failure[0],
        start_times_s=[round(each, 3) for each in upstream.start_times_s],
        restarts=dict(upstream.restarts),
        died=[
            DeadProcess(session=session, output=_lines(one.output_tail))
            for session, one in links
            if one.link is None and one.output_tail
        ][-MOST_DEAD:],
    )


def _lines(words: Sequence[str], most: int = MOST_LINES) -> list[str]:
    return [scrubbed_text(line)[:_MOST_CHARS] for line in newest(words, most)]


def _seen_of(live: LiveSession, query: FrameQuery) -> FrameReport:
    """Return the messages and stderr lines that the watch of a session has recorded, as `query` selects them. If nobody
    watches the session, return only the last stderr lines of its servers."""
    seen = live.recorder
    if seen is None:
        return FrameReport(
            stderr=StderrPage(watched=False, lines=_output_tail(live)[-query.lines :] if query.lines else [])
        )
    watch: dict[str, Any] = {"watched": True, "by": seen.by, "ends_in_s": round(max(0.0, seen.ends_at - time()), 1)}
    frames, missed_frames = seen.frames.behind(query.after_frame, query.frames)
    frames = _fitting(frames, newest=not query.after_frame)
    lines, missed_lines = seen.lines.behind(query.after_line, query.lines)
    after_frame, after_line = _last(frames, query.after_frame), _last(lines, query.after_line)
    return FrameReport(
        frames=FramesPage(**watch, frames=frames, after=after_frame, missed=missed_frames),
        stderr=StderrPage(**watch, lines=lines, after=after_line, missed=missed_lines),
    )


def _last(items: Sequence[SeenFrame] | Sequence[StderrLine], before: int) -> int:
    return items[-1].number if items else before


def _output_tail(live: LiveSession) -> list[StderrLine]:
    """Return the last stderr lines of the session's servers, server by server. They are kept even if nobody watches the
    session; fewer are kept once a process has ended."""
    found: list[StderrLine] = []
    for conversation in live.every_conversation():
        link = conversation.link
        words = (link is not None and link.stderr_tail()) or conversation.output_tail
        found += [StderrLine(number=0, server=conversation.name, text=scrubbed_text(line)) for line in words]
    return found


def _fitting(frames: list[SeenFrame], *, newest: bool) -> list[SeenFrame]:
    """Return as many of the messages as fit into one report, in their order: the newest if `newest` is True, otherwise
    the oldest."""
    left = _MOST_BODY_CHARS
    found: list[SeenFrame] = []
    for frame in reversed(frames) if newest else frames:
        left -= len(frame.body)
        if left < 0 and found:
            break
        found.append(frame)
    return found[::-1] if newest else found
