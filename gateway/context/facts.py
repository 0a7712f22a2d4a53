"""The facts of a session that servers and clients get, and the names of these facts. Pure: no I/O."""

import functools
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gateway.errors import bad_context
from gateway.protocol.params import meta_of
from session_store import Context, Principal, Session
from session_store.session import redact
from transports.jsonrpc import Object, encode

__all__ = [
    "CONTEXT_KEY",
    "RESTARTED_KEY",
    "SESSION_KEY",
    "TRACE_KEY",
    "announced_workspace",
    "child_environment",
    "context_meta",
    "correlation_id",
    "fact_of",
    "facts_of",
    "new_correlation_id",
    "trace_meta",
    "with_context",
    "with_meta",
    "without_our_keys",
]

_OURS: Final = "io.github.mcp-session-gateway/"
CONTEXT_KEY: Final = _OURS + "context"
SESSION_KEY: Final = _OURS + "session"
RESTARTED_KEY: Final = _OURS + "restarted"
TRACE_KEY: Final = _OURS + "trace"

# Correlation ids are no secrets, so a fast generator is enough.
_random_bits = random.Random().getrandbits

# W3C Trace Context §3.2.2: version 00, a trace id and a parent id that are not all zero.
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def correlation_id(headers: Mapping[str, str], meta: Mapping[str, Any]) -> str:
    """The trace id of a valid `traceparent` (in `_meta`, else the header), or a new id of the same form."""
    for value in (meta.get("traceparent"), headers.get("traceparent")):
        if isinstance(value, str) and (match := _TRACEPARENT.fullmatch(value)):
            return match[1]
    return new_correlation_id()


def new_correlation_id() -> str:
    """A random correlation id in the form of a trace id (W3C Trace Context)."""
    return _random_bits(128).to_bytes(16).hex()


def announced_workspace(meta: Mapping[str, Any], path: str) -> str:
    """The workspace that a client announces, at that key or dotted path of its `_meta`; empty if it announces none.

    Raises:
        Refused: it is not a string.
    """
    value: Any = meta.get(path)
    if value is None:
        value = meta
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad_context(f"{path} must be a string")
    return value


def with_context(session: Session, context: Context) -> Session:
    """The record of a session, with the context of one request instead of the context that was stored last."""
    return session if context is session.context else msgspec.structs.replace(session, context=context)


def facts_of(session: Session, correlation: str) -> dict[str, str]:
    """The facts about a session that upstreams receive, by the names that the configuration uses."""
    return {name: fact(session) for name, fact in _FACTS.items()} | {"correlation_id": correlation}


def fact_of(session: Session, name: str) -> str:
    """The fact with that name."""
    return _FACTS[name](session)


_FACTS: Final[Mapping[str, Callable[[Session], str]]] = {
    "session_id": lambda session: session.id,
    "workspace": lambda session: session.context.workspace,
    "workspace_provenance": lambda session: session.context.provenance.workspace,
    "trust": lambda session: session.context.trust,
    "principal": lambda session: str(session.principal),
    "agent": lambda session: session.client.name,
    "permissions": lambda session: " ".join(session.context.permissions),
}


def child_environment(session: Session, names: Mapping[str, str], correlation: str) -> dict[str, str]:
    """The environment variables of a session's child process. A missing fact is an empty string.

    `names` maps variables to facts. Characters that an environment cannot hold are removed: clients choose some values.
    """
    facts = facts_of(session, correlation)
    return {
        variable: facts[fact].replace("\0", "").encode("utf-8", "replace").decode() for variable, fact in names.items()
    }


def context_meta(session: Session, correlation: str) -> msgspec.Raw:
    """The value of `CONTEXT_KEY` in the `_meta` of messages to servers."""
    # Only the end, the correlation id, differs between the messages of a session.
    return msgspec.Raw(
        _context_beginning(session.id, session.principal, session.client.name, session.context)
        + correlation.encode()
        + b'"}'
    )


@functools.lru_cache(maxsize=2_048)
def _context_beginning(session_id: str, principal: Principal, agent: str, context: Context) -> bytes:
    facts = {
        "session_id": session_id,
        "workspace": context.workspace,
        "workspace_provenance": context.provenance.workspace,
        "trust": context.trust,
        "principal": str(principal),
        "agent": agent,
        "permissions": context.permissions,
    }
    return encode(facts)[:-1] + b',"correlation_id":"'


def trace_meta(session: Session, correlation: str) -> Object:
    """The entry of a result's `_meta` by which clients can find the request in logs."""
    return {TRACE_KEY: msgspec.Raw(encode({"session": redact(session.id), "correlation_id": correlation}))}


def without_our_keys(meta: Object) -> Object:
    """The client's `_meta` without the keys that the gateway sets, so that no client can forge a context."""
    for key in meta:
        if key.startswith(_OURS):
            return {k: v for k, v in meta.items() if not k.startswith(_OURS)}
    return meta


def with_meta(result: Object, additions: Mapping[str, msgspec.Raw]) -> Object:
    """A result with these entries added to its `_meta`."""
    meta = meta_of(result)
    return result | {"_meta": msgspec.Raw(encode({**meta, **additions}))}
