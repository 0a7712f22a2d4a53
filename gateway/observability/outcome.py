"""How a request ends, as a value. Pure: knows the kinds and their formats, not who counts or logs them."""

from typing import Final, Literal

import msgspec

from gateway.errors import CANCELLED as CANCELLED_CODE
from gateway.errors import CANCELLED_BY_CLIENT

__all__ = ["CANCELLED", "FAILURES", "INPUT_REQUIRED", "OK", "TOOL_ERROR", "Kind", "Outcome"]

Kind = Literal["ok", "tool error", "error", "refused", "cancelled", "input required"]
"""`error` is an error response of a server or of the gateway. `refused` is a request that reached no server."""

FAILURES: Final[frozenset[Kind]] = frozenset({"tool error", "error", "refused"})


class Outcome(msgspec.Struct, frozen=True):
    """How a request ends. `code` is the JSON-RPC code of an error response, None for every other answer."""

    kind: Kind
    code: int | None = None

    @classmethod
    def error(cls, code: int) -> "Outcome":
        """The outcome of an error response with that code."""
        return cls("cancelled" if code in (CANCELLED_CODE, CANCELLED_BY_CLIENT) else "error", code)

    @classmethod
    def refused(cls, code: int) -> "Outcome":
        """The outcome of a request that was refused before it reached a server."""
        return cls("refused", code)

    @property
    def is_failure(self) -> bool:
        """True if the request counts as failed."""
        return self.kind in FAILURES

    def __str__(self) -> str:
        """The form in the log, the audit trail and the console: the kind, and the code if there is one."""
        if self.code is None:
            return self.kind
        return f"refused {self.code}" if self.kind == "refused" else f"error {self.code}"


OK: Final = Outcome("ok")
TOOL_ERROR: Final = Outcome("tool error")
INPUT_REQUIRED: Final = Outcome("input required")
CANCELLED: Final = Outcome("cancelled")
"""The client closed its request before there was an answer."""
