"""Logs: to stderr, structured, every line with the correlation id of its request and never with a credential."""

import logging
import sys
from contextvars import ContextVar
from typing import Final

import structlog

__all__ = ["CORRELATION", "configure_logging"]

CORRELATION: Final[ContextVar[str]] = ContextVar("correlation", default="")
"""The correlation id of the request that this task serves. A request has a task of its own, so nobody resets it."""

_KEPT = ("session", "era", "reason", "principal", "tool", "took_s")


def configure_logging(level: str) -> None:
    """Log to stderr: stdout may be a protocol's. Library records run through the same chain as ours."""
    shared: list[structlog.typing.Processor] = [
        _correlated,
        structlog.stdlib.ExtraAdder(allow=_KEPT),
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
                structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "uvicorn.error", "asyncio", "httpcore2", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _correlated(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    correlation = CORRELATION.get()
    return {**event, "correlation": correlation} if correlation else event
