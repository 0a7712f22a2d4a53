"""Sessions: what they are, how they are kept. Knows nothing of HTTP, MCP methods or transports."""

from session_store.base import (
    AuditEvent,
    AuditTrail,
    Backend,
    Bus,
    Directory,
    Event,
    EventLog,
    Gone,
    Quotas,
    Rates,
    SessionGone,
    SessionStore,
    StateStore,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownEvent,
)
from session_store.connect import backend_for
from session_store.context import MISSING, NoSession, SessionState, ToolSession, current_session
from session_store.limits import InvalidState
from session_store.memory import MemoryBackend, MemoryEventLog, MemorySessionStore
from session_store.metadata import InvalidMetadata
from session_store.session import ANONYMOUS, ClientFacts, Context, InvalidContext, Principal, Session
from session_store.tokens import InvalidKeyRing, KeyRing, Purpose, TokenCodec

__all__ = [
    "ANONYMOUS",
    "MISSING",
    "AuditEvent",
    "AuditTrail",
    "Backend",
    "Bus",
    "ClientFacts",
    "Context",
    "Directory",
    "Event",
    "EventLog",
    "Gone",
    "InvalidContext",
    "InvalidKeyRing",
    "InvalidMetadata",
    "InvalidState",
    "KeyRing",
    "MemoryBackend",
    "MemoryEventLog",
    "MemorySessionStore",
    "NoSession",
    "Principal",
    "Purpose",
    "Quotas",
    "Rates",
    "Session",
    "SessionGone",
    "SessionState",
    "SessionStore",
    "StateStore",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "TokenCodec",
    "ToolSession",
    "UnknownEvent",
    "backend_for",
    "current_session",
]
