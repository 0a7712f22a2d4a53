"""Logs: to stderr, structured, every line with the correlation id of its request and never with a credential."""

import contextlib
import logging
import os
import sys
from contextvars import ContextVar
from typing import Final, Protocol

from gateway.observability.log_lines import CallLines, LineFormatter
from session_store.context import current_session_id
from session_store.session import redact

__all__ = ["CLIENT", "CORRELATION", "call_lines", "configure_logging"]

CORRELATION: Final[ContextVar[str]] = ContextVar("correlation", default="")
"""The correlation id of the request that this task serves. A request has a task of its own, so nobody resets it."""

CLIENT: Final[ContextVar[str]] = ContextVar("client", default="")
"""The network address that request comes from: for lines and events of what was refused, never for a decision."""

_KEPT = (
    *("session", "era", "reason", "principal", "client", "server", "tool", "task", "outcome", "took_s", "took_ms"),
    *("cached", "pid", "workspace", "trust", "calls", "lasted_s", "in_flight", "correlations"),
    "context",  # fields of the session's context
    "correlation",  # of a call that ends, which need not be in the task that its request came with
)


class LogStream(Protocol):
    """Where lines are written."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...


def configure_logging(level: str, form: str = "auto", stream: LogStream | None = None) -> None:
    """Log to `stream`, by default stderr: stdout may be a protocol's. Records of libraries are formatted as those of
    the gateway.

    `form` is json, logfmt, pretty, or auto: pretty for a person at a terminal, else logfmt.
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
    """Takes the lines of calls that went well, where this program's log is that of `configure_logging`, for programs,
    and has such lines. None: they are logged as all others."""
    handlers = logging.getLogger().handlers
    if len(handlers) == 1 and isinstance(handlers[0], _LineHandler) and logging.getLogger().isEnabledFor(logging.INFO):
        return handlers[0].calls
    return None


class _LineHandler(logging.StreamHandler[LogStream]):
    """Writes each record at once, after the lines of calls that ended before it."""

    def __init__(self, stream: LogStream, formatter: LineFormatter) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self.calls = None if formatter.form is None else CallLines(formatter.form, self._write)

    def emit(self, record: logging.LogRecord) -> None:
        self._flush_calls()
        super().emit(record)

    def flush(self) -> None:
        """Write what waits. Also called when the process exits."""
        self._flush_calls()
        super().flush()

    def _flush_calls(self) -> None:
        if self.calls is not None:
            self.calls.flush()

    def _write(self, lines: str) -> None:
        with self.lock or contextlib.nullcontext():
            try:
                self.stream.write(lines)
                self.stream.flush()
            except Exception:
                self.handleError(logging.makeLogRecord({"msg": "lines of calls"}))


def _serving() -> dict[str, str]:
    """Return what the present task serves, as far as it is known."""
    found: dict[str, str] = {}
    if correlation := CORRELATION.get():
        found["correlation"] = correlation
    if session := current_session_id():
        found["session"] = redact(session)
    return found
