"""Let operators watch a session: switch the recording of its messages and stderr lines on and off, and read it."""

from typing import Final, NamedTuple

import msgspec

from gateway.admin.operator_tool_calls import Records, SessionScope, may_use
from gateway.admin.query_types import OperatorError, TooLate
from gateway.admin.replica_queries import Answers, Replicas
from gateway.admin.report_types import FrameQuery, FrameReport, FramesPage, StderrPage, WatchPage
from gateway.admin.session_list import SessionFinder
from gateway.admin.this_replica import Replica
from gateway.config.settings import GatewaySettings
from session_store import Session

_OFF: Final = "frames of sessions cannot be seen here: gateway.admin.frames is off"
_ONLY_OWN: Final = (
    'frames are seen in sessions of your own here: gateway.admin.frames "with_reason" or "any" shows those of others'
)
MOST_REASON_CHARS: Final = 200


class WatchView(NamedTuple):
    """What an operator sees of the watch of a session: the recorded messages and lines, and whether the operator needs
    a reason to see more."""

    report: FrameReport
    """The recorded messages and stderr lines that the operator may see."""
    needs_reason: bool
    """True if the session is another person's, so that watching it takes a reason."""
    is_hidden: bool
    """True if another operator watches the session, and `report` lacks what that watch has recorded."""


class SessionWatches:
    """Start and stop the watch of a session, and read what it has recorded. A watch records the session's messages and
    stderr lines. `prefix`: the beginning of the session's id. `by`: the name of the operator.

    If `admin.frames` is `with_reason`, an operator must give a reason to watch somebody else's session. Until the watch
    ends, this operator sees what it records. No other operator does, except the one whose session it is.

    Every method may raise `StoreUnavailable` or an `OperatorError`: `admin.frames` does not allow the watch, or the
    prefix does not name one session.
    """

    def __init__(self, finder: SessionFinder, replicas: Replicas, record: Records, options: GatewaySettings) -> None:
        self._finder = finder
        self._replicas = replicas
        self._record = record
        chosen = options.admin.frames or ("any" if options.is_of_one_person else "with_reason")
        self._takes_reasons = chosen == "with_reason"
        self.where: SessionScope = "own" if chosen == "with_reason" else chosen

    async def switch_on(self, prefix: str, by: str, reason: str = "") -> FramesPage:
        """Watch a session for the next 10 minutes. Return a page without messages, which says when the watch ends.
        `reason`: why the operator watches somebody else's session, for the audit trail. Raises `TooLate` if no replica
        serves the session now."""
        session = await self._named(prefix)
        why = " ".join(reason.split())
        if len(why) > MOST_REASON_CHARS:
            raise OperatorError(f"reason: must have at most {MOST_REASON_CHARS} characters")
        if not may_use(self.where, session.principal, by):
            if not self._takes_reasons:
                raise OperatorError(_ONLY_OWN)
            if not why or not by:
                raise OperatorError("this session is not yours: give a `reason` to see its frames, for the audit trail")
        report, done = None, "tried to switch on"
        try:
            report = _best(await self._replicas.ask(Replica.watch, session.id, by))
            done = "switched on" if report is not None and not report.problem else done
        finally:  # a replica whose answer is late watches all the same
            self._record(reason=f"the operator {by} has {done} its frames{why and f': {why}'}", session=session)
        if report is None:
            raise TooLate("no replica holds this session now: one will with the next request of its client")
        if report.problem:
            raise OperatorError(report.problem)
        return report.frames

    async def switch_off(self, prefix: str, by: str) -> FramesPage:
        """Stop watching a session, and delete the recorded messages and lines. Return an empty page. If `admin.frames`
        is `with_reason`, every operator may do this, also for somebody else's session."""
        session = await self._named(prefix)
        self._check(session, by, FramesPage(watched=False))
        if any((await self._replicas.ask(Replica.unwatch, session.id)).by.values()):
            self._record(reason=f"the operator {by} has switched off its frames", session=session)
        return FramesPage(watched=False)

    async def frames(self, prefix: str, by: str, *, after: int = 0, limit: int = 100) -> FramesPage:
        """Return at most `limit` recorded messages: the newest, or with `after` the oldest with a higher number than
        it."""
        session = await self._named(prefix)
        page = (await self._read(FrameQuery(session=session.id, frames=limit, after_frame=after))).frames
        self._check(session, by, page)
        return page

    async def stderr(self, prefix: str, by: str, *, after: int = 0, limit: int = 100) -> StderrPage:
        """Return at most `limit` recorded stderr lines: the newest, or with `after` the oldest with a higher number
        than it. If nobody watches the session, return the last lines of each server, which every operator may see."""
        session = await self._finder.find(prefix)
        page = (await self._read(FrameQuery(session=session.id, lines=limit, after_line=after))).stderr
        if page.watched:
            self._check(session, by, page)
        return page

    async def both(self, prefix: str, by: str, *, frames: int, lines: int) -> WatchView | None:
        """Return the newest messages (at most `frames`) and stderr lines (at most `lines`), without those that only
        another operator may see. Return None if `admin.frames` does not let `by` watch the session."""
        session = await self._finder.find(prefix)
        is_free = may_use(self.where, session.principal, by)
        if not is_free and not self._takes_reasons:
            return None
        report = await self._read(FrameQuery(session=session.id, frames=frames, lines=lines))
        sees = self._sees(session, by, report.frames)
        if not sees:
            hidden = msgspec.structs.replace(report.frames, frames=[], after=0, missed=0)
            stderr = StderrPage(watched=False) if report.stderr.watched else report.stderr
            report = FrameReport(frames=hidden, stderr=stderr)
        return WatchView(report, needs_reason=not is_free, is_hidden=report.frames.watched and not sees)

    async def _named(self, prefix: str) -> Session:
        if self.where == "off":
            raise OperatorError(_OFF)
        return await self._finder.find(prefix)

    def _sees(self, session: Session, by: str, page: WatchPage) -> bool:
        """Return True if the operator `by` may see what a watch of the session has recorded. `page`: says whether and
        by whom the session is watched."""
        is_theirs = self._takes_reasons and page.watched and page.by == by != ""
        return is_theirs or may_use(self.where, session.principal, by)

    def _check(self, session: Session, by: str, page: WatchPage) -> None:
        """Raise `OperatorError` unless the operator `by` may see the messages and lines in `page`. If `admin.frames` is
        `with_reason`, everybody may see the page of a session that nobody watches."""
        if self.where == "off":
            raise OperatorError(_OFF)
        if self._sees(session, by, page):
            return
        if not self._takes_reasons:
            raise OperatorError(_ONLY_OWN)
        if page.watched:
            raise OperatorError(
                f"the operator {page.by} watches this session: give a `reason` of your own to take it over"
            )

    async def _read(self, query: FrameQuery) -> FrameReport:
        return _best(await self._replicas.ask(Replica.frames, query)) or FrameReport()


def _best(answers: Answers[FrameReport | None]) -> FrameReport | None:
    """Return the report of the replica that serves the session; None if no replica serves it. If several have reported,
    prefer a report with a watch."""
    reports = [report for report in answers.by.values() if report is not None]
    return max(reports, key=lambda report: report.frames.watched, default=None)
