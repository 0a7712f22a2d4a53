"""Check requests by the rules of the 2026-07-28 transport, and find the HTTP status of an answer.

MCP 2026-07-28, Basic §Per-request fields, Transports §Streamable HTTP. Pure: decides, sends nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from transports.era import LOG_LEVELS, MODERN_VERSIONS, NAME_SOURCES, REMOVED, VERSION_KEY
from transports.inbound_port import Refused
from transports.jsonrpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    UNREADABLE,
    UNSUPPORTED_VERSION,
    Message,
    Object,
    decode_exact,
)
from transports.mirrored_headers import PREFIX, decode_value, disagreement

VERSION_HEADER: Final = "mcp-protocol-version"

_CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
_LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
_METHOD_HEADER, _NAME_HEADER = "mcp-method", "mcp-name"
_ROUTING: Final = frozenset({VERSION_HEADER.encode(), _METHOD_HEADER.encode(), _NAME_HEADER.encode()})
_MALFORMED: Final = "=?base64?*?="  # agrees with no argument; values in headers are ASCII, or coded
MIRRORED: Final = PREFIX.lower().encode()
"""The prefix of the names of headers that repeat an argument of a tool call, in lower case (`mcp-param-`)."""

_values: Final = msgspec.json.Decoder()

_STATUSES: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    METHOD_NOT_FOUND: 404,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
}


def names_version(meta: Any) -> bool:
    """Return True if the decoded `_meta` of a message names a protocol version, as only modern messages do."""
    return isinstance(meta, dict) and VERSION_KEY in meta


def check_request(
    message: Message, params: Object, meta: Any, headers: Mapping[str, str], raw_headers: list[tuple[bytes, bytes]]
) -> None:
    """Check a modern request: its headers, `_meta`, version, log level and method. `meta` is the decoded `_meta` in
    `params`. `raw_headers` are the headers as they arrived, repeated ones included. Raises `Refused` if it breaks a
    rule."""
    if len(headers) < len(raw_headers):  # a header appears twice
        _check_unique(raw_headers, lambda name: name in _ROUTING)
    if not isinstance(meta, dict):
        keys = f"{VERSION_KEY!r} and {_CAPABILITIES_KEY!r}"
        raise Refused(400, INVALID_PARAMS, f"params._meta must be an object carrying the required {keys} envelope keys")
    if VERSION_KEY not in meta or _CAPABILITIES_KEY not in meta:
        missing = ", ".join(key for key in (VERSION_KEY, _CAPABILITIES_KEY) if key not in meta)
        text = f"params._meta is missing the required envelope key(s): {missing}"
        raise Refused(400, INVALID_PARAMS, text)
    # Headers come before the version: a client whose header and body differ is told this, not that the version of
    # one of them is unsupported.
    _check_routing(message, params, meta[VERSION_KEY], headers)
    _check_version(meta[VERSION_KEY])
    if (level := meta.get(_LOG_LEVEL_KEY)) is not None and level not in LOG_LEVELS:
        raise Refused(400, INVALID_PARAMS, f"{_LOG_LEVEL_KEY} must be one of {', '.join(LOG_LEVELS)}")
    if message.method in REMOVED:
        raise Refused(
            404,
            METHOD_NOT_FOUND,
            f"Method not found: {message.method} does not exist in {meta[VERSION_KEY]}",
            data={"supported": list(MODERN_VERSIONS)},
        )


def check_notification(headers: Mapping[str, str]) -> None:
    """Check a notification. Raises `Refused` if it names an unsupported version."""
    _check_version(headers.get(VERSION_HEADER, ""))


def check_param_headers(raw_headers: list[tuple[bytes, bytes]], schema: Any, params: Object) -> None:
    """Compare the `Mcp-Param-*` headers of a `tools/call` with the arguments in `params` that they mirror, as the input
    schema of the tool says. Raises `Refused` if they disagree."""
    _check_unique(raw_headers, lambda name: name.startswith(MIRRORED))
    arguments = decode_exact(params.get("arguments", b"null"))
    headers = {
        name.decode("latin-1").lower(): value.decode("latin-1") if value.isascii() else _MALFORMED
        for name, value in raw_headers
    }
    why = disagreement(schema, arguments if isinstance(arguments, dict) else {}, headers)
    if why is not None:
        raise _mismatch(why)


def status_of(error_code: int | None) -> int:
    """Return the HTTP status for a JSON answer with this error code (None: no error). It is 200, except for the codes
    for which MCP defines another status."""
    return 200 if error_code is None else _STATUSES.get(error_code, 200)


def _check_routing(message: Message, params: Object, version: Any, headers: Mapping[str, str]) -> None:
    """Compare the headers by which proxies route a request (version, method and name) with the request's body.
    `version` is the one in the body's `_meta`. Raises `Refused` if a header differs or is missing."""
    header = headers.get(VERSION_HEADER)
    if header is None or header != version:
        raise _mismatch(f"{VERSION_HEADER} header does not match the request envelope's protocol version")
    if headers.get(_METHOD_HEADER) != message.method:
        raise _mismatch(f"{_METHOD_HEADER} header does not match the request body's method")
    source = NAME_SOURCES.get(str(message.method))
    if source is not None and source in params:
        try:
            named = _values.decode(params[source])
        except UNREADABLE as error:
            raise Refused(400, INVALID_PARAMS, f"params.{source} cannot be read: {error}") from None
        name = headers.get(_NAME_HEADER)
        if named is not None and name is None:
            raise _mismatch(f"{_NAME_HEADER} header is missing: it must be the request body's {source!r} parameter")
        # A name that is not ASCII has to be coded: not all readers would take the same text for it.
        if name is not None and named is not None and (decode_value(name) != named or not name.isascii()):
            raise _mismatch(f"{_NAME_HEADER} header does not match the request body's {source!r} parameter")


def _check_version(version: str) -> None:
    if version not in MODERN_VERSIONS:
        data = {"supported": list(MODERN_VERSIONS), "requested": version}
        raise Refused(400, UNSUPPORTED_VERSION, "Unsupported protocol version", data=data)


def _check_unique(raw_headers: list[tuple[bytes, bytes]], is_checked: Callable[[bytes], bool]) -> None:
    """Check that no header for which `is_checked` is True appears twice, because readers could disagree on which one
    counts. Raises `Refused`."""
    seen: set[bytes] = set()
    for name_bytes, _ in raw_headers:
        name = name_bytes.lower()
        if is_checked(name):
            if name in seen:
                raise _mismatch(f"{name.decode('latin-1')} header appears more than once")
            seen.add(name)


def _mismatch(text: str) -> Refused:
    return Refused(400, HEADER_MISMATCH, text)
