"""What a replica tells of a session that an operator watches."""

from time import time
from typing import Final

import msgspec

from gateway.calls.live_session import LiveSession
from gateway.calls.session_frames import SeenFrame, StderrLine
from session_store.metadata import scrubbed_text

__all__ = ["FrameQuery", "FrameReport", "report_of", "seen_of"]

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


def report_of(live: LiveSession) -> FrameReport:
    """Who watches a session, and for how long."""
    seen = live.frames
    if seen is None:
        return FrameReport()
    return FrameReport(watched=True, by=seen.by, ends_in_s=round(max(0.0, seen.ends_at - time()), 1))


def seen_of(live: LiveSession, query: FrameQuery) -> FrameReport:
    """What was seen of a session."""
    report = report_of(live)
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
