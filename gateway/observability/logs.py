"""Logs: to stderr, structured, every line with the correlation id of its request and never with a credential."""

import logging
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import structlog

from gateway.observability.visible import visible, visible_line
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


_RENDERERS: Final[Mapping[str, Callable[[], Any]]] = {
    "json": structlog.processors.JSONRenderer,
    "logfmt": partial(
        structlog.processors.LogfmtRenderer, key_order=["timestamp", "level", "event"], bool_as_flag=False
    ),
    "pretty": partial(structlog.dev.ConsoleRenderer, exception_formatter=structlog.dev.plain_traceback),
}


def configure_logging(level: str, form: str = "auto") -> None:
    """Log to stderr: stdout may be a protocol's. Records of libraries are formatted as those of the gateway.

    `form` is json, logfmt, pretty, or auto: pretty for a person at a terminal, else logfmt.
    """
    if form == "auto":
        form = "pretty" if sys.stderr.isatty() else "logfmt"
    shared: list[structlog.typing.Processor] = [
        _correlated,
        structlog.stdlib.ExtraAdder(allow=_KEPT),
        _flat,
        _without_empty,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                *([] if form == "json" else [_visible]),
                _RENDERERS[form](),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "uvicorn.error", "asyncio", "httpcore2", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _visible(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Make foreign text harmless: it can neither control the terminal of a reader nor begin a line of its own."""
    return {
        name: visible(value)
        if name == "exception"
        else visible_line(value if isinstance(value, str) else str(value))
        if not isinstance(value, int | float | None)
        else value
        for name, value in event.items()
    }


def _flat(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Each field of the context under a name of its own."""
    fields = event.pop("context", None)
    return {**event, **{f"context.{name}": value for name, value in fields.items()}} if fields else event


def _correlated(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add what the line's task serves, unless the line says it itself. An empty value says that there is none."""
    record: logging.LogRecord = event["_record"]
    found: dict[str, str] = {}
    if not hasattr(record, "correlation") and (correlation := CORRELATION.get()):
        found["correlation"] = correlation
    if not hasattr(record, "session") and (session := current_session_id()):
        found["session"] = redact(session)
    return {**found, **event}


def _without_empty(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: value for name, value in event.items() if value != "" or name == "event"}
