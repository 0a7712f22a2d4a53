"""The facts of a session that servers and clients get, and the names of these facts. Pure: no I/O."""

import functools
import os
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gateway.config.context import CORRELATION_ID
from gateway.protocol.params import meta_of
from gateway.protocol.reserved_meta import RESERVED
from session_store import Context, Principal, Session
from session_store.session import redact
from transports.inbound_port import CORRELATION_KEY
from transports.jsonrpc import Object, encode

__all__ = [
    "CONTEXT_KEY",
    "RESTARTED_KEY",
    "SESSION_KEY",
    "TRACE_KEY",
    "WORKSPACE_KEY",
    "ContextMeta",
    "built_in",
    "context_meta",
    "correlation_id",
    "facts_of",
    "new_correlation_id",
    "trace_id_of",
    "trace_meta",
    "traced_error",
    "with_context",
    "with_meta",
    "workspace_source",
]

_OURS: Final = f"{RESERVED}/"
CONTEXT_KEY: Final = _OURS + "context"
SESSION_KEY: Final = _OURS + "session"
RESTARTED_KEY: Final = _OURS + "restarted"
TRACE_KEY: Final = _OURS + "trace"
WORKSPACE_KEY: Final = _OURS + "workspace"

# Correlation ids are no secrets, so a fast generator is enough. An app that is forked after it was loaded (gunicorn's
# `preload_app`) has other ids in each process.
_random: Final = random.Random()
os.register_at_fork(after_in_child=_random.seed)

# W3C Trace Context §3.2.2: version 00, a trace id and a parent id that are not all zero.
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def correlation_id(headers: Mapping[str, str], meta: Mapping[str, Any]) -> str:
    """Return the trace id of a valid `traceparent` (in `_meta`, else the header), or a new id of the same form."""
    for value in (meta.get("traceparent"), headers.get("traceparent")):
        if isinstance(value, str) and (found := trace_id_of(value)):
            return found
    return new_correlation_id()


def trace_id_of(traceparent: str) -> str:
    """Return the trace id of a `traceparent`; empty if it is not valid."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return "" if match is None else match[1]


def new_correlation_id() -> str:
    """Return a random correlation id in the form of a trace id (W3C Trace Context)."""
    return _random.getrandbits(128).to_bytes(16).hex()


def with_context(session: Session, context: Context) -> Session:
    """Return the record of a session, with the context of one request instead of the context that was stored last."""
    return session if context is session.context else msgspec.structs.replace(session, context=context)


def workspace_source(context: Context) -> str:
    """Return where the workspace comes from, as servers are told; empty if there is none."""
    return context.provenance.workspace if context.workspace else ""


def facts_of(session: Session, correlation: str) -> dict[str, str]:
    """Return the facts that servers are told of every session, by the names that the configuration uses."""
    return {name: fact(session) for name, fact in _FACTS.items()} | {CORRELATION_ID: correlation}


def built_in(session: Session, name: str) -> str:
    """Return the fact with that name, of those that every session has."""
    return (_FACTS.get(name) or _FURTHER[name])(session)


_FACTS: Final[Mapping[str, Callable[[Session], str]]] = {
    "session_id": lambda session: session.id,
    "workspace": lambda session: session.context.workspace,
    "workspace_provenance": lambda session: workspace_source(session.context),
    "trust": lambda session: session.context.trust,
    "principal": lambda session: str(session.principal),
    "agent": lambda session: session.client.name,
    "permissions": lambda session: " ".join(session.context.permissions),
}
_FURTHER: Final[Mapping[str, Callable[[Session], str]]] = {
    "principal.issuer": lambda session: session.principal.issuer,
    "principal.subject": lambda session: session.principal.subject,
    "endpoint": lambda session: session.endpoint,
}
"""Facts that servers are told only where the configuration names them."""


class ContextMeta(msgspec.Struct, frozen=True):
    """The value of `CONTEXT_KEY` in the `_meta` of messages to servers, for one session with one context. The messages
    differ in the correlation id alone: `before` and `after` are the JSON around it."""

    before: bytes
    after: bytes = b'"}'

    def of(self, correlation: str) -> msgspec.Raw:
        """Return the value for the request with that correlation id."""
        return msgspec.Raw(self.before + correlation.encode() + self.after)


def context_meta(session: Session) -> ContextMeta:
    """Return what servers are told of a session in `_meta`."""
    beginning = _context_beginning if len(session.context.workspace) <= _SHORT else _encoded_beginning
    return ContextMeta(beginning(session.id, session.principal, session.client.name, session.context))


def _encoded_beginning(session_id: str, principal: Principal, agent: str, context: Context) -> bytes:
    facts = {
        "session_id": session_id,
        "workspace": context.workspace,
        "workspace_provenance": workspace_source(context),
        "trust": context.trust,
        "principal": str(principal),
        "agent": agent,
        "permissions": context.permissions,
    }
    return encode(facts)[:-1] + b',"correlation_id":"'


_SHORT: Final = 256
"""Characters of a workspace. Contexts with longer ones are not cached, because clients choose them."""
_context_beginning = functools.lru_cache(maxsize=2_048)(_encoded_beginning)


def trace_meta(session: Session | None, correlation: str) -> Object:
    """Return the entry of a result's `_meta` by which clients can find the request in logs."""
    facts = {} if session is None else {"session": redact(session.id)}
    return {TRACE_KEY: msgspec.Raw(encode({**facts, CORRELATION_KEY: correlation}))}


def traced_error(error: bytes, correlation: str) -> bytes:
    """Return a server's error object with the correlation id in its `data`, unless `data` is of another type or has
    one."""
    try:
        found = msgspec.json.decode(error, type=Object)
        data = msgspec.json.decode(found["data"], type=Object | None) if "data" in found else {}
    except msgspec.MsgspecError:
        return error
    data = data or {}
    if not correlation or CORRELATION_KEY in data:
        return error
    return encode(found | {"data": msgspec.Raw(encode({**data, CORRELATION_KEY: correlation}))})


def with_meta(result: Object, additions: Mapping[str, msgspec.Raw]) -> Object:
    """Return a result with these entries added to its `_meta`."""
    meta = meta_of(result)
    return result | {"_meta": msgspec.Raw(encode({**meta, **additions}))}
