"""Define the names of all Redis keys. Keys that change together share a hash tag, so that Redis Cluster stores them in
one slot."""

import hashlib
import zlib
from typing import Final, Literal

from session_store.ports.audit import Part

SHARDS: Final = 16
"""The number of shards of the session index: enough to spread over the nodes of a cluster, few enough to query them
all."""

REPLICAS: Final = "mcp:replicas"

CONFIGURATIONS: Final = "mcp:configurations"
"""The numbers of configurations, by digest, and the number that each replica holds, with the end of that hold."""

TASKS: Final = "mcp:tasks"
"""The names of the newest tasks, by age. A hint for operators: some of these tasks may have expired."""

TIMELINES: Final = "mcp:timelines"
"""The sessions that have a timeline, by the time of the last write. Some of the timelines may have expired."""

SEALED: Final = "mcp:sealed"
"""The names of sealed values, by the time at which they expire. Some of these values may be gone."""

READY: Final = "mcp:ready"
"""The key that is written to check that the store accepts writes."""


def of_session(session_id: str) -> tuple[str, str, str, str]:
    """Return the four keys that have a session's record, state, events and log."""
    tag = f"mcp:{{{session_id}}}:"
    return tag + "session", tag + "state", tag + "events", tag + "log"


def claimed(session_id: str) -> str:
    """Return the key that is written to check whether the copies of the server have all earlier writes."""
    return f"mcp:{{{session_id}}}:claimed"


def last_status(session_id: str) -> str:
    """Return the key that says how a session ended, until the session's shard of the index records it."""
    return f"mcp:{{{session_id}}}:fate"


def shard(number: int) -> tuple[str, str, str]:
    """Return the keys of one of the `SHARDS` shards of the session index: of its deadlines, its ids, and the statuses
    of ended sessions."""
    tag = f"mcp:{{index-{number}}}:"
    return tag + "deadlines", tag + "ids", tag + "fates"


def shard_of(session_id: str) -> tuple[str, str, str]:
    """Return the keys, as `shard` does, of that shard of the session index to which the session belongs."""
    return shard(zlib.crc32(session_id.encode()) % SHARDS)


def hashed(kind: Literal["alias", "rate", "quota", "mark", "sealed"], name: str) -> str:
    """Return the key under which something of this kind is stored by a name. The name is hashed, because it may contain
    a principal. `mark`: an expiring flag."""
    return f"mcp:{{{kind}-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}}}"


def audit(part: Part) -> str:
    """Return the key of one part of the audit trail. Earlier versions used the key of `sessions` for the whole
    trail."""
    return "mcp:audit" if part == "sessions" else f"mcp:audit-{part}"


def lease(replica: str) -> str:
    """Return the key of a replica's lease. Its value is the replica's address."""
    return f"mcp:{{replica-{replica}}}:lease"


def lost(replica: str) -> str:
    """Return the key of the list of sessions that a replica has lost: others have claimed them from it, and it has not
    acknowledged that yet."""
    return f"mcp:{{replica-{replica}}}:lost"


def task(session_id: str, task_id: str) -> str:
    return f"mcp:{{{session_id}}}:task:{task_id}"


def tasks_of(session_id: str) -> str:
    """Return the key of the index of a session's tasks: their ids, by age. Some of these tasks may have expired."""
    return f"mcp:{{{session_id}}}:tasks"


def timeline(session: str) -> tuple[str, str]:
    """Return the keys of a timeline: of its facts (`TimelineHead`), and of its entries. `session` is the start of the
    session's id."""
    tag = f"mcp:{{timeline-{session}}}:"
    return tag + "facts", tag + "entries"


def history(step_s: int, stretch: int) -> str:
    """Return the key of the history records for periods of `step_s` seconds. One key has the records of a stretch of
    many periods; `stretch` is the number of this stretch (`RedisHistory`)."""
    return f"mcp:{{history-{step_s}-{stretch}}}"
