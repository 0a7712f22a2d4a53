"""Messages and stderr of one session, which an operator watches as they pass (docs/adr/0036-frames.md)."""

from typing import Final, Literal, Protocol

from gateway.admin.operators import OperatorError, TooLate
from gateway.admin.replica import Replica
from gateway.admin.replicas import Answers, Replicas
from gateway.admin.reports import FrameQuery, FrameReport, FramesPage, StderrPage
from gateway.admin.session_finder import SessionFinder
from gateway.config.auth import OPERATOR_ISSUER
from gateway.config.settings import GatewaySettings
from session_store import Principal, Session

__all__ = ["Records", "SessionWatches"]

Where = Literal["any", "own", "off"]
_OFF: Final = "frames of sessions cannot be seen here: gateway.admin.frames is off"


class Records(Protocol):
    """Keeps in the audit trail what an operator has done."""

    def __call__(self, reason: str, session: Session | str = "") -> None: ...


class SessionWatches:
    """Switches watches on and off, and reads what was seen. Sessions are named by how their ids begin.

    Every method may raise `StoreUnavailable` or an `OperatorError`: `admin.frames` does not allow it, or no session, or
    not one, has that name.
    """

    def __init__(self, finder: SessionFinder, replicas: Replicas, record: Records, options: GatewaySettings) -> None:
        self._finder = finder
        self._replicas = replicas
        self._record = record
        self.where: Where = options.admin.frames or ("any" if options.is_of_one_person else "own")

    async def switch_on(self, prefix: str, by: str) -> FramesPage:
        """Watch a session for 10 minutes from now on. Raises `TooLate`: the session is live on no replica now."""
        session = await self._allowed(prefix, by)
        report = _best(await self._replicas.ask(Replica.watch, session.id, by))
        if report is None:
            raise TooLate("no replica has this session in use: it is there again with the next request of its client")
        if report.problem:
            raise OperatorError(report.problem)
        self._record(f"the operator {by} has switched on its frames", session)
        return _frames_page(report, 0)

    async def switch_off(self, prefix: str, by: str) -> FramesPage:
        """Watch a session no longer, and forget what was seen."""
        session = await self._allowed(prefix, by)
        if any((await self._replicas.ask(Replica.unwatch, session.id)).by.values()):
            self._record(f"the operator {by} has switched off its frames", session)
        return FramesPage(watched=False)

    async def frames(self, prefix: str, by: str, *, after: int = 0, limit: int = 100) -> FramesPage:
        """The newest messages, or the oldest ones behind the number `after`."""
        session = await self._allowed(prefix, by)
        return _frames_page(await self._read(FrameQuery(session=session.id, frames=limit, after_frame=after)), after)

    async def stderr(self, prefix: str, by: str, *, after: int = 0, limit: int = 100) -> StderrPage:
        """The newest lines, or the oldest ones behind the number `after`. The last lines of each server are there
        without a watch, too, for every operator."""
        session = await self._finder.find(prefix)
        report = await self._read(FrameQuery(session=session.id, lines=limit, after_line=after))
        if report.watched:
            self._check(session, by)
        return _stderr_page(report, after)

    async def both(self, prefix: str, by: str, *, frames: int, lines: int) -> tuple[FramesPage, StderrPage] | None:
        """The newest messages and lines. None: `admin.frames` does not allow to see them."""
        session = await self._finder.find(prefix)
        if not self.allows(session.principal, by):
            return None
        report = await self._read(FrameQuery(session=session.id, frames=frames, lines=lines))
        return _frames_page(report, 0), _stderr_page(report, 0)

    def allows(self, principal: Principal, by: str) -> bool:
        """Whether the operator `by` may watch sessions of that principal."""
        return self.where == "any" or (
            self.where == "own" and principal == Principal(issuer=OPERATOR_ISSUER, subject=by)
        )

    async def _allowed(self, prefix: str, by: str) -> Session:
        if self.where == "off":
            raise OperatorError(_OFF)
        session = await self._finder.find(prefix)
        self._check(session, by)
        return session

    def _check(self, session: Session, by: str) -> None:
        if self.where == "off":
            raise OperatorError(_OFF)
        if not self.allows(session.principal, by):
            raise OperatorError(
                'frames are seen in sessions of your own here: set gateway.admin.frames to "any" to see those of others'
            )

    async def _read(self, query: FrameQuery) -> FrameReport:
        return _best(await self._replicas.ask(Replica.frames, query)) or FrameReport()


def _best(answers: Answers[FrameReport | None]) -> FrameReport | None:
    """The report of the replica that has a session; of several, of the one that watches it."""
    reports = [report for report in answers.by.values() if report is not None]
    return max(reports, key=lambda report: report.watched, default=None)


def _frames_page(report: FrameReport, after: int) -> FramesPage:
    return FramesPage(
        watched=report.watched,
        by=report.by,
        ends_in_s=report.ends_in_s,
        frames=report.frames,
        after=report.frames[-1].number if report.frames else after,
        missed=report.missed_frames,
    )


def _stderr_page(report: FrameReport, after: int) -> StderrPage:
    return StderrPage(
        watched=report.watched,
        by=report.by,
        ends_in_s=report.ends_in_s,
        lines=report.lines,
        after=report.lines[-1].number if report.lines else after,
        missed=report.missed_lines,
    )
