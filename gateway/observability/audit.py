"""Record the audit trail: an event for each change of a session, each refusal and, if configured, each tool call.

Events of sessions and refusals are also log lines. Frequent refusals are counted together in one event.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import replace

from gateway.config.admin import AuditSettings
from gateway.errors import InvalidArguments
from gateway.observability.audited_arguments import shown_arguments
from gateway.observability.escaped_text import visible_json
from gateway.observability.logs import CLIENT, CORRELATION
from gateway.observability.metrics import CALLS, Histogram
from gateway.observability.observed_call import ObservedCall
from gateway.observability.queued_output import OutputQueue, put_on_stderr
from gateway.observability.request_outcomes import Outcome
from session_store import AuditEvent, AuditTrail, Session, StoreUnavailable, Task
from session_store.ports.audit import EventName, SessionEnd, StepName, part_of
from session_store.session import redact
from transports.background_tasks import Tasks
from transports.inbound_port import Refused

logger = logging.getLogger(__name__)

ENDS: Final[tuple[SessionEnd, ...]] = get_args(SessionEnd)
"""The events with which a session ends."""

_MOST_WAITING: Final = 20_000
_MANY: Final = 1_000
"""Number of buffered events that are written at once, without waiting for the next `flush`."""
_SHOWN: Final = ("session", "era", "principal", "client", "tool", "reason", "why", "workspace", "trust", "calls")
"""The fields of an audit event that its log line shows."""
_TITLES: Final = {
    "operated": "operator action",
    "refused": "request refused",
    "warned": "client needs a session key",
}
"""The text of the log line of events that are not about one session, by event."""


def _shown(event: AuditEvent) -> dict[str, Any]:
    return {name: value for name in _SHOWN if (value := getattr(event, name)) not in ("", None)}


class Audit:
    """Record audit events. They are buffered until the next `flush`, so that a request with a forged token causes no
    write to the store.

    `fields` returns the fields of a session's context to add to events. `noted` is called with each recorded event and
    the record of its session (None if unknown), except for tool calls and for refusals that are only counted.
    """

    def __init__(
        self,
        trail: AuditTrail,
        clock: Callable[[], float],
        settings: AuditSettings | None = None,
        fields: Callable[[Session], Mapping[str, str]] = lambda _: {},
        noted: Callable[[AuditEvent, Session | None], None] = lambda event, session: None,
    ) -> None:
        self._noted = noted
        self.counts: Counter[str] = Counter()  # events since the process began, by name
        self.durations: dict[SessionEnd, Histogram] = {how: Histogram() for how in ENDS}  # of sessions that ended
        self.calls_each = Histogram(CALLS)  # in sessions that ended, where their number is known
        self.lost = 0
        self._trail = trail
        self._clock = clock
        self._fields = fields
        settings = settings or AuditSettings()
        self.calls = bool(settings.calls)
        self.has_names, self.has_values = settings.calls in ("names", "values"), settings.calls == "values"
        self._to_store = "store" in settings.to
        self._lines = AuditLines(settings.file, to_stderr="stderr" in settings.to)
        self._waiting: deque[AuditEvent] = deque()
        self._for_store: deque[AuditEvent] = deque()
        # Counted separately: many refusals of unauthenticated clients must not displace those of named principals.
        self._repeated = {"strangers": Repeated(monotonic), "named": Repeated(monotonic)}
        self._dropped = 0
        self._tasks = Tasks("audit")

    def record(
        self,
        event: StepName,
        *,
        session: Session | str = "",
        era: str = "",
        principal: str = "",
        reason: str = "",
        tool: str = "",
    ) -> None:
        """Record an event. A refusal is only counted if it repeats recent ones. `session`: the record of the event's
        session, or its id if the caller has no record; empty if there is no session. `era` and `principal`: those of
        the request; used only without a record."""
        about = {"session": session, "era": era, "principal": principal} if isinstance(session, str) else session
        client = CLIENT.get() if event == "refused" else ""
        recorded = self._event(event, about, reason=reason, tool=tool, client=client)
        self.counts[event] += 1
        if event == "refused" and self._repeats(recorded):
            return
        self._noted(recorded, None if isinstance(session, str) else session)
        self._add_and_log(recorded)

    def _event(self, event: EventName, about: Session | Mapping[str, Any], **facts: Any) -> AuditEvent:
        """Return an audit event with the present time, the correlation id of the present request, and the fields
        `facts`. `about`: the record of the event's session; if the caller has none, the fields that are known of the
        session, such as `session` (its id)."""
        known = self._facts(about) if isinstance(about, Session) else about
        known = {**known, "session": redact(known.get("session", ""))}
        return AuditEvent(at=self._clock(), event=event, **{"correlation": CORRELATION.get(), **known, **facts})

    def refused(
        self,
        refused: Refused,
        about: Session | Mapping[str, str],
        *,
        tool: str = "",
        why: str = "",
        arguments: bytes = b"",
    ) -> Refused:
        """Record that a client's request is refused, with the reason that the client gets. Return `refused`, marked as
        recorded.

        `about` is the record of its session; without a record, what is known of `session` (its id), `era` and
        `principal`. `why` is for operators, who may learn more than the client. `arguments` are the JSON arguments of a
        call; the event has the part of them that the setting `audit.calls` allows.
        """
        event = self._event(
            "refused",
            about,
            reason=refused.reason,
            why=why,
            outcome="refused",
            tool=tool,
            client=CLIENT.get(),
            arguments=self._shown_arguments(arguments),
        )
        self.counts["refused"] += 1
        if not self._repeats(event):
            if not isinstance(refused, InvalidArguments):  # else the timeline gets the call, which ends with a result
                self._noted(event, about if isinstance(about, Session) else None)
            self._add_and_log(event)
        return refused.recorded()

    def _repeats(self, refused: AuditEvent) -> bool:
        """Return False if the caller has to record this refusal. Return True if enough similar refusals were recorded
        just before: then this method has counted it in a sum."""
        whose = "strangers" if part_of(refused) == "strangers" else "named"
        return self._repeated[whose].take(refused) is None

    def _shown_arguments(self, arguments: bytes) -> str:
        """Return the part of a call's JSON arguments that the setting `audit.calls` allows in events: their names, also
        their values, or nothing (an empty text)."""
        return shown_arguments(arguments, with_values=self.has_values) if arguments and self.has_names else ""

    def ended(self, how: SessionEnd, session: Session, reason: str, calls: int | None) -> None:
        """Record the end of a session. `calls`: the number of calls answered in it; None if unknown."""
        lasted_s = round(max(0.0, self._clock() - session.created_at), 3)
        self.counts[how] += 1
        self.durations[how].add(lasted_s)
        if calls is not None:
            self.calls_each.add(calls)
        event = self._event(how, session, reason=reason, lasted_s=lasted_s, calls=calls)
        self._noted(event, session)
        self._add_and_log(event)

    def task(self, task: Task, what: str) -> None:
        """Record an event of a task. `what`: one of `gateway.observability.metrics.TASK_EVENTS`."""
        name = "" if what == "refused" else redact(task.id)  # the id of a task that was never made leads nowhere
        about = {"session": task.session_id, "principal": str(task.principal), "endpoint": task.endpoint}
        event = self._event(
            "task",
            about,
            reason=f"{name} {task.message}".strip() or ("too_many_tasks" if what == "refused" else ""),
            client=CLIENT.get() if what == "refused" else "",
            tool=f"{task.server}/{task.tool}",
            outcome=what,
        )
        self._noted(event, None)
        self._add(event)
        # `task`, as in all other lines of the task: one search finds them.
        logger.info("task %s", what, extra=_shown(event) | {"task": name, "reason": task.message})

    def blocked(self, *, session: str, server: str, reason: str, count: int) -> None:
        """Record that something of a server was blocked, such as an access that its sandbox has refused. `session`: the
        shortened session id, as in logs; empty if it concerns no single session. `reason`: what was blocked, and why.
        `count`: how often. The caller limits the rate, and writes the log line."""
        self._of_server("blocked", session=session, tool=server, reason=reason, count=count)

    def changed(self, tool: str, reason: str) -> None:
        """Record that a tool, `server/name`, has changed since sessions were shown it. The caller limits the rate, and
        writes the log line."""
        self._of_server("changed", tool=tool, reason=reason, count=1)

    def _of_server(self, event: EventName, *, count: int, **facts: str) -> None:
        self.counts[event] += count
        recorded = self._event(event, facts, count=count)
        self._noted(recorded, None)
        self._add(recorded)

    def _facts(self, session: Session) -> dict[str, Any]:
        return {
            "session": session.id,
            "principal": str(session.principal),
            "endpoint": session.endpoint,
            "era": session.era,
            "workspace": session.context.workspace,
            "trust": session.context.trust,
            "context": self._fields(session),
        }

    def _add_and_log(self, event: AuditEvent) -> None:
        self._add(event)
        what = _TITLES.get(event.event, f"session {event.event}")
        level = logging.WARNING if event.event == "warned" else logging.INFO
        logger.log(level, what, extra=_shown(event) | ({"lasted_s": event.lasted_s} if event.event in ENDS else {}))

    def call_watcher(
        self, session: Session, tool: str, began: float, arguments: bytes = b""
    ) -> Callable[[ObservedCall, Outcome, bytes], None]:
        """Return a callback for the end of a tool call (`ObservedCall.audit`). It records the call, unless the call's
        refusal was recorded. `tool`: in the form `server/name`. `began`: start of the call (monotonic clock). `session`
        must have the context of the request (`gateway.context.session_facts.with_context`)."""
        correlation, client = CORRELATION.get(), CLIENT.get()
        shown = self._shown_arguments(arguments)

        def finished(call: ObservedCall, outcome: Outcome, _: bytes) -> None:
            if not call.is_refused:
                facts = {"correlation": correlation, "client": client, "arguments": shown}
                self.called(session, tool, outcome, monotonic() - began, **facts)

        return finished

    def called(self, session: Session, tool: str, outcome: Outcome, took_s: float, **facts: Any) -> None:
        """Record an ended tool call. `tool`: in the form `server/name`. `session` must have the request's context.
        `facts`: the event's `correlation`, `client` and, if wanted, `arguments`."""
        self._add(self._event("called", session, tool=tool, outcome=str(outcome), took_s=round(took_s, 6), **facts))

    def _add(self, event: AuditEvent) -> None:
        self._waiting.append(event)
        if len(self._waiting) >= _MANY:
            self._tasks.start("early flush", self._flush_early)

    async def _flush_early(self) -> None:
        with contextlib.suppress(StoreUnavailable):  # the next `flush` raises it
            await self._flush()

    async def flush(self) -> None:
        """Write the buffered events to the store, the file and stderr. Raises `StoreUnavailable` if the store does not
        answer: the events for the store then stay buffered."""
        await self._tasks.settled()
        try:
            await self._flush()
        finally:
            await self._lines.settled()

    async def _flush(self) -> None:
        self._dropped += self._lines.take_lost()
        if self._dropped:
            self.lost += self._dropped
            logger.warning("%d audit events were dropped: they came faster than they could be written", self._dropped)
            self._dropped = 0
        for repeated in self._repeated.values():
            for summed in repeated.sums():
                self._add_and_log(summed)
        events, self._waiting = self._waiting, deque()
        self._lines.write(events)
        if not self._to_store:
            return
        self._for_store.extend(events)
        if (many := len(self._for_store) - _MOST_WAITING) > 0:
            # No answer, and the buffer is full: drop events of unauthenticated clients first, then the oldest.
            strangers = [place for place, event in enumerate(self._for_store) if part_of(event) == "strangers"]
            gone = {*strangers[:many], *range(many - len(strangers))}
            self._for_store = deque(event for place, event in enumerate(self._for_store) if place not in gone)
            self._dropped += len(gone)
        kept, self._for_store = self._for_store, deque()
        if not kept:
            return
        try:
            await self._trail.record(kept)
        except StoreUnavailable:
            self._for_store.extendleft(reversed(kept))
            raise


MOST_BYTES: Final = 16 << 20
"""The maximum size in bytes of each queue, for the file and for stderr: about 40,000 events."""

_WAIT_S: Final = 1.0


class AuditLines:
    """Write audit events as JSON lines to a file (None: no file) and to stderr, each from its own thread.

    A disk or a reader that stops does not block calls: lines wait in a queue, which is larger than the queue of log
    lines. Lines are dropped only if the queue is full, and are then counted as lost.
    """

    def __init__(self, file: Path | None, *, to_stderr: bool, most_bytes: int = MOST_BYTES) -> None:
        self._lost: deque[int] = deque()  # appended to by threads
        self._standing: set[str] = set()  # outputs that take no lines, and were logged
        writers: dict[str, Callable[[bytes], None]] = {}
        if file is not None:
            writers["the audit file"] = partial(_append, file)
        if to_stderr:
            writers["stderr"] = lambda lines: put_on_stderr(visible_json(lines.decode()))
        self._queues = {
            name: OutputQueue(write, most_bytes, partial(self._written, name)) for name, write in writers.items()
        }

    def write(self, events: Sequence[AuditEvent]) -> None:
        """Queue the lines of the events. Count the events as lost if a queue is full."""
        if not events or not self._queues:
            return
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        for queue in self._queues.values():
            if not queue.offer(lines):
                self._lost.append(len(events))

    def take_lost(self) -> int:
        """Return how many lines were lost since the last call."""
        return sum(self._lost.popleft() for _ in range(len(self._lost)))

    async def settled(self) -> None:
        """Wait until all lines are written, for at most `_WAIT_S` seconds for each output. An output that takes longer
        is logged, and not waited for again until it has caught up."""
        for name, queue in self._queues.items():
            if name in self._standing:  # do not wait again: this would delay the caller each time
                is_written = queue.drain(0)
            else:
                is_written = queue.drain(0) or await asyncio.to_thread(queue.drain, _WAIT_S)
            if is_written:
                self._standing.discard(name)
            elif name not in self._standing:
                self._standing.add(name)
                logger.warning("audit events are waiting: %s accepts none", name)

    def _written(self, name: str, lines: bytes, failure: OSError | None, _: bool) -> None:
        if failure is not None:
            self._lost.append(lines.count(b"\n"))
            logger.error("audit events are lost: %s accepts none: %s", name, failure)


def _append(path: Path, lines: bytes) -> None:
    # Opened anew each time, so that it can be rotated.
    with path.open("ab") as file:
        file.write(lines)


FULL_ALIKE: Final = 10
"""Number of refusals with the same client and reason that are recorded individually in a second. Others are counted."""

FULL_IN_ALL: Final = 100
"""Number of refusals of all clients that are recorded individually in a second."""

SUMS: Final = 64
"""Maximum number of sums for different clients and reasons. Further ones share one sum, so that refusals from many
addresses use no more memory."""

_REASON_CHARS: Final = 160

Key = tuple[str, str, str, str, str]


class Repeated:
    """Decide whether a refusal is recorded individually, or only counted in a sum.

    An unauthenticated client may send thousands of wrong keys per second. Most of them are only counted.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = float("-inf")
        self._full: Counter[Key] = Counter()
        self._recorded = 0
        self._sums: dict[Key, AuditEvent] = {}

    def take(self, event: AuditEvent) -> AuditEvent | None:
        """Return the refusal `event` if the caller must record it individually. Otherwise count it in a sum, and return
        None."""
        now = self._clock()
        if not 0 <= now - self._began < 1.0:
            self._began, self._recorded = now, 0
            self._full.clear()
        key = (event.reason[:_REASON_CHARS], event.why[:_REASON_CHARS], event.tool, event.principal, event.client)
        if self._recorded < FULL_IN_ALL and self._full[key] < FULL_ALIKE:
            self._recorded += 1
            self._full[key] += 1
            return event
        self._count(key, event)
        return None

    def _count(self, key: Key, event: AuditEvent) -> None:
        if key not in self._sums and len(self._sums) >= SUMS:
            key = ("", "other refusals", "", "", "")
        summed = self._sums.get(key)
        if summed is None:
            reason, why, tool, principal, client = key
            facts = {"reason": reason, "why": why, "tool": tool, "principal": principal, "client": client}
            summed = replace(event, session="", correlation="", arguments="", count=0, **facts)
        self._sums[key] = replace(summed, at=event.at, count=summed.count + event.count)

    def sums(self) -> Iterator[AuditEvent]:
        """Yield the sums since the last call of this method, each as one event with its `count`."""
        sums, self._sums = self._sums, {}
        for event in sums.values():
            yield replace(event, why=f"{event.why} (\u00d7{event.count})".strip())
