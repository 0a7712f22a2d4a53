"""The names of all keys. What has to change together shares a hash tag, so that Redis Cluster keeps it in one slot."""

import functools
import hashlib
import zlib
from typing import Final

from session_store.audit import Part

__all__ = [
    "READY",
    "REPLICAS",
    "SHARDS",
    "alias",
    "audit",
    "fate",
    "lease",
    "lost",
    "mark",
    "of_session",
    "quota",
    "rate",
    "shard",
    "shard_of",
]

SHARDS: Final = 16
"""Parts of the index of sessions: enough for a cluster's nodes to share it, few enough to ask all of them."""

REPLICAS: Final = "mcp:replicas"

READY: Final = "mcp:ready"
"""Written to find out whether anything can be."""


@functools.lru_cache(maxsize=4_096)
def of_session(session_id: str) -> tuple[str, str, str, str]:
    """Record, state, events and log of a session."""
    tag = f"mcp:{{{session_id}}}:"
    return tag + "session", tag + "state", tag + "events", tag + "log"


def fate(session_id: str) -> str:
    """What became of a session, until its part of the index says so."""
    return f"mcp:{{{session_id}}}:fate"


def shard(number: int) -> tuple[str, str, str]:
    """Deadlines, ids, and what became of ids, of one part of the index."""
    tag = f"mcp:{{index-{number}}}:"
    return tag + "deadlines", tag + "ids", tag + "fates"


def shard_of(session_id: str) -> tuple[str, str, str]:
    """The shard of the index that contains the session."""
    return shard(zlib.crc32(session_id.encode()) % SHARDS)


def alias(name: str) -> str:
    """An alias names principals, who are not to be read in key names."""
    return f"mcp:{{alias-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}}}"


def rate(name: str) -> str:
    """How often something of that name has happened. Names may be of principals, who are not to be read here."""
    return f"mcp:{{rate-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}}}"


def quota(name: str) -> str:
    """What of that name is held. Names may be of principals, who are not to be read here."""
    return f"mcp:{{quota-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}}}"


def audit(part: Part) -> str:
    """One part of the audit trail. That of sessions has the name that earlier versions gave to the whole."""
    return "mcp:audit" if part == "sessions" else f"mcp:audit-{part}"


def mark(name: str) -> str:
    """A mark of that name."""
    return f"mcp:{{mark-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}}}"


def lease(replica: str) -> str:
    """That a replica lives, and its address."""
    return f"mcp:{{replica-{replica}}}:lease"


def lost(replica: str) -> str:
    """Sessions that others have claimed from a replica."""
    return f"mcp:{{replica-{replica}}}:lost"
