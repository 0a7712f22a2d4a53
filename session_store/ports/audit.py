"""The store of audit events."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

__all__ = ["AuditEvent", "AuditTrail"]


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened to a session or in it.

    `session` is the id as logs may show it; `at` is in seconds since the epoch. A call has its `tool` (server/name),
    its duration `took_s` and its `outcome`: ok, tool error, or an error code. `client` is the address of a refused
    client. `count` is the number of equal events that this one stands for. A session that has ended has its age
    `lasted_s` and the number of `calls` that its last replica has answered in it, None where that replica is not known.
    `context` has the fields of the session's context that the operator wants in events.
    `task`: a call became a task, or the task became what `outcome` says; `reason` begins with how the task's id begins.
    `blocked`: a sandbox has refused a server what `reason` says; `tool` is the server.
    `warned`: a client returns to none of the sessions that it opens.
    An event is in no cycle, so the collector need not look at the thousands that wait or are kept.
    """

    at: float
    event: Literal[
        "created",
        "resumed",
        "expired",
        "evicted",
        "ended",
        "refused",
        "called",
        "operated",
        "warned",
        "task",
        "blocked",
    ]
    session: str = ""
    principal: str = ""
    endpoint: str = ""
    era: str = ""
    reason: str = ""
    correlation: str = ""
    tool: str = ""
    outcome: str = ""
    took_s: float = 0.0
    client: str = ""
    count: int = 1
    context: Mapping[str, str] = msgspec.field(default_factory=dict)
    workspace: str = ""
    trust: str = ""
    lasted_s: float = 0.0
    calls: int | None = None


class AuditTrail(Protocol):
    """The audit trail, in parts (`session_store.audit`). Each part is bounded on its own, oldest first."""

    async def record(self, events: Sequence[AuditEvent]) -> None:
        """Store these events."""
        ...

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        """The newest events, newest first."""
        ...
