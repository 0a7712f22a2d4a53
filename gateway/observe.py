"""Logs: to stderr, structured, every line with the correlation id of its request and never with a credential."""

import contextlib
import logging
import sys
from collections.abc import Iterator

import structlog

__all__ = ["bound", "configure_logging"]

_KEPT = ("session", "era", "reason", "principal")


def configure_logging(level: str) -> None:
    """Log to stderr: stdout may be a protocol's. Library records run through the same chain as ours."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
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


@contextlib.contextmanager
def bound(*, correlation: str) -> Iterator[None]:
    """Log lines in this block carry the correlation id."""
    with structlog.contextvars.bound_contextvars(correlation=correlation):
        yield
