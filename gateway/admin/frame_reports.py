"""What a replica tells of a session that an operator watches, and what it does about the watch."""

from time import time
from typing import Any, Final

import msgspec

from gateway.calls.live_session import MOST_WATCHED, FrameWatches, LiveSession, LiveSessions
from gateway.calls.session_frames import SeenFrame, StderrLine
from session_store.metadata import scrubbed_text

__all__ = ["FrameAnswers", "FrameQuery", "FrameReport"]

_MOST_CHARS: Final = 256 << 10
"""Of the bodies in one report: it travels over the bus of the store."""


class FrameQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages and lines of a session an operator wants: the newest, or the oldest behind a number. `session` is
    the id."""

    session: str
    frames: int = 0
    after_frame: int = 0
    lines: int = 0
    after_line: int = 0


class FrameReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a replica has of a session that is live there. `problem`: why the session cannot be watched."""

    watched: bool = False
    by: str = ""
    ends_in_s: float = 0.0
    problem: str = ""
    frames: list[SeenFrame] = []
    missed_frames: int = 0
    lines: list[StderrLine] = []
    missed_lines: int = 0


class FrameAnswers:
    """Answers for the sessions that are live on this replica; None for all others."""

    def __init__(self, live: LiveSessions, watches: FrameWatches) -> None:
        self._live = live
        self._watches = watches

    def answer(self, what: str, args: Any) -> Any:
        """Answer a query of a replica. Raises `LookupError`: there is no such query."""
        match what:
            case "watch":
                return msgspec.to_builtins(self.watch(*args))
            case "unwatch":
                return self.unwatch(args)
            case "frames":
                return msgspec.to_builtins(self.frames(msgspec.convert(args, FrameQuery)))
        raise LookupError(what)

    def watch(self, session_id: str, by: str) -> FrameReport | None:
        """Watch a session for the operator `by`."""
        live = self._live.get(session_id)
        if live is None:
            return None
        if not self._watches.start(live, by):
            return FrameReport(
                problem=f"{MOST_WATCHED} sessions are watched on this session's replica already: switch one of them off"
            )
        return self._report(live)

    def unwatch(self, session_id: str) -> bool | None:
        """Watch a session no longer. False: it was not watched."""
        live = self._live.get(session_id)
        if live is None:
            return None
        was_watched = live.frames is not None
        self._watches.stop(live)
        return was_watched

    def frames(self, query: FrameQuery) -> FrameReport | None:
        """What was seen of a session."""
        live = self._live.get(query.session)
        if live is None:
            return None
        report = self._report(live)
        if live.frames is None:
            return msgspec.structs.replace(report, lines=_output_tail(live)[-query.lines :] if query.lines else [])
        frames, missed_frames = live.frames.frames.behind(query.after_frame, query.frames)
        lines, missed_lines = live.frames.lines.behind(query.after_line, query.lines)
        return msgspec.structs.replace(
            report,
            frames=_fitting(frames, newest=not query.after_frame),
            missed_frames=missed_frames,
            lines=lines,
            missed_lines=missed_lines,
        )

    @staticmethod
    def _report(live: LiveSession) -> FrameReport:
        seen = live.frames
        if seen is None:
            return FrameReport()
        return FrameReport(watched=True, by=seen.by, ends_in_s=round(max(0.0, seen.ends_at - time()), 1))


def _output_tail(live: LiveSession) -> list[StderrLine]:
    """The last lines of the session's servers, which are known of every session. Of a process that has ended fewer are
    kept."""
    found: list[StderrLine] = []
    for conversation in live.conversations.values():
        link = conversation.link
        words = (link is not None and link.stderr_tail()) or conversation.output_tail
        found += [StderrLine(number=0, server=conversation.name, text=scrubbed_text(line)) for line in words]
    return found


def _fitting(frames: list[SeenFrame], *, newest: bool) -> list[SeenFrame]:
    """As many of the messages as one report may have: the newest, or the oldest."""
    left = _MOST_CHARS
    found: list[SeenFrame] = []
    for frame in reversed(frames) if newest else frames:
        left -= len(frame.body)
        if left < 0 and found:
            break
        found.append(frame)
    return found[::-1] if newest else found
