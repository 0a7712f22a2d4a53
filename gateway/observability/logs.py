"""Logs: to stderr, structured, every line with the correlation id of its request and never with a credential."""

import logging
import sys
from contextvars import ContextVar
from typing import Final

from gateway.observability.log_lines import LineFormatter
from session_store.context import current_session_id
from session_store.session import redact

__all__ = ["CLIENT", "CORRELATION", "configure_logging"]

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


def configure_logging(level: str, form: str = "auto") -> None:
    """Log to stderr: stdout may be a protocol's. Records of libraries are formatted as those of the gateway.

    `form` is json, logfmt, pretty, or auto: pretty for a person at a terminal, else logfmt.
    """
    if form == "auto":
        form = "pretty" if sys.stderr.isatty() else "logfmt"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form, _KEPT, _serving))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "uvicorn.error", "asyncio", "httpcore2", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _serving() -> dict[str, str]:
    """What the present task serves, as far as it is known."""
    found: dict[str, str] = {}
    if correlation := CORRELATION.get():
        found["correlation"] = correlation
    if session := current_session_id():
        found["session"] = redact(session)
    return found
