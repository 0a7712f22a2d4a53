"""Formats log records as lines, for people and for programs.

One function collects the fields of a record, and one writes them. structlog's chain of processors and its form of
logfmt take three times as long, and a line can be written for each call.
"""

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from gateway.observability.visible import visible, visible_line

__all__ = ["FORMS", "LineFormatter"]

Render = Callable[[Any, str, dict[str, Any]], str | bytes]
Serving = Callable[[], Mapping[str, str]]
"""What the present task serves, as fields of its lines."""

_FIRST: Final = ("timestamp", "level", "event")


def _logfmt(_: object, __: str, line: dict[str, Any]) -> str:
    """`name=value` with spaces between. Values are quoted where they have to be."""
    parts = [f"{name}={_quoted(line[name])}" for name in _FIRST]
    parts += [f"{name}={_quoted(value)}" for name, value in line.items() if name not in _FIRST]
    return " ".join(parts)


def _quoted(value: Any) -> str:
    text = str(value)
    if " " in text or "=" in text or '"' in text:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return text.replace("\n", "\\n")


FORMS: Final[Mapping[str, Callable[[], Render]]] = {
    "json": structlog.processors.JSONRenderer,
    "logfmt": lambda: _logfmt,
    "pretty": functools.partial(structlog.dev.ConsoleRenderer, exception_formatter=structlog.dev.plain_traceback),
}


class LineFormatter(logging.Formatter):
    """Formats records of the gateway and of libraries alike.

    `form`: one of `FORMS`. `fields`: names of those attributes of a record that a line shows, in this order; a mapping
    becomes fields named `context.NAME`. `serving` is asked for the fields that a record lacks.
    """

    def __init__(self, form: str, fields: Sequence[str], serving: Serving) -> None:
        super().__init__()
        self._render = FORMS[form]()
        self._escapes = form == "json"  # JSON's encoder does
        self._fields = tuple(fields)
        self._serving = serving

    def format(self, record: logging.LogRecord) -> str:
        facts = record.__dict__
        line: dict[str, Any] = {"event": record.getMessage()}
        line |= {name: value for name, value in self._serving().items() if name not in facts}
        for name in self._fields:
            value = facts.get(name, "")
            if value == "":
                continue
            if not isinstance(value, str | int | float) and isinstance(value, Mapping):  # the second takes long
                line |= {f"context.{each}": text for each, text in value.items() if text != ""}
            else:
                line[name] = value
        line["level"] = record.levelname.lower()
        line["timestamp"] = _timestamp(record.created)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        if not self._escapes:
            line = {name: _shown(name, value) for name, value in line.items()}
        written = self._render(None, "", line)
        return written if isinstance(written, str) else written.decode()


def _shown(name: str, value: Any) -> Any:
    """Foreign text made harmless: it can neither control the terminal of a reader nor begin a line of its own."""
    if not isinstance(value, str):
        if isinstance(value, int | float | None):
            return value
        value = str(value)
    text: str = value
    if text.isascii() and text.isprintable():
        return text
    return visible(text) if name in ("exception", "stack") else visible_line(text)


@functools.lru_cache(maxsize=2)
def _second(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


def _timestamp(at: float) -> str:
    """UTC, in the form of ISO 8601, with microseconds."""
    whole = int(at)
    return f"{_second(whole)}.{int((at - whole) * 1e6):06d}Z"
