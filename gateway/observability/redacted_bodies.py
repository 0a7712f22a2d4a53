"""Prepare bodies of JSON-RPC messages for operators: redact credentials, and shorten. Pure: no I/O."""

import json
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from gateway.config.auth import API_KEY_ISSUER
from gateway.observability.escaped_text import visible
from session_store.redaction import REDACTED, is_secret_name, scrubbed_text, values_to_redact, without_values
from transports.jsonrpc import InvalidMessage, decode_exact

MOST_CHARS: Final = 4_000
"""Maximum number of characters of a body that are shown."""

MOST_BODY_BYTES: Final = 1 << 20
"""Maximum number of bytes of a body that is decoded. Decoding a larger one would delay calls."""

_MOST_TEXT: Final = 1_000
_SCANNED: Final = 4_000
"""Maximum number of characters of a text that are searched for credentials."""

_OF_CREDENTIALS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~+/=-"

_MOST_OF_LINKS, _MOST_RENEWED = 4_096, 256
"""Maximum numbers of values that `BodyRedactor.hide` keeps: without and with `are_renewed`. Each value that is kept is
searched for in each text."""

_MOST_NAME: Final = 100
_MOST_DEPTH: Final = 12

_OPAQUE: Final = frozenset(
    {
        "requestState",
        "io.github.mcp-session-gateway/session",
        "io.github.mcp-session-gateway/session-key",
    }
)
"""Members of JSON objects whose values give access to a session or to a call. They are always redacted."""

_NAMING: Final = ("name", "key", "header", "Name", "Key", "Header")
_NAMED: Final = "value"
"""In an object such as `{"name": "TOKEN", "value": …}`, a member in `_NAMING` has a name, and the member `_NAMED` has
the value of what is named. Headers and variables are often lists of such objects."""
_TASK: Final = "taskId"
_TASK_CHARS: Final = 8
_OF_KEY: Final = f"{API_KEY_ISSUER}:"


class BodyRedactor:
    """Prepare texts and bodies of messages for operators who watch a session. Values that look like credentials, by
    their name or form, are redacted, and all values that were passed to `hide`."""

    def __init__(self) -> None:
        self._of_links: dict[str, None] = {}  # the newest last
        self._renewed: dict[str, None] = {}
        self._hidden: list[str] = []

    def hide(self, values: Iterable[str], *, are_renewed: bool = False) -> None:
        """Redact these secret values in all later texts. Values of less than 6 characters are ignored.

        `are_renewed`: True if a running link got them in place of earlier ones, False for all other values. Of each of
        these two groups, only the newest values stay redacted, because a watch can outlast thousands of links."""
        newest, most = (self._renewed, _MOST_RENEWED) if are_renewed else (self._of_links, _MOST_OF_LINKS)
        for value in values_to_redact(values):
            newest.pop(value, None)
            newest[value] = None
        for value in list(newest)[:-most]:
            del newest[value]
        self._hidden = values_to_redact((*self._of_links, *self._renewed))

    def text(self, text: str, most: int = _MOST_TEXT) -> str:
        """Return a text with credentials redacted and control characters escaped. If it is cut at `most` characters,
        append a note with its length."""
        scanned = text[:_SCANNED]
        if len(text) > _SCANNED:  # the beginning of a credential has no form
            scanned = scanned.rstrip(_OF_CREDENTIALS)
        scanned = scrubbed_text(without_values(scanned, self._hidden))
        more = f"… ({len(text)} characters)" if len(scanned) > most or len(text) > _SCANNED else ""
        return visible(f"{scanned[:most]}{more}")

    def body(self, raw: bytes) -> str:
        """Return the JSON value `raw` as JSON text, redacted and cut at `MOST_CHARS` characters. If it is too large or
        invalid, return a note in brackets that tells its size."""
        if len(raw) > MOST_BODY_BYTES:
            return f"[{len(raw)} bytes: too large to be shown]"
        try:
            value = decode_exact(raw)
        except (msgspec.MsgspecError, InvalidMessage, RecursionError, UnicodeDecodeError):
            return f"[{len(raw)} bytes that cannot be read]"
        return json.dumps(_Shortened(self).of(value), ensure_ascii=False)[:MOST_CHARS]


class _Shortened:
    """Shorten and redact one JSON value, given to `of`. Once the result has `MOST_CHARS` characters, what follows is
    left out."""

    def __init__(self, bodies: BodyRedactor) -> None:
        self._bodies = bodies
        self._left = MOST_CHARS

    def of(self, value: Any, depth: int = 0, *, are_names: bool = False) -> Any:
        """Return a shortened and redacted copy of the value. `depth`: how many objects and arrays it is in.
        `are_names`: True if the value is the `properties` of a JSON schema, where a member `password` is a schema and
        not a credential."""
        if self._left <= 0 or depth > _MOST_DEPTH:
            return "…"
        if isinstance(value, str):
            shown = self._bodies.text(value)
            self._left -= len(shown) + 2
            return shown
        if isinstance(value, list):
            found = []
            for item in value:
                found.append(self.of(item, depth + 1))
                if self._left <= 0:
                    break
            return found
        if isinstance(value, dict):
            members: dict[str, Any] = {}
            is_secret_pair = any(_is_secret(value.get(name)) for name in _NAMING)
            for name, item in value.items():
                shown = self._bodies.text(name, _MOST_NAME)
                self._left -= len(shown) + 4
                if is_secret_pair and name.lower() == _NAMED:
                    members[shown] = REDACTED
                else:
                    members[shown] = self._member(name, item, depth, are_names=are_names)
                if self._left <= 0:
                    break
            return members
        self._left -= 8
        return bytes(value).decode() if isinstance(value, msgspec.Raw) else value

    def _member(self, name: str, value: Any, depth: int, *, are_names: bool) -> Any:
        is_schema = are_names and isinstance(value, dict | bool)
        if name in _OPAQUE or (_is_secret(name) and not is_schema):
            self._left -= len(REDACTED)
            return REDACTED
        if name == _TASK and isinstance(value, str):
            return self._bodies.text(value[:_TASK_CHARS])
        if name == "principal" and isinstance(value, str) and value.startswith(_OF_KEY):
            return f"{_OF_KEY}{self.of(value.removeprefix(_OF_KEY))}"  # the name of a key is no secret
        return self.of(value, depth + 1, are_names=name == "properties")


def _is_secret(name: Any) -> bool:
    return isinstance(name, str) and is_secret_name(name)
