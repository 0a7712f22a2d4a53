"""The messages of a call that an operator tries, as a client of either era writes them. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.sessions.carriers import GATEWAY_HEADER, LEGACY_HEADER, NEW
from gateway.sessions.session_keys import KEY_META
from gateway.version import __version__
from transports.era import MODERN, MODERN_VERSIONS, Era
from transports.inbound.modern import VERSION_HEADER, VERSION_KEY
from transports.jsonrpc import METHOD_NOT_FOUND, Object, encode
from transports.mirrored_headers import encode_value

__all__ = ["CLIENT", "answer_to_question", "call_body", "call_headers", "cancel_body"]

CLIENT: Final = "mcp-session-gateway-console"
_SPEC: Final = "io.modelcontextprotocol/"
_DECLINED: Final = "An operator tries this tool from the console, where nobody answers questions."


def call_headers(
    era: Era, *, token: str, name: str, version: str = "", method: str = "tools/call", correlation: str = ""
) -> dict[str, str]:
    """The headers of a message. `token` is that of the session, empty for a new one. `version` is that which a legacy
    session has negotiated."""
    headers = {"user-agent": f"{CLIENT}/{__version__}"}
    if correlation:
        headers["traceparent"] = f"00-{correlation}-{correlation[:16]}-00"
    if era is MODERN:
        modern = {VERSION_HEADER: MODERN_VERSIONS[-1], "mcp-method": method, "mcp-name": encode_value(name)}
        return headers | modern | {GATEWAY_HEADER: token or NEW}
    return headers | {LEGACY_HEADER: token} | ({VERSION_HEADER: version} if version else {})


def call_body(era: Era, request_id: str, name: str, arguments: Object, *, key: str = "") -> bytes:
    """A call. `key` names a new session."""
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    if era is MODERN:
        params["_meta"] = {
            VERSION_KEY: MODERN_VERSIONS[-1],
            f"{_SPEC}clientInfo": {"name": CLIENT, "version": __version__},
            f"{_SPEC}clientCapabilities": {},
        } | ({KEY_META: key} if key else {})
    return encode({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params})


def cancel_body(request_id: str, reason: str) -> bytes:
    """A legacy client's notification that it does not want the answer any more."""
    params = {"requestId": request_id, "reason": reason}
    return encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


def answer_to_question(question: Mapping[str, Any]) -> bytes:
    """The answer to what a server asks its client: nobody is there to answer."""
    answer: dict[str, Any] = {"error": {"code": METHOD_NOT_FOUND, "message": _DECLINED}}
    if question.get("method") == "elicitation/create":
        answer = {"result": {"action": "decline"}}
    return encode({"jsonrpc": "2.0", "id": question.get("id"), **answer})
