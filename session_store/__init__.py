"""Sessions: what they are, how they are kept. Knows nothing of HTTP, MCP methods or transports."""

from session_store.base import (
    Event,
    EventLog,
    Gone,
    SessionStore,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownEvent,
)
from session_store.memory import MemoryEventLog, MemorySessionStore
from session_store.session import ANONYMOUS, ClientFacts, Context, InvalidContext, Principal, Session
from session_store.tokens import InvalidKeyRing, KeyRing, Purpose, TokenCodec

__all__ = [
    "ANONYMOUS",
    "ClientFacts",
    "Context",
    "Event",
    "EventLog",
    "Gone",
    "InvalidContext",
    "InvalidKeyRing",
    "KeyRing",
    "MemoryEventLog",
    "MemorySessionStore",
    "Principal",
    "Purpose",
    "Session",
    "SessionStore",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "TokenCodec",
    "UnknownEvent",
]
