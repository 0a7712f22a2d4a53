"""Find out if an output line that is not a valid message was meant as an answer, and to which request. Limit the log
lines about such lines.

Pure. Decides from the text alone and never guesses: a log line on stdout must not fail a call."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from transports.jsonrpc import UNREADABLE, Object
from transports.upstream.line_splitter import EXCERPT_BYTES

_OWN_KEYS: Final = frozenset({"jsonrpc", "id", "result", "error"})

# The text before the first key that tells the kind of message. Ids at a deeper level belong to other objects.
_HEAD: Final = re.compile(
    rb"\s*\{\s*"
    rb'(?:"jsonrpc"\s*:\s*"[^"\\]{0,16}"\s*,\s*|"id"\s*:\s*(?P<id>\d{1,18}|null|"[^"\\]{0,64}")\s*,\s*){0,2}'
    rb'"(?P<kind>method|params|result|error)"'
)
_VERSION: Final = rb'(?:\s*,\s*"jsonrpc"\s*:\s*"2\.0")?'
_TAIL: Final = re.compile(rb"[}\]]" + _VERSION + rb'\s*,\s*"id"\s*:\s*(\d{1,18})\s*' + _VERSION + rb"\s*\}\s*$")


class LineMeaning(NamedTuple):
    """The probable meaning of a line that is not a valid message."""

    is_answer: bool | None
    """Whether the line was meant as an answer; None if unknown."""
    request_id: int | None = None
    """The id of the answered request; None if it is unknown, or cannot be an id that the gateway has given."""


_UNKNOWN: Final = LineMeaning(None)


def probable_meaning(line: bytes) -> LineMeaning:
    """Return whether a complete line that is not a valid message was probably meant as an answer, and to which
    request."""
    try:
        found = msgspec.json.decode(line, type=Object)
    except UNREADABLE:
        return meaning_of_excerpt(line[:EXCERPT_BYTES], line[-EXCERPT_BYTES:])
    if "method" in found:
        return LineMeaning(False)
    if "jsonrpc" not in found and not ("id" in found and len(found) > 1 and found.keys() <= _OWN_KEYS):
        return _UNKNOWN
    name = bytes(found.get("id", b""))
    return LineMeaning(True, int(name) if name.isdigit() and len(name) <= 18 else None)


def meaning_of_excerpt(head: bytes, tail: bytes) -> LineMeaning:
    """Return the same as `probable_meaning` for a line that is not JSON, or was too long to keep. `head` are the line's
    first bytes, and `tail` its last."""
    first = _HEAD.match(head)
    if first is not None and first["kind"] in (b"method", b"params"):
        return LineMeaning(False)
    if first is not None and first["id"] is not None:
        return LineMeaning(True, int(first["id"]) if first["id"].isdigit() else None)
    last = _TAIL.search(tail) if first is not None else None
    if last is not None:
        return LineMeaning(True, int(last[1]))
    return LineMeaning(True) if first is not None and b'"jsonrpc"' in head + tail else _UNKNOWN


EVERY_S: Final = 60.0
MOST_KINDS: Final = 8
"""Maximum number of different lines of one topic that are logged in `EVERY_S` seconds. Lines with a time or a number
are always different."""
MOST_LOOKED_AT: Final = 256
"""Maximum number of lines of one topic in `EVERY_S` seconds that are redacted and compared with earlier ones: redaction
takes long."""


class LineBudget:
    """Limit the log lines that one server's processes cause. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._logged: set[tuple[str, ...]] = set()
        self._lines = Counter[str]()
        self._silent = Counter[str]()
        self._looked_at = Counter[str]()

    def is_spent(self, topic: str, *, now: float) -> bool:
        """Count a line of this topic, before its text is looked at. Return True if so many lines of the topic came
        lately that this one is neither looked at nor logged."""
        self._looked_at[topic] = 0 if now - self._began >= EVERY_S else self._looked_at[topic] + 1
        if self._looked_at[topic] < MOST_LOOKED_AT:
            return False
        self._silent[topic] += 1
        return True

    def add(self, topic: str, *kind: str, now: float) -> int | None:
        """Count a line, and decide if it is logged. Lines of one topic and `kind` count as the same line.

        Return None if the line is not to be logged: the same line was logged within a minute, or many others of its
        topic were. Otherwise return how many lines of the topic were left out since the last logged one (0: none)."""
        if now - self._began >= EVERY_S:
            self._began = now
            self._logged.clear()
            self._lines.clear()
            self._looked_at.clear()
        if (topic, *kind) in self._logged or self._lines[topic] >= MOST_KINDS:
            self._silent[topic] += 1
            return None
        self._logged.add((topic, *kind))
        self._lines[topic] += 1
        return self._silent.pop(topic, 0)


def log_line(
    logger: logging.Logger, before: int | None, what: str, more: str, fields: Callable[[], Mapping[str, Any]]
) -> None:
    """Log `what` and `more` as one line, with the fields that `fields` returns. `before` is the number of lines that
    were left out before this one: if it is not 0, the line says so. None: this line is over the limit
    (`LineBudget.add`), and its level is debug instead of warning."""
    level = logging.DEBUG if before is None else logging.WARNING
    if logger.isEnabledFor(level):
        others = f" ({before} more before it, which have no line)" if before else ""
        logger.log(level, "%s%s%s", what, others, more, extra=fields())
