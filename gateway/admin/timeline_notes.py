"""What a row of a session's timeline says beside itself, out of what happened at the same time. Pure.

A server that was refused a file mostly tells its caller something vague, and a process that has to start first makes a
tool look slow.
"""

from collections.abc import Sequence
from typing import Final

from gateway.admin.explained_failures import refused_near
from gateway.admin.formatting import took
from gateway.admin.reports import TimelineRow
from gateway.sandbox.refusals import RefusedRow

__all__ = ["notes_of"]

_SHORT_S: Final = 0.05
_ROUNDED_S: Final = 0.01
"""Times of entries are rounded to a millisecond, and written by different parts."""


def notes_of(rows: Sequence[TimelineRow], refused: Sequence[RefusedRow]) -> list[list[str]]:
    """The notes of each row. `refused`: what the session's sandboxes refused, where it is live."""
    starts = [row for row in rows if row.kind == "server" and row.name == "started"]
    return [_notes(row, starts, refused) for row in rows]


def _notes(row: TimelineRow, starts: Sequence[TimelineRow], refused: Sequence[RefusedRow]) -> list[str]:
    if row.kind != "call" or row.count != 1:
        return []
    found = [_refused(one) for one in refused_near(row.server, row.at, row.until, refused)] if row.has_failed else []
    return [*found, *filter(None, (_waited(row, start) for start in starts if start.server == row.server))]


def _refused(row: RefusedRow) -> str:
    said = f"its sandbox refused {row.kind} {row.what} just before"
    return f"{said}: {row.allows} allows it" if row.allows else said


def _waited(call: TimelineRow, start: TimelineRow) -> str:
    """How long the call waited for that start; empty if it did not."""
    ready = start.at + start.took_s
    if call.took_s < _SHORT_S or not call.at - _ROUNDED_S <= ready <= call.until + _ROUNDED_S:
        return ""
    if start.why:  # without a handshake, nobody knows when the process was ready: its first answer came with the call's
        return f"the first answer of a new process: {took(call.took_s)} includes its start"
    waited = min(ready - call.at, start.took_s)
    return f"waited {took(waited)} for the start of {call.server}" if waited >= _SHORT_S else ""
