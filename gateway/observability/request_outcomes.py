"""Define how a request can end, and derive it from the result of a call. Pure: nothing is counted or logged here."""

import re
from typing import Final, Literal

import msgspec

from gateway.errors import CANCELLED as CANCELLED_CODE
from gateway.errors import CANCELLED_BY_CLIENT
from session_store import Session
from transports.jsonrpc import UNREADABLE

Kind = Literal["ok", "tool error", "error", "refused", "cancelled", "input required"]
"""How a request ended. `error`: an error response of a server or of the gateway. `refused`: the gateway refused the
request before it reached a server."""

FAILURES: Final[frozenset[Kind]] = frozenset({"tool error", "error", "refused"})


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended. `code`: the JSON-RPC code of an error response; None for every other answer."""

    kind: Kind
    code: int | None = None

    @classmethod
    def error(cls, code: int) -> "Outcome":
        return cls("cancelled" if code in (CANCELLED_CODE, CANCELLED_BY_CLIENT) else "error", code)

    @classmethod
    def refused(cls, code: int) -> "Outcome":
        """Return the outcome of a request that was refused before it reached a server."""
        return cls("refused", code)

    @property
    def is_failure(self) -> bool:
        """Return True if the request counts as failed."""
        return self.kind in FAILURES

    def __str__(self) -> str:
        """Return the text for the log, the audit trail and the console: the kind, and the code if there is one."""
        if self.code is None:
            return self.kind
        return f"refused {self.code}" if self.kind == "refused" else f"error {self.code}"


OK: Final = Outcome("ok")
TOOL_ERROR: Final = Outcome("tool error")
INPUT_REQUIRED: Final = Outcome("input required")
CANCELLED: Final = Outcome("cancelled")
"""The client closed its request before there was an answer."""

_IS_ERROR: Final = re.compile(rb'"isError"\s*:\s*true')


def is_complete(result: bytes) -> bool:
    """Return True if a result is certainly complete: a JSON object whose `resultType` is neither `input_required` nor
    `task`. This is a quick test of the bytes, and may return False for a complete result."""
    return result[:1] == b"{" and b'"input_required"' not in result and b'"task"' not in result


class _Result(msgspec.Struct):
    isError: bool = False
    resultType: str = ""


def outcome_of(result: bytes) -> Outcome:
    """Return the outcome of a call that was answered with `result` (JSON): `TOOL_ERROR` if its `isError` is true,
    `INPUT_REQUIRED` if its `resultType` (MCP 2026-07-28) says so, and otherwise `OK`."""
    # A search for the names first: most results have neither, and may be long.
    if b'"input_required"' not in result and not (b'"isError"' in result and _IS_ERROR.search(result)):
        return OK
    try:
        head = msgspec.json.decode(result, type=_Result)
    except UNREADABLE:
        return OK
    return TOOL_ERROR if head.isError else INPUT_REQUIRED if head.resultType == "input_required" else OK


class EndedCall(msgspec.Struct, frozen=True, gc=False):
    """An ended call of a session, for its log line, timelines and figures."""

    at: float
    """The Unix time of its end."""
    method: str
    tool: str
    """The name of the called tool; empty for methods other than tool calls."""
    server: str
    outcome: Outcome
    took_s: float
    session: Session
    correlation: str
    """The correlation id of the request."""
    why: str = ""
    """The error message; empty if the call did not fail."""
    is_listed: bool = True
    """False for a tool that the server does not list."""
