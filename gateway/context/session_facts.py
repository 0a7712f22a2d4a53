"""The fields of a session's context, by the names that the configuration uses, and the forms in which they are told.

Pure. Values that the session's metadata has are read when they are told, because metadata changes while a session
lives. All other values are decided when a session opens, or when its credential changes.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from gateway.config.context import ContextSettings, EnvironmentValue, FieldSettings
from gateway.context.facts import ContextMeta, built_in, context_meta, facts_of
from session_store import Session, Source
from transports.jsonrpc import encode

__all__ = ["SessionFacts"]

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class SessionFacts:
    """The fields of sessions. `metadata` are the templates of the metadata that new sessions get."""

    def __init__(self, settings: ContextSettings, metadata: Mapping[str, str]) -> None:
        self._fields = settings.fields
        self._templates = metadata
        self._in_meta = self._told("meta")
        self._in_log = self._told("log")
        self._in_audit = self._told("audit")
        # Decided once: each call of a client needs it.
        self.meta: Callable[[Session], ContextMeta] = self._meta if self._in_meta else context_meta
        self.logged: Callable[[Session], Mapping[str, str]] = self._logged if self._in_log else _nothing

    def _told(self, where: Literal["meta", "log", "audit"]) -> tuple[str, ...]:
        return tuple(name for name, field in self._fields.items() if where in field.to)

    def value(self, session: Session, name: str) -> str:
        """Return the value of a field, of those that every session has or of the operator's. Empty: the session has
        none."""
        field = self._fields.get(name)
        return built_in(session, name) if field is None else self._added(session, name, field)[0]

    def _added(self, session: Session, name: str, field: FieldSettings) -> tuple[str, Source]:
        """Return the value of one of the operator's fields, and its source."""
        if field.metadata:
            found = session.metadata.get(field.metadata, "")[: field.max_chars]
            return (found, self._source_of_metadata(field.metadata)) if found else (field.value, "configured")
        given = session.context.field(name)
        return ("", "configured") if given is None else (given.value, given.source)

    def _source_of_metadata(self, name: str) -> Source:
        """Metadata is the operator's, except for a text that is filled with what a client says of itself."""
        template = self._templates.get(name, "")
        return "announced" if "{agent" in template or "{workspace" in template else "configured"

    def sources(self, session: Session) -> dict[str, tuple[str, Source]]:
        """Return all of the operator's fields that the session has, with values and sources."""
        found = {name: self._added(session, name, field) for name, field in self._fields.items()}
        return {name: value for name, value in found.items() if value[0]}

    def environment(
        self, session: Session, names: Mapping[str, EnvironmentValue], more: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the environment variables of a session's child process. A missing value is an empty text.

        `more` has the fields that are not the session's: correlation id, folder. Characters that an environment cannot
        hold are removed: clients choose some values.
        """
        return {variable: _fit(self._variable(session, value, more)) for variable, value in names.items()}

    def _variable(self, session: Session, wanted: EnvironmentValue, more: Mapping[str, str]) -> str:
        if wanted.empty_for_anonymous and session.principal.is_anonymous and wanted.field.startswith("principal"):
            return wanted.default
        found = more[wanted.field] if wanted.field in more else self.value(session, wanted.field)
        return found or wanted.default

    def all_of(self, session: Session, correlation: str) -> dict[str, Any]:
        """Return the facts that a child gets as JSON."""
        return {
            **facts_of(session, correlation),
            **self._shown_in_meta(session),
            "read_only": session.context.read_only,
            "created_at": session.created_at,
            "idle_ttl_s": session.idle_ttl_s,
            "max_age_s": session.max_age_s,
            "token_hash": session.token_hash,
        }

    def _meta(self, session: Session) -> ContextMeta:
        """Return the value of `gateway.context.facts.CONTEXT_KEY` in the `_meta` of messages to servers."""
        return ContextMeta(context_meta(session).before, b'",' + encode(self._shown_in_meta(session))[1:])

    def _shown_in_meta(self, session: Session) -> dict[str, dict[str, str]]:
        if not self._in_meta:
            return {}
        found = {name: self._added(session, name, self._fields[name]) for name in self._in_meta}
        return {
            "fields": {name: value for name, (value, _) in found.items() if value},
            "fields_provenance": {name: source for name, (value, source) in found.items() if value},
        }

    def claims(self, session: Session) -> dict[str, dict[str, str]]:
        """Return the fields that assertions have."""
        return self._shown_in_meta(session)

    def _logged(self, session: Session) -> dict[str, str]:
        """Return the fields that log lines have."""
        return self._some(session, self._in_log)

    def audited(self, session: Session) -> dict[str, str]:
        """Return the fields that audit events have."""
        return self._some(session, self._in_audit)

    def _some(self, session: Session, names: Iterable[str]) -> dict[str, str]:
        return {name: value for name in names if (value := self.value(session, name))}


def _nothing(session: Session) -> Mapping[str, str]:
    return _NONE


def _fit(value: str) -> str:
    return value.replace("\0", "").encode("utf-8", "replace").decode()
