"""A call of a session that has ended, as timelines and figures take it: made for every call, so of what is at hand."""

import msgspec

from gateway.observability.outcome import Outcome
from session_store import Session

__all__ = ["EndedCall"]


class EndedCall(msgspec.Struct, frozen=True, gc=False):
    """`at` is the Unix time of its end. `tool` is empty for other methods. `why` is the message of an error.
    `is_listed` is False for a tool that the server does not list."""

    at: float
    method: str
    tool: str
    server: str
    outcome: Outcome
    took_s: float
    session: Session
    correlation: str
    why: str = ""
    is_listed: bool = True
