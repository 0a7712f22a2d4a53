"""Report what sandboxes refuse to servers: by a counter, a log line with the setting that would allow it, and an event
of the session.

A server can cause any number of refusals. The first ones are reported at once, repeated ones less and less often.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
from cachetools import TTLCache

from gateway.observability.escaped_text import visible_line
from gateway.observability.metrics import SANDBOX_REFUSALS

_MOST_ROWS: Final = 40
"""The most rows of one server in one session. All further refusals are counted in one more row."""
MOST_ROWS_OF_ALL: Final = 10_000
"""The most rows of all sessions together. Beyond that, the rows of the session whose last refusal is the oldest are
dropped."""
_ENDED_S: Final = 60.0
_MOST_ENDED: Final = 10_000


class RefusedRow(msgspec.Struct, frozen=True):
    """Equal refusals, as one row on the page of a session."""

    at: float
    """When the last of them occurred (Unix time). `SessionRefusals.add` sets it."""
    server: str
    kind: str
    """What kind of thing was refused, such as "connect" or "file" (`SANDBOX_REFUSALS`)."""
    what: str
    """The refused thing. Empty in the row that counts all refusals beyond `_MOST_ROWS`."""
    why: str
    allows: str
    """The setting that would allow it; empty if none does."""
    count: int
    """How often it was refused."""


class SessionRefusals:
    """Store the refusals of each session. A session is named by the beginning of its id, as in logs. `clock` returns
    Unix time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: dict[str, dict[tuple[str, str, str], RefusedRow]] = {}  # the session refused last is the last one
        self._rows = 0
        # Processes of a session that has ended are refused things until they have ended, too.
        self._ended: TTLCache[str, bool] = TTLCache(_MOST_ENDED, _ENDED_S, clock)

    def add(self, session: str, row: RefusedRow) -> None:
        """Store a row for a refusal, with the current time. If the session has a row for the same thing already, add
        the counts. Do nothing for a session that has just ended."""
        if session in self._ended:
            return
        rows = self._of.pop(session, {})
        key = (row.server, row.kind, row.what)
        if key not in rows and sum(server == row.server for server, _, _ in rows) >= _MOST_ROWS:
            key = (row.server, "other", "")
            row = msgspec.structs.replace(
                row, kind="other", what="", why="more things than are listed one by one", allows=""
            )
        before = rows.pop(key, None)
        self._rows += before is None
        while self._rows > MOST_ROWS_OF_ALL and self._of:
            self._rows -= len(self._of.pop(next(iter(self._of))))
        self._of[session] = rows
        rows[key] = msgspec.structs.replace(
            row,
            at=self._clock(),
            what=visible_line(row.what),
            allows=visible_line(row.allows),
            count=row.count + (0 if before is None else before.count),
        )

    def of(self, session: str) -> list[RefusedRow]:
        """Return the refusals of a session, the newest first."""
        return sorted(self._of.get(session, {}).values(), key=lambda row: -row.at)

    def forget(self, session: str) -> None:
        """Drop the refusals of a session that has ended on this replica. Ignore its further refusals for a minute,
        because its processes may still be ending."""
        self._rows -= len(self._of.pop(session, {}))
        self._ended[session] = True


logger = logging.getLogger(__name__)

MAX_REPORTED: Final = 40
"""The most different refusals of one process that are reported individually. Further ones are reported together."""

_AGAIN_S: Final = 60.0
_LOGGED_S: Final = 3_600.0
_LOGGED: Final = 1_024
_GRANTS: Final = {
    "connect": "reach",
    "name": "reach",
    "socket": "sockets",
    "listen": "listen",
    "file": "read",
    "processes": "processes",
    "memory": "total_memory_mb",
}
"""The field of the setting `sandbox` that would allow the refused access, by kind of refusal."""

_NUMBERS: Final = {
    "listen": "to listen on port {}",
    "processes": "more than {} processes and threads",
    "memory": "more than {} MiB of memory",
}
_AMOUNTS: Final = ("processes", "memory")
_TO_WRITE: Final = "not granted to be written"
_NEVER: Final = ("the gateway listens there", "a setuid or setgid bit", "datagrams", "an abstract name")
"""Reasons of refusals for which no setting would allow the access."""


class Refusal(msgspec.Struct, frozen=True):
    """Something that a sandbox has refused to a process, once or more often."""

    kind: str
    """What kind of thing was refused, such as "connect" or "file" (`SANDBOX_REFUSALS`)."""
    what: str
    """The refused thing, as it would be written in the setting that grants it. Empty: more things than are listed."""
    why: str
    """The reason, in a few words."""
    count: int = 1
    """How often it was refused."""


class BlockedEvent(Protocol):
    def __call__(self, *, session: str, server: str, reason: str, count: int) -> None: ...


def allowed_by(refused: Refusal) -> str:
    """Return the setting that would allow what was refused; empty if none does. The setting has its value, such as
    `sandbox.reach = ["x.org:443"]`, unless it is an amount, such as `sandbox.processes`."""
    field = "write" if refused.why == _TO_WRITE else _GRANTS.get(refused.kind)
    if not refused.what or field is None or refused.why in _NEVER:
        return ""
    if refused.kind in _AMOUNTS:
        return f"sandbox.{field}"
    if refused.what == "0":  # a port that the process has not chosen
        return ""
    value = refused.what if refused.kind in _NUMBERS else json.dumps(refused.what, ensure_ascii=False)
    return f"sandbox.{field} = [{value}]"


def sentence(server: str, refused: Refusal, package: str = "") -> str:
    """Return a sentence for operators: what was refused to the server, and which setting would allow it. If `package`
    is given, it was refused to the fetch of this package."""
    who = f"the fetch of package {package!r}" if package else f"server {server!r}"
    if not refused.what:
        return f"{who} was refused more things than are listed one by one"
    what = _NUMBERS.get(refused.kind, "{}").format(refused.what)
    said = f"{who} was refused {what} ({refused.why})"
    allowed = allowed_by(refused)
    if package:  # a fetch has one setting, and no session
        allowed = allowed.replace("sandbox.", "gateway.packages.") if allowed.startswith("sandbox.reach") else ""
    if allowed:
        said += f"; to allow {'more' if refused.kind in _AMOUNTS else 'it'}: {allowed}"
    return visible_line(said)


@dataclass(eq=False, repr=False)
class Refusals:
    """Report the refusals of all servers of this gateway."""

    counts: Counter[Any]
    """Counts the refusals by kind, for the metrics."""
    blocked: BlockedEvent
    """Records an event of the session about a refusal."""
    clock: Callable[[], float]
    shown: SessionRefusals
    """Stores the refusals for the pages of the sessions."""
    touched: Callable[[str, str], None] = lambda kind, what: None
    """Called with kind and name of each thing that a process touches, if its sandbox watches everything."""

    def __post_init__(self) -> None:
        self._logged: TTLCache[tuple[str, str, str], bool] = TTLCache(_LOGGED, _LOGGED_S, self.clock)

    def count(self, fields: Mapping[str, Any], refused: Refusal) -> None:
        """Count a refusal for the metrics, and store it for the page of its session, if it has one. `fields` are those
        of a log line about the process: `server`, `session` and others."""
        self.counts[refused.kind if refused.kind in SANDBOX_REFUSALS else "other"] += refused.count
        if session := str(fields.get("session", "")):
            server, allows = str(fields.get("server", "")), allowed_by(refused)
            row = RefusedRow(0.0, server, refused.kind, refused.what, refused.why, allows, refused.count)
            self.shown.add(session, row)

    def tell(self, fields: Mapping[str, Any], refused: Refusal) -> None:
        """Record the refusal as an event of its session. Unless the same line was logged lately, also log the refusal.
        `fields` are those of the log line."""
        server = str(fields.get("server", ""))
        said = sentence(server, refused, str(fields.get("package", "")))
        key = (said, refused.kind, refused.what)
        if key not in self._logged:
            self._logged[key] = True
            logger.warning("%s", said, extra=dict(fields))
        self.blocked(session=str(fields.get("session", "")), server=server, reason=said, count=refused.count)


class ProcessRefusals:
    """Report the refusals of one process. `fields` returns the current fields of its log lines."""

    def __init__(self, all_of: Refusals, fields: Callable[[], Mapping[str, Any]]) -> None:
        self._all = all_of
        self._fields = fields
        self.touched = all_of.touched
        # When to report the next one, the pause after that, and how many are not reported yet.
        self._reported: dict[tuple[str, str], tuple[float, float, int]] = {}

    def add(self, refused: Refusal) -> None:
        """Count a refusal. If it is the first one of this thing, report it at once (`Refusals.tell`). Further ones are
        reported together, with the next one after a pause, which doubles each time."""
        fields = self._fields()
        self._all.count(fields, refused)
        key = (refused.kind, refused.what)
        if key not in self._reported and len(self._reported) >= MAX_REPORTED:
            key, refused = ("other", ""), Refusal("other", "", "", refused.count)
        now = self._all.clock()
        next_at, pause, before = self._reported.get(key, (now, _AGAIN_S, 0))
        count = before + refused.count
        if now < next_at:
            self._reported[key] = (next_at, pause, count)
            return
        self._reported[key] = (now + pause, 2 * pause, 0)
        self._all.tell(fields, msgspec.structs.replace(refused, count=count))
