"""The part of a session's page that shows its messages and its stderr: facts, and what its forms ask for."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import re2 as re
from starlette.requests import Request

from gateway.admin.page import OPERATOR, Action, ConsoleOperators
from gateway.admin.reports import SessionRow, StderrPage
from gateway.calls.session_frames import StderrLine

__all__ = ["FRAME_ACTIONS", "exceptions_in", "frame_facts"]

_FRAMES: Final = 60
_LINES: Final = 200
_EXCEPTION: Final = re.compile(
    r"[\s|]{0,40}(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?:[Ee]rror|Exception|Interrupt): \S"
)
_MOST_EXCEPTIONS: Final = 4
_MOST_BROKEN: Final = 4
"""Lines into which one exception is broken by programs that write tracebacks in columns (rich)."""
_FRAMED: Final = ("╭", "│", "╰", "|", "+")


async def frame_facts(operators: ConsoleOperators, request: Request, row: SessionRow) -> dict[str, Any]:
    """The variables of `frames.html` for a live session: its newest messages first. `frames` is None if the operator
    may not see them: then `stderr` has what is kept of each process."""
    by = request.scope.get(OPERATOR, "")
    both = await operators.watches.both(row.session, by, frames=_FRAMES, lines=_LINES)
    if both is None:
        kept = [StderrLine(number=0, server=one.server, text=text) for one in row.processes for text in one.stderr]
        frames, stderr = None, StderrPage(watched=False, lines=kept)
    else:
        frames, stderr = both
    exceptions = exceptions_in(line.text for line in stderr.lines)
    return {
        "frames": frames and {"page": frames, "newest": frames.frames[::-1]},
        "stderr": stderr,
        "exceptions": exceptions,
        "may_be_refused": not row.refused and any("Permission" in one or "EACCES" in one for one in exceptions),
    }


def exceptions_in(lines: Iterable[str]) -> list[str]:
    """The last lines that name an exception, each once, in their order: the cause of a failure is mostly one of them,
    in the middle of a long traceback."""
    every = [*lines]
    found = dict.fromkeys(_whole(every, at) for at in reversed(range(len(every))) if _EXCEPTION.match(every[at]))
    return [*found][:_MOST_EXCEPTIONS][::-1]


def _whole(lines: Sequence[str], at: int) -> str:
    """The exception of a line, with the lines below it that go on in its column."""
    indent = len(lines[at]) - len(lines[at].lstrip(" "))
    parts = [lines[at].strip(" |\t")]
    for line in lines[at + 1 : at + _MOST_BROKEN] if indent else ():
        text = line.strip()
        begins = len(line) - len(line.lstrip(" "))
        if not text or begins != indent or text.startswith(_FRAMED) or _EXCEPTION.match(line):
            break
        parts.append(text)
    return " ".join(parts)


async def _switch_on(operators: ConsoleOperators, request: Request, operator: str) -> str:
    page = await operators.session(request.path_params["session"])
    await operators.watches.switch_on(page.session, operator)
    return f"/admin/sessions/{page.session}#frames"


async def _switch_off(operators: ConsoleOperators, request: Request, operator: str) -> str:
    page = await operators.session(request.path_params["session"])
    await operators.watches.switch_off(page.session, operator)
    return f"/admin/sessions/{page.session}#frames"


FRAME_ACTIONS: Final[dict[str, Action]] = {
    "/admin/sessions/{session}/frames/on": _switch_on,
    "/admin/sessions/{session}/frames/off": _switch_off,
}
