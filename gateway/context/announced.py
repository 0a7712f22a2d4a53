"""What a client announces about its session: its workspace, and those of the operator's fields that it may set. Pure.

An announcement informs and never grants (docs/adr/0013-provenance.md).
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.config.context import ContextSettings
from gateway.config.patterns import matches
from gateway.errors import bad_context
from gateway.identity.credential_claims import fields_in_headers
from session_store.session import MAX_WORKSPACE_CHARS
from transports.inbound_port import Request

__all__ = ["Announced", "Announcements", "MetaPath"]


class Announced(msgspec.Struct, frozen=True):
    """The announced workspace (empty: none), and the announced fields with their values."""

    workspace: str = ""
    fields: tuple[tuple[str, str], ...] = ()


class MetaPath:
    """A place in `_meta`: a path into nested objects, or one key with dots. The nested value wins."""

    def __init__(self, path: str) -> None:
        self._key = path
        self._parts = tuple(path.split("."))

    def text(self, meta: Mapping[str, Any]) -> str:
        """The text at that place; empty if there is none.

        Raises:
            Refused: 400, it is not a string.
        """
        if self._parts[0] not in meta and self._key not in meta:
            return ""
        return self._checked(self._nested(meta)) or self._checked(meta.get(self._key))

    def _nested(self, meta: Mapping[str, Any]) -> Any:
        value: Any = meta
        for part in self._parts:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def _checked(self, value: Any) -> str:
        if value is not None and not isinstance(value, str):
            raise bad_context(f"{self._key} must be a string")
        return value or ""


class Announcements:
    """Reads what requests announce. `workspace_path` is the place of the workspace in `_meta`. `session_key` returns
    the session key of a request."""

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
        """What a request announces. The session key of an anonymous client is no field: whoever has it has the session.

        Raises:
            Refused: 400, an announced value cannot be used.
        """
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
        """The workspace that `_meta` announces, after the operator's `workspace_ids`. Empty: it announces none.

        Raises:
            Refused: 400, it is not a string, or too long.
        """
        announced = self._path.text(meta)
        return self._id_of(announced) if announced else ""

    def _id_of(self, announced: str) -> str:
        if len(announced) > MAX_WORKSPACE_CHARS:
            raise bad_context(f"workspace is longer than {MAX_WORKSPACE_CHARS} characters")
        for pattern, workspace in self._ids.items():
            if matches(pattern, announced):
                return workspace.replace("{name}", _last_part(announced))
        return announced


def _last_part(path: str) -> str:
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]
