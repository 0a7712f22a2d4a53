"""Store sessions and the data that belongs to them. Does not know HTTP, MCP methods or transports."""

from session_store.connect import backend_for
from session_store.current_tool_session import current_session
from session_store.embedded.events import MemoryEventLog
from session_store.memory import MemoryBackend, MemorySessionStore
from session_store.ports.audit import AuditEvent, AuditTrail
from session_store.ports.backend import Backend
from session_store.ports.errors import (
    SessionGone,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownEvent,
    UnwrittenEvent,
)
from session_store.ports.events import Entry, Event, EventLog, EventStreams, Reserved, id_of_event
from session_store.ports.quotas import ExpiringFlags, Quotas, Rates, SealedValues
from session_store.ports.replica_directory import Bus, Directory
from session_store.ports.sessions import Gone, SessionStore
from session_store.ports.tasks import Task, TaskStatus, TaskStore
from session_store.ports.timelines import (
    HistoryRecord,
    HistoryStore,
    Timeline,
    TimelineEntry,
    TimelineHead,
    TimelinePart,
    TimelineStore,
)
from session_store.ports.tool_state import InvalidState, StateStore
from session_store.session import (
    ANONYMOUS,
    ClientFacts,
    Context,
    ContextField,
    InvalidContext,
    InvalidMetadata,
    Principal,
    Provenance,
    Session,
    Source,
)
from session_store.token_signing import InvalidKeyRing, KeyRing, Purpose, TokenCodec
from session_store.tool_session import MISSING, NoSession, SessionState, ToolSession

__all__ = [
    "ANONYMOUS",
    "MISSING",
    "AuditEvent",
    "AuditTrail",
    "Backend",
    "Bus",
    "ClientFacts",
    "Context",
    "ContextField",
    "Directory",
    "Entry",
    "Event",
    "EventLog",
    "EventStreams",
    "ExpiringFlags",
    "Gone",
    "HistoryRecord",
    "HistoryStore",
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
    "Provenance",
    "Purpose",
    "Quotas",
    "Rates",
    "Reserved",
    "SealedValues",
    "Session",
    "SessionGone",
    "SessionState",
    "SessionStore",
    "Source",
    "StateStore",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Task",
    "TaskStatus",
    "TaskStore",
    "Timeline",
    "TimelineEntry",
    "TimelineHead",
    "TimelinePart",
    "TimelineStore",
    "TokenCodec",
    "ToolSession",
    "UnknownEvent",
    "UnwrittenEvent",
    "backend_for",
    "current_session",
    "id_of_event",
]
