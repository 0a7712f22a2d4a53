"""Read the workspace and the context fields that a client announces for its session. Pure.

An announcement is information and grants nothing (docs/adr/0013-provenance.md).
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.config.patterns import matches
from gateway.config.sessions import ContextSettings
from gateway.errors import bad_context
from gateway.identity.credential_claims import fields_in_headers
from session_store import Context
from session_store.session import MAX_WORKSPACE_CHARS
from transports.inbound_port import Request
from transports.jsonrpc import Object, encode


class Announced(msgspec.Struct, frozen=True):
    """The workspace that a client announces (empty if none), and its announced fields as names and values."""

    workspace: str = ""
    fields: tuple[tuple[str, str], ...] = ()


class MetaPath:
    """Find a value in `_meta` by a dotted path: either in nested objects, or under one key that contains the dots. The
    nested value has priority. An empty path finds nothing."""

    def __init__(self, path: str) -> None:
        self._key = path
        self._parts = tuple(path.split("."))

    def text(self, meta: Mapping[str, Any]) -> str:
        """Return the string at the path; empty if there is none. Raises `Refused`: 400, the value is not a string."""
        if not self._key or (self._parts[0] not in meta and self._key not in meta):
            return ""
        nested: Any = meta
        for part in self._parts:
            nested = nested.get(part) if isinstance(nested, Mapping) else None
        return self._checked(nested) or self._checked(meta.get(self._key))

    def without(self, meta: Object, is_wrong: Callable[[Any], bool]) -> Object:
        """Return `meta` without the values at the path, nested or under one key, for which `is_wrong` returns True.
        Entries of `_meta` are raw JSON."""
        if self._key and self._key in meta and is_wrong(msgspec.json.decode(meta[self._key])):
            meta = {name: raw for name, raw in meta.items() if name != self._key}
        first, rest = self._parts[0], self._parts[1:]
        if rest and first in meta:
            whole = inner = msgspec.json.decode(meta[first])
            for part in rest[:-1]:
                inner = inner.get(part) if isinstance(inner, dict) else None
            if isinstance(inner, dict) and rest[-1] in inner and is_wrong(inner[rest[-1]]):
                del inner[rest[-1]]
                meta = meta | {first: msgspec.Raw(encode(whole))}
        return meta

    def _checked(self, value: Any) -> str:
        if value is not None and not isinstance(value, str):
            raise bad_context(f"{self._key} must be a string")
        return value or ""


class Announcements:
    """Read the announcements in requests. `workspace_path`: the path of the workspace in `_meta`. `session_key` returns
    the session key of a request; None if it has none."""

    def __init__(
        self, workspace_path: str, settings: ContextSettings, session_key: Callable[[Request], str | None]
    ) -> None:
        self._session_key = session_key
        self._keys = tuple(name for name, field in settings.fields.items() if field.session_key)
        self._path = MetaPath(workspace_path)
        self._ids = settings.workspace_ids
        self._in_meta = {name: MetaPath(field.announced) for name, field in settings.fields.items() if field.announced}
        self._in_headers = {
            name: field.header.lower() for name, field in settings.fields.items() if field.client_header
        }

    def of(self, request: Request, *, is_anonymous: bool = False) -> Announced:
        """Return what a request announces: the workspace, and the context fields in `_meta`, in headers and from the
        session key. The key of an anonymous client is left out, because whoever knows the key has the session. Raises
        `Refused`: 400, an announced value is not allowed."""
        fields = tuple((name, text) for name, path in self._in_meta.items() if (text := path.text(request.meta)))
        if self._in_headers:
            try:
                fields += fields_in_headers(request.headers, self._in_headers)
            except ValueError:
                raise bad_context("a header with a field of the context is not UTF-8") from None
        if self._keys and not is_anonymous and (key := self._session_key(request)) is not None:
            fields += tuple((name, key) for name in self._keys)
        return Announced(self.workspace(request.meta), fields)

    def workspace(self, meta: Mapping[str, Any]) -> str:
        """Return the workspace that `_meta` announces, mapped by the operator's `workspace_ids`; empty if none. Raises
        `Refused`: 400, the workspace is not a string, or too long."""
        announced = self._path.text(meta)
        return self._id_of(announced) if announced else ""

    def agreed(self, meta: Object, context: Context) -> Object:
        """Return the client's `_meta` as servers may get it. A workspace in it that is not the session's (in `context`)
        is left out: a server could read it and work in the wrong workspace. Nothing is left out if the session has no
        workspace because the client has announced none."""
        if not context.workspace and context.provenance.workspace == "announced":
            return meta
        return self._path.without(meta, lambda said: bool(said) and not self._is_of(context, said))

    def _is_of(self, context: Context, said: Any) -> bool:
        if not isinstance(said, str) or len(said) > MAX_WORKSPACE_CHARS:
            return False
        return self._id_of(said) == context.workspace

    def _id_of(self, announced: str) -> str:
        if len(announced) > MAX_WORKSPACE_CHARS:
            raise bad_context(f"workspace is longer than {MAX_WORKSPACE_CHARS} characters")
        for pattern, workspace in self._ids.items():
            if matches(pattern, announced):
                name = announced.replace("\\", "/").rstrip("/").rpartition("/")[2]
                return workspace.replace("{name}", name)
        return announced
