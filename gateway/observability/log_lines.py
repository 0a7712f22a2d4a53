"""Formats log records as lines, for people and for programs.

A form writes fields as text, and puts a line together from such texts: what many lines have in common is written once
(`gateway.observability.call_lines`). structlog's chain of processors and its form of logfmt take three times as long.
"""

import functools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from gateway.observability.visible import visible, visible_line

__all__ = ["FORMS", "Form", "LineFormatter", "timestamp"]

Serving = Callable[[], Mapping[str, str]]
"""What the present task serves, as fields of its lines."""


class Form(Protocol):
    """How lines look to programs."""

    def fields(self, fields: Mapping[str, Any]) -> str:
        """Fields as a part of a line."""

    def line(self, at: str, level: str, event: str, fields: str) -> str:
        """A line with such parts, without its end."""


class _Logfmt:
    """`name=value` with spaces between. Values are quoted where they have to be."""

    def fields(self, fields: Mapping[str, Any]) -> str:
        return "".join([f" {name}={_logfmt_value(name, value)}" for name, value in fields.items()])

    def line(self, at: str, level: str, event: str, fields: str) -> str:
        return f"timestamp={at} level={level} event={_logfmt_value('event', event)}{fields}"


class _Json:
    """A JSON object. All that is not ASCII is escaped."""

    _encode = json.JSONEncoder(default=repr).encode

    def fields(self, fields: Mapping[str, Any]) -> str:
        return f", {self._encode(fields)[1:-1]}" if fields else ""

    def line(self, at: str, level: str, event: str, fields: str) -> str:
        return f'{{"event": {self._encode(event)}{fields}, "level": "{level}", "timestamp": "{at}"}}'


def _logfmt_value(name: str, value: Any) -> str:
    text = str(_shown(name, value))
    if " " in text or "=" in text or '"' in text:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return text.replace("\n", "\\n")


class _Pretty:
    """For people: structlog's form, which makes a whole line at once."""

    def __init__(self) -> None:
        self._render = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)

    def __call__(self, line: dict[str, Any]) -> str:
        written = self._render(None, "", {name: _shown(name, value) for name, value in line.items()})
        return written if isinstance(written, str) else written.decode()


FORMS: Final[Mapping[str, Form]] = {"json": _Json(), "logfmt": _Logfmt()}
"""The forms for programs, by name."""


class LineFormatter(logging.Formatter):
    """Formats records of the gateway and of libraries alike.

    `form`: one of `FORMS`, or `pretty`. `fields`: names of those attributes of a record that a line shows, in this
    order; a mapping becomes fields named `context.NAME`. `serving` is asked for the fields that a record lacks.
    """

    def __init__(self, form: str, fields: Sequence[str], serving: Serving) -> None:
        super().__init__()
        self.form = FORMS.get(form)
        self._pretty = _Pretty()
        self._fields = tuple(fields)
        self._serving = serving

    def format(self, record: logging.LogRecord) -> str:
        facts = record.__dict__
        at, level, event = timestamp(record.created), record.levelname.lower(), record.getMessage()
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
            return self._pretty({"event": event, **fields, "level": level, "timestamp": at})
        return self.form.line(at, level, event, self.form.fields(fields))


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


def timestamp(at: float) -> str:
    """Unix time in the form of ISO 8601 in UTC, with microseconds."""
    whole = int(at)
    return f"{_second(whole)}.{int((at - whole) * 1e6):06d}Z"
