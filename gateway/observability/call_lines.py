"""Lines of calls that went well, written together.

While a gateway is busy, a line of its own for each call costs more than the call: a record of `logging`, the search for
who logs, a write. So a call leaves its facts here, and the lines of many calls are made and written at once. Everything
else is logged at once, and after the lines that wait. A process that is killed loses those of the last `LATEST_S`.
"""

import asyncio
import contextlib
import functools
import re
import select
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gateway.observability.ended_call import EndedCall
from gateway.observability.log_lines import Form, timestamp
from gateway.protocol.methods import METHODS
from session_store import Principal
from session_store.session import redact

__all__ = ["LATEST_S", "MOST", "CallLine", "CallLines", "in_ms", "shown_method"]

LATEST_S: Final = 0.05
"""A line is written this long after its call has ended, or earlier."""

MOST: Final = 64
"""As soon as this many wait, they are written: in 0.2 ms."""

_ABOUTS: Final = 512
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")


def shown_method(method: str) -> str:
    """A method as a line shows it."""
    return method if method in METHODS else _CONTROL.sub(" ", method)[:64]


def in_ms(took_s: float) -> float:
    """A duration as a line shows it."""
    return round(took_s * 1_000, 2)


class CallLine(msgspec.Struct, frozen=True, gc=False):
    """What the line of a call shows: the call, the era of its client, and the fields of the session that lines show."""

    call: EndedCall
    era: str
    context: Mapping[str, str]


class CallLines:
    """The lines that wait. `write` gets lines with their ends; it is called by `flush`, and raises nothing."""

    def __init__(self, form: Form, write: Callable[[str], None]) -> None:
        self._form = form
        self._write = write
        self._waiting: deque[CallLine] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._about = functools.lru_cache(maxsize=_ABOUTS)(self._written_about)

    def add(self, line: CallLine) -> None:
        """Write the line soon, in the running event loop."""
        self._waiting.append(line)
        if len(self._waiting) >= MOST:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LATEST_S, self._late)

    def _late(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Write the lines that wait. Threads may call this.

        Workers share a pipe. What one of them writes at once is no more than a pipe takes as a whole, and ends with a
        line, so that none stands in another's line.
        """
        lines: list[str] = []
        size = 0
        with contextlib.suppress(IndexError):  # of an empty queue
            while True:
                line = self.line(self._waiting.popleft()) + "\n"
                length = len(line) if line.isascii() else len(line.encode("utf-8", "backslashreplace"))
                if lines and size + length > select.PIPE_BUF:
                    self._write("".join(lines))
                    lines, size = [], 0
                lines.append(line)
                size += length
        if lines:
            self._write("".join(lines))

    def line(self, line: CallLine) -> str:
        """The line of a call, as `log_lines.LineFormatter` formats its record."""
        fields, call = self._form.fields, line.call
        return self._form.line(
            timestamp(call.at),
            "info",
            shown_method(call.method),
            fields({"session": redact(call.session.id)})
            + self._about(line.era, call.session.principal, call.server, call.tool)
            + fields(
                {
                    "outcome": str(call.outcome),
                    "took_ms": in_ms(call.took_s),
                    **{f"context.{name}": value for name, value in line.context.items() if value},
                    "correlation": call.correlation,
                }
            ),
        )

    def _written_about(self, era: str, principal: Principal, server: str, tool: str) -> str:
        """The fields that many calls have in common."""
        about = {"era": era, "principal": str(principal), "server": server, "tool": tool}
        return self._form.fields({name: value for name, value in about.items() if value})
