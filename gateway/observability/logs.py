"""Write structured log lines to stderr, each with the correlation id of its request. Credentials are not logged."""

import asyncio
import contextlib
import functools
import json
import logging
import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol

import msgspec

from gateway.observability.escaped_text import visible, visible_line
from gateway.observability.request_outcomes import EndedCall
from gateway.protocol.methods import METHODS
from session_store import Principal
from session_store.current_tool_session import current_session_id
from session_store.session import redact

Serving = Callable[[], Mapping[str, str]]
"""Type of a function that returns the log fields of the request that the current task serves."""


class _Logfmt:
    """The format `name=value` with spaces in between. Values are quoted where necessary."""

    def fields(self, fields: Mapping[str, Any]) -> str:
        parts = ""
        for name, value in fields.items():
            text = str(value)
            parts += f" {name}={text if _PLAIN.fullmatch(text) else _quoted(name, text)}"
        return parts

    def line(self, at: str, level: str, event: str, fields: str) -> str:
        return f"timestamp={at} level={level} event={_quoted('event', event)}{fields}"


class _Json:
    """The format of one JSON object in each line. Characters beyond ASCII are escaped."""

    _encode = json.JSONEncoder(default=repr).encode

    def fields(self, fields: Mapping[str, Any]) -> str:
        return f", {self._encode(fields)[1:-1]}" if fields else ""

    def line(self, at: str, level: str, event: str, fields: str) -> str:
        return f'{{"event": {self._encode(event)}{fields}, "level": "{level}", "timestamp": "{at}"}}'


_PLAIN: Final = re.compile(r"[!#-<>-~]*")
"""A text that needs neither quotes nor escapes: printable ASCII without spaces, `"` and `=`."""


def _quoted(name: str, text: str) -> str:
    """Escape the value of a field, and put it into quotes where necessary."""
    text = _shown(name, text)
    if " " in text or "=" in text or '"' in text:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return text.replace("\n", "\\n")


class _Pretty:
    """The format for people, with the local time. A request is shown by its tool, outcome, duration, server and
    session; its other usual fields are shown only if it failed."""

    _STYLES: Final = {"error": "31", "critical": "31", "warning": "33", "debug": "2"}
    _LEFT_OUT: Final = ("tool", "outcome", "took_ms", "server", "session", "principal", "era", "correlation", "reason")

    def __init__(self, *, has_colour: bool) -> None:
        self._has_colour = has_colour

    def __call__(self, record: logging.LogRecord, fields: Mapping[str, Any]) -> str:
        facts = {name: _shown(name, str(value)) for name, value in fields.items()}
        below = "".join(f"\n{facts.pop(name)}" for name in ("exception", "stack") if name in facts)
        event, at = visible_line(record.getMessage()), time.strftime("%H:%M:%S", time.localtime(record.created))
        level = record.levelname.lower()
        if "outcome" in facts and "took_ms" in facts:
            words = self._request(event, facts)
        else:
            style = self._STYLES.get(level, "")
            words = [self._in(style, event if level == "info" else f"{level} {event}"), self._dim(facts)]
        return "  ".join(word for word in (self._in("2", at), *words) if word) + below

    def _request(self, event: str, facts: dict[str, str]) -> list[str]:
        outcome = facts["outcome"]
        is_good = outcome == "ok"
        name = f"{facts.get('tool') or event:<24}"
        words = [self._in("1", name), self._in("32" if is_good else "31", f"{outcome:<6}"), f"{facts['took_ms']:>7} ms"]
        words += [facts.get("server", ""), self._in("2", facts.get("session", ""))]
        if (principal := facts.get("principal", "anonymous")) != "anonymous":
            words.append(self._in("2", principal))
        words.append(facts.get("reason", ""))
        left_out = self._LEFT_OUT if is_good else [name for name in self._LEFT_OUT if name != "correlation"]
        words.append(self._dim({name: value for name, value in facts.items() if name not in left_out}))
        return words

    def _dim(self, facts: Mapping[str, str]) -> str:
        return self._in("2", " ".join(f"{name}={value}" for name, value in facts.items()))

    def _in(self, style: str, text: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if style and text and self._has_colour else text


Form = _Json | _Logfmt
"""A format for programs. Its method `fields` returns the part of a line that follows the event's name. Its method
`line` returns the whole line."""

FORMS: Final[Mapping[str, Form]] = {"json": _Json(), "logfmt": _Logfmt()}


class LineFormatter(logging.Formatter):
    """Format log records of the gateway and of libraries.

    `form`: one of `FORMS`, or `pretty`. `fields`: the attributes of a record that a line shows, in this order; a
    mapping becomes fields named `context.NAME`. `serving` returns fields that are added if the record lacks them.
    `has_colour`: pretty lines have colours for a terminal.
    """

    def __init__(self, form: str, fields: Sequence[str], serving: Serving, *, has_colour: bool = False) -> None:
        super().__init__()
        self.form = FORMS.get(form)
        self._pretty = _Pretty(has_colour=has_colour)
        self._fields = tuple(fields)
        self._serving = serving

    def format(self, record: logging.LogRecord) -> str:
        facts = record.__dict__
        fields: dict[str, Any] = {name: value for name, value in self._serving().items() if name not in facts}
        for name in self._fields:
            value = facts.get(name, "")
            if value == "":
                continue
            if not isinstance(value, str | int | float) and isinstance(value, Mapping):  # the second takes long
                fields |= {f"context.{each}": text for each, text in value.items() if text != ""}
            else:
                fields[name] = value
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        if self.form is None:
            return self._pretty(record, fields)
        at, level = timestamp(record.created), record.levelname.lower()
        return self.form.line(at, level, record.getMessage(), self.form.fields(fields))


def _shown(name: str, text: str) -> str:
    """Escape control characters in a text, so that it cannot control a terminal or begin a new line. Exceptions and
    stack traces keep their line breaks."""
    if text.isascii() and text.isprintable():
        return text
    return visible(text) if name in ("exception", "stack") else visible_line(text)


@functools.lru_cache(maxsize=2)
def _second(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


def timestamp(at: float) -> str:
    """Return a Unix time in ISO 8601, in UTC with microseconds."""
    whole = int(at)
    return f"{_second(whole)}.{int((at - whole) * 1e6):06d}Z"


LATEST_S: Final = 0.05
"""The maximum time in seconds from the end of a call until its line is written."""

MOST: Final = 64
"""Number of buffered lines that are written without waiting for `LATEST_S`. It takes 0.2 ms."""

_ABOUTS: Final = 512
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")


def shown_method(method: str) -> str:
    """Return a method's name for a log line. An unknown name is cut, and its control characters are replaced."""
    return method if method in METHODS else CONTROL.sub(" ", method)[:64]


def in_ms(took_s: float) -> float:
    """Convert seconds to milliseconds with two decimals, for log lines."""
    return round(took_s * 1_000, 2)


class CallLine(msgspec.Struct, frozen=True, gc=False):
    """The content of a call's log line: the call, its client's era (`legacy` or `modern`), and fields of the session's
    context."""

    call: EndedCall
    era: str
    context: Mapping[str, str]


class CallLines:
    """Buffer the log lines of successful calls, and write many at once, with the function `write`. It gets whole lines,
    and must not raise.

    Logging each call by itself (a record of `logging`, the search for handlers, a write) would cost more than the call.
    So a call only adds its facts here. Every other record is logged immediately, after the buffered lines. A process
    that is killed loses the lines of its last `LATEST_S` seconds.
    """

    def __init__(self, form: Form, write: Callable[[str], None]) -> None:
        self._form = form
        self._write = write
        self._waiting: deque[CallLine] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._about = functools.lru_cache(maxsize=_ABOUTS)(self._written_about)

    def add(self, line: CallLine) -> None:
        """Add a line, which is written within `LATEST_S` seconds. Must be called in an event loop."""
        self._waiting.append(line)
        if len(self._waiting) >= MOST:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LATEST_S, self._late)

    def _late(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Write the buffered lines. Any thread may call this.

        Several worker processes share a pipe. So each write has only whole lines, and no more bytes than a pipe accepts
        atomically (`PIPE_BUF`): otherwise lines of two workers could mix.
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
        """Return the log line of a call. It must equal the line of `LineFormatter` for the same facts."""
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
        """Return the part of a log line that has era, principal, server and tool. Cached, because many calls have the
        same."""
        about = {"era": era, "principal": str(principal), "server": server, "tool": tool}
        return self._form.fields({name: value for name, value in about.items() if value})


CORRELATION: Final[ContextVar[str]] = ContextVar("correlation", default="")
"""The correlation id of the request that the current task serves. Never reset: each request has its own task."""

CLIENT: Final[ContextVar[str]] = ContextVar("client", default="")
"""The network address of the client whose request the current task serves. Used only in log lines and audit events
about refusals, never for a decision."""

_KEPT = (
    *("session", "era", "reason", "principal", "client", "server", "tool", "task", "outcome", "took_s", "took_ms"),
    *("cached", "pid", "workspace", "trust", "calls", "lasted_s", "in_flight", "correlations", "why"),
    "context",  # fields of the session's context
    "correlation",  # of a call, which may end in another task than that of its request
)


def log_formatter(form: Literal["json", "logfmt", "pretty"] = "logfmt") -> logging.Formatter:
    """Return the formatter of the gateway's log lines, for a handler of a program that embeds a gateway. With another
    formatter, lines lack the correlation id, the session, and what else a record has beside its message."""
    return LineFormatter(form, _KEPT, _serving)


class LogStream(Protocol):
    """The stream to which log lines are written, such as `sys.stderr`."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...


def configure_logging(level: str, form: str = "auto", stream: LogStream | None = None) -> None:
    """Set up logging to `stream` for the gateway and all libraries.

    The default is stderr, because stdout may be used for a protocol. `form`: json, logfmt, pretty, or auto, which is
    pretty on a terminal and logfmt elsewhere.
    """
    if form == "auto":
        form = "pretty" if sys.stderr.isatty() else "logfmt"
    root = logging.getLogger()
    has_colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    formatter = LineFormatter(form, _KEPT, _serving, has_colour=has_colour)
    root.handlers[:] = [_LineHandler(stream or sys.stderr, formatter)]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "uvicorn.error", "asyncio", "httpcore2", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def call_lines() -> CallLines | None:
    """Return the buffer for the log lines of successful calls. Return None if they must be logged like other records:
    another handler is set up, the format is for people, or the level is above info."""
    handlers = logging.getLogger().handlers
    if len(handlers) == 1 and isinstance(handlers[0], _LineHandler) and logging.getLogger().isEnabledFor(logging.INFO):
        return handlers[0].calls
    return None


class _LineHandler(logging.StreamHandler[LogStream]):
    """Write each record immediately, after the buffered lines of calls."""

    def __init__(self, stream: LogStream, formatter: LineFormatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self.calls = None if formatter.form is None else CallLines(formatter.form, self._write)

    def emit(self, record: logging.LogRecord) -> None:
        if self.calls is not None:
            self.calls.flush()
        super().emit(record)

    def flush(self) -> None:
        """Write the buffered lines of calls. `logging` also calls this when the process exits."""
        if self.calls is not None:
            self.calls.flush()
        super().flush()

    def _write(self, lines: str) -> None:
        with self.lock or contextlib.nullcontext():
            try:
                self.stream.write(lines)
                self.stream.flush()
            except Exception:
                self.handleError(logging.makeLogRecord({"msg": "lines of calls"}))


def _serving() -> dict[str, str]:
    """Return the correlation id and the shortened session id of the request that the current task serves, if known."""
    found: dict[str, str] = {}
    if correlation := CORRELATION.get():
        found["correlation"] = correlation
    if session := current_session_id():
        found["session"] = redact(session)
    return found
