"""The limits of what clients may cost before they have authenticated, and the counter of refusals.

Pure, except that it reads this process's limit of open files. The composition root fills `Limits` from the settings.
"""

import enum
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Final

__all__ = [
    "MAX_CURSOR_BYTES",
    "MAX_FILTER_BYTES",
    "MAX_ID_CHARS",
    "MAX_LABEL_CHARS",
    "Limited",
    "Limits",
    "Refusals",
    "room_for_connections",
]

MAX_ID_CHARS: Final = 256
"""Request ids and progress tokens, which the gateway repeats. SDKs send numbers and UUIDs."""

MAX_CURSOR_BYTES: Final = 8 << 10
"""Cursors of lists. The gateway's contain those of the server."""

MAX_FILTER_BYTES: Final = 64 << 10
"""The filter of a `subscriptions/listen`, which is kept as long as its stream is open."""

MAX_LABEL_CHARS: Final = 512
"""`Host`, `Origin` and `Last-Event-ID`: a host name has 253 characters at most (RFC 1035 §2.3.4)."""

_KEPT_BACK: Final = 128
"""File descriptors reserved for the store, logs, listeners and libraries."""

_MOST: Final = 65_536
"""The most connections of a process that may open any number of files."""


class Limited(enum.StrEnum):
    """The limit that ended or refused a connection or a request. The values are labels of a metric."""

    FRAMING = "framing"
    HEAD_SIZE = "head_size"
    HEAD_TIME = "head_time"
    BODY_SIZE = "body_size"
    BODY_TIME = "body_time"
    WRITE_TIME = "write_time"
    PIPELINE = "pipeline"
    CONNECTIONS = "connections"
    PEER_CONNECTIONS = "peer_connections"
    BATCH = "batch"
    NAME = "name"
    URI = "uri"
    RECORD = "record"
    IN_FLIGHT = "in_flight"
    """Bodies of calls that have no answer yet."""
    HOP = "hop"
    """On the listener between replicas."""


Refusals = Counter[Limited]
"""How often, by kind: `refusals[Limited.BATCH] += 1`. One for the process, `Metrics.limited`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one process. Where a setting exists, it has the same default, with a reason (`LimitSettings`).

    Times are seconds, sizes bytes, lengths of texts characters after decoding.
    """

    head_bytes: int = 64 << 10
    headers: int = 128
    head_timeout_s: float = 10.0
    body_bytes: int = 4 << 20
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    write_timeout_s: float = 30.0
    connections: int = 1_024
    peer_connections: int = 512
    pipelined: int = 16
    batch_messages: int = 64
    """In a JSON-RPC batch. A larger one is refused before any of its messages is executed."""
    name_chars: int = 256
    """Names that clients send: tools, prompts, methods, clients."""
    uri_chars: int = 8 << 10
    """URIs that clients send. Browsers and proxies have similar limits."""
    record_bytes: int = 64 << 10
    """The client data in a session's record: the parameters of `initialize` and the subscriptions."""


def room_for_connections() -> int:
    """The most connections that this process has files for: half of its files, because servers need some too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(14, min(_MOST, (soft - _KEPT_BACK) // 2))
