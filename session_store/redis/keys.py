"""Name all keys. Keys that change together share a hash tag, so that Redis Cluster keeps them in one slot."""

import hashlib
import zlib
from typing import Final, Literal

from session_store.ports.accounting import Part

SHARDS: Final = 16
"""Parts of the index of sessions: enough to spread over the nodes of a cluster, few enough to query all of them."""

REPLICAS: Final = "mcp:replicas"

TASKS: Final = "mcp:tasks"
"""The names of the newest tasks, by age. A hint for operators: the tasks themselves may be gone."""

TIMELINES: Final = "mcp:timelines"
"""The sessions that have a timeline, by the time of the last write. Some of them may have expired."""

READY: Final = "mcp:ready"
"""The key that is written to check that the store accepts writes."""


def of_session(session_id: str) -> tuple[str, str, str, str]:
    """Return the keys of a session's record, state, events and log."""
    tag = f"mcp:{{{session_id}}}:"
    return tag + "session", tag + "state", tag + "events", tag + "log"


def claimed(session_id: str) -> str:
    """Return the key that is written to learn whether the copies of the server follow."""
    return f"mcp:{{{session_id}}}:claimed"


def last_status(session_id: str) -> str:
    """Return the key that says how a session ended. It is kept until the session's shard of the index records that."""
    return f"mcp:{{{session_id}}}:fate"


def shard(number: int) -> tuple[str, str, str]:
    """Return the keys of one shard of the index: deadlines, ids and statuses."""
    tag = f"mcp:{{index-{number}}}:"
    return tag + "deadlines", tag + "ids", tag + "fates"


def shard_of(session_id: str) -> tuple[str, str, str]:
    """Return the keys of the shard of the index that contains the session (`shard` names the three)."""
    return shard(zlib.crc32(session_id.encode()) % SHARDS)


def hashed(kind: Literal["alias", "rate", "quota", "mark"], name: str) -> str:
    """Return the key of a name of that kind. Hashed, because names may contain principals. `mark`: an expiring flag."""
    return f"mcp:{{{kind}-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}}}"


def audit(part: Part) -> str:
    """Return the key of one part of the audit trail. Earlier versions used that of `sessions` for the whole trail."""
    return "mcp:audit" if part == "sessions" else f"mcp:audit-{part}"


def lease(replica: str) -> str:
    """Return the key of a replica's lease. Its value is the replica's address."""
    return f"mcp:{{replica-{replica}}}:lease"


def lost(replica: str) -> str:
    """Return the key of the sessions that other replicas have claimed from this one."""
    return f"mcp:{{replica-{replica}}}:lost"


def task(session_id: str, task_id: str) -> str:
    """Return the key of a task."""
    return f"mcp:{{{session_id}}}:task:{task_id}"


def tasks_of(session_id: str) -> str:
    """Return the key of the ids of a session's tasks, by age. Some of the tasks may have expired."""
    return f"mcp:{{{session_id}}}:tasks"


def timeline(session: str) -> tuple[str, str]:
    """Return the keys of a timeline's facts and entries. `session` is the start of the session's id."""
    tag = f"mcp:{{timeline-{session}}}:"
    return tag + "facts", tag + "entries"


def history(step_s: int, stretch: int) -> str:
    """Return the key of the history with one record each `step_s` seconds, in the period with number `stretch`."""
    return f"mcp:{{history-{step_s}-{stretch}}}"
