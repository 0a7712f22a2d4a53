"""The rules of the 2026-07-28 wire: what a request must contain, and which HTTP status an answer has.

MCP 2026-07-28, Basic §Per-request fields, Transports §Streamable HTTP. Pure: decides, sends nothing.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
    validate_mcp_param_headers,
)
from mcp_types.methods import CLIENT_REQUESTS
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from transports.inbound_port import Refused
from transports.jsonrpc import METHOD_NOT_FOUND, Message, Object
from transports.wire_methods import MODERN_REQUESTS, NAME_SOURCES

__all__ = [
    "VERSION_HEADER",
    "VERSION_KEY",
    "check_notification",
    "check_param_headers",
    "check_request",
    "names_version",
    "status_of",
]

VERSION_HEADER: Final = "mcp-protocol-version"
VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"

_REMOVED: Final = (
    frozenset(m for m, version in CLIENT_REQUESTS if version in HANDSHAKE_PROTOCOL_VERSIONS) - MODERN_REQUESTS
)


def names_version(meta: Any) -> bool:
    """True if the decoded `_meta` of a message names a protocol version: only modern messages may."""
    return isinstance(meta, dict) and VERSION_KEY in meta


def check_request(
    message: Message, params: Object, meta: Any, headers: Mapping[str, str], raw_headers: list[tuple[bytes, bytes]]
) -> None:
    """Raises `Refused`: the request breaks a rule of the wire."""
    if len(headers) < len(raw_headers):  # a header appears twice
        duplicated = find_duplicated_routing_header(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in raw_headers
        )
        if duplicated is not None:
            raise _refused(InboundLadderRejection(code=-32020, message=f"{duplicated} header appears more than once"))
    seen: dict[str, Any] = {"_meta": meta}
    key = NAME_SOURCES.get(str(message.method))
    if key is not None and key in params:
        seen[key] = msgspec.json.decode(params[key])
    verdict = classify_inbound_request({"method": message.method, "params": seen}, headers=headers)
    if isinstance(verdict, InboundLadderRejection):
        raise _refused(verdict)
    if message.method in _REMOVED:
        raise Refused(
            404,
            METHOD_NOT_FOUND,
            f"Method not found: {message.method} does not exist in {meta[VERSION_KEY]}",
            data={"supported": list(MODERN_PROTOCOL_VERSIONS)},
        )


def check_notification(headers: Mapping[str, str]) -> None:
    """Raises `Refused`: the notification names an unsupported version."""
    rejection = unsupported_protocol_version_rejection(headers.get(VERSION_HEADER, ""))
    if rejection is not None:
        raise _refused(rejection)


def check_param_headers(params: Object, raw_headers: list[tuple[bytes, bytes]], schema: Any) -> None:
    """Raises `Refused` when an `Mcp-Param-*` header and the argument that it mirrors disagree."""
    arguments = msgspec.json.decode(params.get("arguments", b"null"))
    mirrored: dict[str, str] = {}
    for name_bytes, value in raw_headers:
        name = name_bytes.decode("latin-1").lower()
        if name in mirrored and name.startswith("mcp-param-"):
            raise _refused(InboundLadderRejection(code=-32020, message=f"{name} header appears more than once"))
        mirrored[name] = value.decode("latin-1")
    rejection = validate_mcp_param_headers(schema, arguments if isinstance(arguments, dict) else {}, mirrored)
    if rejection is not None:
        raise _refused(rejection)


def status_of(error_code: int | None) -> int:
    """The HTTP status of a JSON answer: the protocol defines one for some error codes."""
    return 200 if error_code is None else ERROR_CODE_HTTP_STATUS.get(error_code, 200)


def _refused(rejection: InboundLadderRejection) -> Refused:
    status = ERROR_CODE_HTTP_STATUS.get(rejection.code, 400)
    return Refused(status, rejection.code, rejection.message, data=rejection.data)
