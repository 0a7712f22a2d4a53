"""The names of all keys. Keys that change together share a hash tag, so that Redis Cluster keeps them in one slot."""

import hashlib
import zlib
from typing import Final

from session_store.ports.accounting import Part

__all__ = [
    "READY",
    "REPLICAS",
    "SHARDS",
    "TASKS",
    "TIMELINES",
    "alias",
    "audit",
    "fate",
    "history",
    "lease",
    "lost",
    "mark",
    "of_session",
    "quota",
    "rate",
    "shard",
    "shard_of",
    "task",
    "tasks_of",
    "timeline",
]

SHARDS: Final = 16
"""Parts of the index of sessions: enough to spread over the nodes of a cluster, few enough to query all of them."""

REPLICAS: Final = "mcp:replicas"

TASKS: Final = "mcp:tasks"
"""The names of the newest tasks, by age. A hint for operators: the tasks themselves may be gone."""

TIMELINES: Final = "mcp:timelines"
"""The sessions that have a timeline, by when it was written last. Some of them may have expired."""

READY: Final = "mcp:ready"
"""Written to check that the store accepts writes."""


def of_session(session_id: str) -> tuple[str, str, str, str]:
    """Record, state, events and log of a session."""
    tag = f"mcp:{{{session_id}}}:"
    return tag + "session", tag + "state", tag + "events", tag + "log"


def claimed(session_id: str) -> str:
    """What is written to learn whether the copies of the server follow."""
    return f"mcp:{{{session_id}}}:claimed"


def fate(session_id: str) -> str:
    """How a session ended, until its shard of the index records that."""
    return f"mcp:{{{session_id}}}:fate"


def shard(number: int) -> tuple[str, str, str]:
    """Deadlines, ids and fates in one shard of the index."""
    tag = f"mcp:{{index-{number}}}:"
    return tag + "deadlines", tag + "ids", tag + "fates"


def shard_of(session_id: str) -> tuple[str, str, str]:
    """Return the shard of the index that contains the session."""
    return shard(zlib.crc32(session_id.encode()) % SHARDS)


def alias(name: str) -> str:
    """Return the session that an alias names. Hashed, because aliases contain principals."""
    return f"mcp:{{alias-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}}}"


def rate(name: str) -> str:
    """Return the rate of that name. Hashed, because names may contain principals."""
    return f"mcp:{{rate-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}}}"


def quota(name: str) -> str:
    """Return the names held under that quota. Hashed, because quotas may contain principals."""
    return f"mcp:{{quota-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}}}"


def audit(part: Part) -> str:
    """Return one part of the audit trail. The part of sessions has the name that earlier versions used for the whole
    trail."""
    return "mcp:audit" if part == "sessions" else f"mcp:audit-{part}"


def mark(name: str) -> str:
    """Return a mark of that name."""
    return f"mcp:{{mark-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}}}"


def lease(replica: str) -> str:
    """Return the lease of a replica. Its value is the replica's address."""
    return f"mcp:{{replica-{replica}}}:lease"


def lost(replica: str) -> str:
    """Sessions that other replicas have claimed from this one."""
    return f"mcp:{{replica-{replica}}}:lost"


def task(session_id: str, task_id: str) -> str:
    """Return a task of a session."""
    return f"mcp:{{{session_id}}}:task:{task_id}"


def tasks_of(session_id: str) -> str:
    """Return the ids of a session's tasks, by age. Some of them may have expired."""
    return f"mcp:{{{session_id}}}:tasks"


def timeline(session: str) -> tuple[str, str]:
    """Facts and entries of the timeline of the session whose id begins like that."""
    tag = f"mcp:{{timeline-{session}}}:"
    return tag + "facts", tag + "entries"


def history(step_s: int, stretch: int) -> str:
    """Return what replicas counted in records of that length, in one stretch of time."""
    return f"mcp:{{history-{step_s}-{stretch}}}"
