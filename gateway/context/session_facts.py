"""Build the facts of a session that are sent to servers and clients, and define their names. Pure: no I/O."""

import os
import random
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from gateway.config.sessions import CORRELATION_ID, FIELD_CHARS, ContextSettings, EnvironmentValue, FieldSettings
from gateway.protocol.params import meta_of
from gateway.protocol.reserved_meta import RESERVED
from session_store import Context, Session, Source
from session_store.session import redact
from transports.inbound_port import CORRELATION_KEY
from transports.jsonrpc import Object, encode

_OURS: Final = f"{RESERVED}/"
CONTEXT_KEY: Final = _OURS + "context"
SESSION_KEY: Final = _OURS + "session"
RESTARTED_KEY: Final = _OURS + "restarted"
SHARED_KEY: Final = _OURS + "shared"
CHANGED_KEY: Final = _OURS + "changed"
TRACE_KEY: Final = _OURS + "trace"
WORKSPACE_KEY: Final = _OURS + "workspace"

# Correlation ids are no secrets, so a fast generator is enough. It is seeded again after a fork, so that processes of
# an app that was loaded before (gunicorn's `preload_app`) make different ids.
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
    """Return the record of a session, with `context` (of one request) in place of the stored context."""
    return session if context is session.context else msgspec.structs.replace(session, context=context)


def workspace_source(context: Context) -> str:
    """Return the source of the workspace (announced, configured or authenticated); empty if there is no workspace."""
    return context.provenance.workspace if context.workspace else ""


def facts_of(session: Session, correlation: str) -> dict[str, str]:
    """Return the facts that servers get about every session, by the names that the configuration uses."""
    context = session.context
    return {
        "session_id": session.id,
        "workspace": context.workspace,
        "workspace_provenance": workspace_source(context),
        "trust": context.trust,
        "principal": str(session.principal),
        "agent": session.client.name,
        "permissions": " ".join(context.permissions),
        CORRELATION_ID: correlation,
    }


def _built_in(session: Session) -> dict[str, str]:
    """Return the values of the fields that every session has, without the correlation id and the folder."""
    principal = session.principal
    return facts_of(session, "") | {
        "principal.issuer": principal.issuer,
        "principal.subject": principal.subject,
        "endpoint": session.endpoint,
    }


def with_trace(result: Object, session: Session | None, correlation: str) -> Object:
    """Return a result whose `_meta` helps to find the request in logs: session id (shortened) and correlation id.
    Return the result unchanged if another gateway has added its own ids already."""
    if TRACE_KEY in meta_of(result):
        return result
    facts = {} if session is None else {"session": redact(session.id)}
    return with_meta(result, {TRACE_KEY: msgspec.Raw(encode({**facts, CORRELATION_KEY: correlation}))})


def traced_error(error: bytes, correlation: str) -> bytes:
    """Return a server's error object with the correlation id added to its `data`. Return it unchanged if `data` already
    has an id, or is neither an object nor null."""
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
    meta = meta_of(result)
    return result | {"_meta": msgspec.Raw(encode({**meta, **additions}))}


_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class SessionFacts:
    """Select the fields of a session that servers, logs and the audit trail get, by the names that the configuration
    uses. `metadata`: the templates of the metadata of new sessions. `trusts_announced`: an announced workspace counts
    like one from the configuration.

    Values from the session's metadata are read each time, because metadata can change while a session lives. All other
    values are decided when a session opens, or when its credential changes.
    """

    def __init__(
        self, settings: ContextSettings, metadata: Mapping[str, str], *, trusts_announced: bool = False
    ) -> None:
        self._fields = settings.fields
        self._trusts_announced = trusts_announced
        self._templates = metadata
        # Also a field with metadata that contain the workspace has what the client has only announced.
        templates = {name: metadata.get(field.metadata, "") for name, field in self._fields.items()}
        self._with_workspace = {"workspace", *(name for name, text in templates.items() if "{workspace" in text)}
        self._in_meta = self._sent_to("meta")
        self._in_log = self._sent_to("log")
        self._in_audit = self._sent_to("audit")
        # Chosen once, because each call of a client needs it.
        self.log_fields: Callable[[Session], Mapping[str, str]] = self._logged if self._in_log else _nothing

    def _sent_to(self, where: Literal["meta", "log", "audit"]) -> tuple[str, ...]:
        return tuple(name for name, field in self._fields.items() if where in field.to)

    def value(self, session: Session, name: str) -> str:
        """Return the value of a field, built-in or defined by the operator; empty if the session has none."""
        field = self._fields.get(name)
        return _built_in(session)[name] if field is None else self._added(session, name, field)[0]

    def _added(self, session: Session, name: str, field: FieldSettings) -> tuple[str, Source]:
        """Return the value of a field that the operator has defined, and the source of the value (such as announced or
        configured). The value is empty if the session has none."""
        if field.metadata:
            found = session.metadata.get(field.metadata, "")[:FIELD_CHARS]
            template = self._templates.get(field.metadata, "")
            has_announced = "{agent" in template or "{workspace" in template  # values that the client chooses
            source: Source = "announced" if found and has_announced else "configured"
            return found or field.value, source
        given = session.context.field(name)
        return ("", "configured") if given is None else (given.value, given.source)

    def environment(
        self, session: Session, names: Mapping[str, EnvironmentValue], more: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the environment variables for a session's child process. A missing value is an empty string.

        `names`: the field for each variable. `more`: the values of fields that are not in the session's record
        (correlation id, folder). Characters that an environment variable cannot have are removed, because clients
        choose some values.
        """
        facts, found = {**_built_in(session), **more}, dict[str, str]()
        is_anonymous = session.principal.is_anonymous
        is_announced = session.context.provenance.workspace == "announced" and not self._trusts_announced
        for variable, wanted in names.items():
            field, default = wanted.field, wanted.default or ""
            if (is_anonymous and wanted.default is not None and field.startswith("principal")) or (
                is_announced and not wanted.announced and field in self._with_workspace
            ):
                value = default
            else:
                value = (facts[field] if field in facts else self.value(session, field)) or default
            found[variable] = value.replace("\0", "").encode("utf-8", "replace").decode()
        return found

    def all_of(self, session: Session, correlation: str) -> dict[str, Any]:
        """Return all facts of a session, which a child process gets as JSON."""
        return {
            **facts_of(session, correlation),
            **self.fields_for_servers(session),
            "read_only": session.context.read_only,
            "created_at": session.created_at,
            "idle_ttl_s": session.idle_ttl_s,
            "max_age_s": session.max_age_s,
            "token_hash": session.token_hash,
        }

    def meta(self, session: Session, correlation: str) -> msgspec.Raw:
        """Return, as JSON, the facts of a session that are sent to servers in `_meta` under `CONTEXT_KEY`, with the
        fields that the operator has defined."""
        facts = {**facts_of(session, correlation), "permissions": session.context.permissions}
        return msgspec.Raw(encode({**facts, **self.fields_for_servers(session)}))

    def fields_for_servers(self, session: Session) -> dict[str, dict[str, str]]:
        """Return two members for `_meta` and assertions: `fields` has the values of the operator's fields that servers
        get, `fields_provenance` their sources. Fields without a value are left out. Return {} if servers get none."""
        if not self._in_meta:
            return {}
        found = {name: self._added(session, name, self._fields[name]) for name in self._in_meta}
        return {
            "fields": {name: value for name, (value, _) in found.items() if value},
            "fields_provenance": {name: source for name, (value, source) in found.items() if value},
        }

    def _logged(self, session: Session) -> dict[str, str]:
        return self._some(session, self._in_log)

    def audit_fields(self, session: Session) -> dict[str, str]:
        """Return, by name, the values of those operator's fields that events of the audit trail have. Fields without a
        value are left out."""
        return self._some(session, self._in_audit)

    def _some(self, session: Session, names: Iterable[str]) -> dict[str, str]:
        return {name: value for name in names if (value := self.value(session, name))}


def _nothing(session: Session) -> Mapping[str, str]:
    return _NONE
