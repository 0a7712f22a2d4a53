"""Parse and encode JSON-RPC messages, whose `params`, `result` and `error` stay the bytes that arrived.

Pure: no I/O, no MCP methods, no transport. A relayed message is parsed once, and these bytes are copied into the new
message without being encoded again. So numbers, key order and unknown fields survive exactly.
"""

import json
import math
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from transports.json_part_counts import ANSWER_PARTS, META_BYTES, META_PARTS, REQUEST_PARTS, has_more_parts

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

RESOURCE_NOT_FOUND: Final = -32002
"""The code in MCP up to 2025-11-25 for a resource that does not exist. MCP 2026-07-28 uses `INVALID_PARAMS`."""

# Codes of MCP 2026-07-28.
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

UNSET = msgspec.UNSET

_MAX_DIGITS: Final = 300
"""The most digits of a number that is read as an integer."""

RequestId = int | str
Object = dict[str, msgspec.Raw]


class InvalidMessage(ValueError):
    """The bytes are not one JSON-RPC message. `code` is the JSON-RPC error code of the answer."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One JSON-RPC 2.0 message. `parse` has checked that it is either a request, a notification or a response."""

    jsonrpc: str = ""
    id: RequestId | msgspec.UnsetType | None = UNSET
    method: str | msgspec.UnsetType = UNSET
    params: msgspec.Raw | msgspec.UnsetType = UNSET
    result: msgspec.Raw | msgspec.UnsetType = UNSET
    error: msgspec.Raw | msgspec.UnsetType = UNSET

    @property
    def is_request(self) -> bool:
        return self.method is not UNSET and self.id is not UNSET

    @property
    def is_notification(self) -> bool:
        return self.method is not UNSET and self.id is UNSET

    @property
    def is_response(self) -> bool:
        return self.method is UNSET

    def params_object(self) -> Object:
        """Return `params` with raw values; empty if absent or null. Raises `InvalidMessage` if it is no object."""
        if isinstance(self.params, msgspec.UnsetType):
            return {}
        return decode_object(self.params, "params")


UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for untrusted bytes: no JSON or another structure, text that is not UTF-8, too
many levels."""

_decoder = msgspec.json.Decoder(Message)
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def decode_object(raw: msgspec.Raw | bytes, what: str) -> Object:
    """Decode a JSON object, and return its members with raw values; empty for null. Raises `InvalidMessage`, with the
    name `what`, if the value is no object."""
    try:
        return _objects.decode(raw) or {}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidMessage(INVALID_PARAMS, f"{what} must be an object: {error}") from None
    except RecursionError:
        raise InvalidMessage(INVALID_PARAMS, f"{what} must be an object: it is nested too deeply") from None


def decode_meta(raw: msgspec.Raw) -> Any:
    """Decode the `_meta` of a client's message, and return its value, which need not be an object.

    Raises:
        InvalidMessage: it is too large, in bytes or in parts.
        msgspec.MsgspecError: it is not readable JSON.
    """
    view = memoryview(raw)
    if len(view) > META_BYTES or has_more_parts(bytes(view), META_PARTS):
        reason = f"params._meta is longer than {META_BYTES} bytes, or has more than {META_PARTS} members and arrays"
        raise InvalidMessage(INVALID_PARAMS, reason)
    return msgspec.json.decode(raw)


def decode_id(raw: msgspec.Raw) -> Any:
    """Return a raw request id or progress token as a string or an integer; None if it is neither."""
    try:
        value = msgspec.json.decode(raw)
    except UNREADABLE:
        return None  # 1e400, or nested too deep
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


MAX_EXACT_BYTES: Final = 256 << 10
"""Maximum bytes of a value that is decoded although it has a number which no float can hold: such values are decoded
ten times as slowly."""


def decode_exact(raw: msgspec.Raw | bytes, *, bounded: bool = False) -> Any:
    """Decode any JSON value, even with numbers that no float can hold, such as 1e400. Such a number stays as written,
    as `msgspec.Raw`. With `bounded`, it becomes the largest float of its sign, for callers that compare numbers.

    Raises:
        msgspec.MsgspecError: the value is no JSON, or has such numbers and more than `MAX_EXACT_BYTES`.
        InvalidMessage: it is nested too deeply.
    """
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        data = bytes(raw)
        if len(data) > MAX_EXACT_BYTES:
            raise
    except RecursionError:
        # `parse` may accept this value: it does not decode it, and runs with less of the stack in use.
        raise InvalidMessage(PARSE_ERROR, "not accepted: JSON nested too deeply") from None

    def number(text: str) -> Any:
        value = float(text)
        if math.isfinite(value):
            return value
        return math.copysign(sys.float_info.max, value) if bounded else msgspec.Raw(text.encode())

    def integer(text: str) -> Any:
        if len(text) <= _MAX_DIGITS:
            return int(text)
        return number(text) if bounded else msgspec.Raw(text.encode())

    try:
        return json.loads(data, parse_float=number, parse_int=integer)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(PARSE_ERROR, f"not valid JSON: {error}") from None


def parse(data: bytes, most_parts: int = ANSWER_PARTS, *, is_lenient: bool = False) -> Message:
    """Parse one message. With `is_lenient`, for messages of servers, lone surrogates, which `json.dumps` can write,
    become U+FFFD.

    Raises:
        InvalidMessage: not JSON (-32700), or JSON that is not one JSON-RPC 2.0 message (-32600): an array, a null or
        fractional id, both or neither of method and result (JSON-RPC 2.0 §4, §5; MCP narrows ids to strings and
        integers); or it has more than `most_parts` arrays, objects and members (-32700).
    """
    if len(data) > most_parts and has_more_parts(data, most_parts):  # a part takes a byte at least
        raise too_many_parts(most_parts)
    try:
        # Raw bodies are handed on unread, so the encoding is checked here for all of them.
        data.decode()
        message = _decoder.decode(data)
    except msgspec.ValidationError as error:
        raise InvalidMessage(INVALID_REQUEST, f"not a JSON-RPC message: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Python's decoder takes ten times as long for each part, so it gets fewer parts.
        if is_lenient and b"\\u" in data and not has_more_parts(data, REQUEST_PARTS):
            return parse(_without_lone_surrogates(data))
        raise InvalidMessage(PARSE_ERROR, f"not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidMessage(PARSE_ERROR, "not accepted: JSON nested too deeply") from None
    _check_shape(message)
    return message


def _without_lone_surrogates(data: bytes) -> bytes:
    try:
        return json.dumps(json.loads(data), ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        raise InvalidMessage(PARSE_ERROR, "not valid JSON") from None


def too_many_parts(most: int) -> InvalidMessage:
    """Return the error for a message with more than `most` arrays, objects and members."""
    return InvalidMessage(PARSE_ERROR, f"not accepted: more than {most} arrays, objects and members")


def _check_shape(message: Message) -> None:
    if message.jsonrpc != "2.0":
        raise InvalidMessage(INVALID_REQUEST, 'not a JSON-RPC message: "jsonrpc" must be "2.0"')
    has_outcome = (message.result is not UNSET) + (message.error is not UNSET)
    if message.method is not UNSET:
        if has_outcome:
            raise InvalidMessage(INVALID_REQUEST, "not a JSON-RPC message: a method and an outcome in one message")
        if message.id is None:
            raise InvalidMessage(INVALID_REQUEST, "not a JSON-RPC message: id must be a string or an integer, not null")
    elif has_outcome != 1:
        raise InvalidMessage(INVALID_REQUEST, "not a JSON-RPC message: needs a method, or one of result and error")
    elif message.id is UNSET or (message.id is None and message.error is UNSET):
        raise InvalidMessage(INVALID_REQUEST, "not a JSON-RPC message: a response needs an id")


def splice(raw: msgspec.Raw | bytes) -> bytes:
    """Return a raw value as bytes without line breaks, so that it fits into one line of stdio or SSE.

    JSON allows line breaks only between tokens. Those in strings are escaped, as `parse` has checked.
    """
    data = bytes(raw)
    if b"\n" in data or b"\r" in data:
        return bytes(msgspec.json.format(data, indent=-1))
    return data


def encode_request(request_id: RequestId, method: str, params: bytes | None) -> bytes:
    """Return an encoded request, with `params` copied into it unchanged."""
    # Joined, not added up: each addition would copy params, which may be megabytes, once more.
    tail = (b"}",) if params is None else (b',"params":', params, b"}")
    return b"".join((b'{"jsonrpc":"2.0","id":', encode(request_id), b',"method":', encode(method), *tail))


def encode_notification(method: str, params: bytes | None) -> bytes:
    """Return an encoded notification, with `params` copied into it unchanged."""
    tail = b"" if params is None else b',"params":' + params
    return b'{"jsonrpc":"2.0","method":' + encode(method) + tail + b"}"


def encode_result(request_id: bytes, result: bytes) -> bytes:
    """Return an encoded successful response. `request_id` is the encoded id, as it arrived."""
    return b"".join((b'{"jsonrpc":"2.0","id":', request_id, b',"result":', result, b"}"))


def encode_error(request_id: bytes, error: bytes | Mapping[str, Any]) -> bytes:
    """Return an encoded error response. `error` is encoded, or a mapping with code, message and maybe data. With an
    empty `request_id`, the response has no id, because the HTTP request carries no message."""
    body = error if isinstance(error, bytes) else encode(error)
    return b'{"jsonrpc":"2.0",' + (b'"id":' + request_id + b"," if request_id else b"") + b'"error":' + body + b"}"


class _ErrorHead(msgspec.Struct):
    code: int = INTERNAL_ERROR


def error_code(error: msgspec.Raw | bytes) -> int:
    """Return the code of a raw error object; -32603 if it has none."""
    try:
        return msgspec.json.decode(error, type=_ErrorHead).code
    except UNREADABLE:
        return INTERNAL_ERROR


_value: Final = msgspec.json.Decoder(msgspec.Raw).decode


def is_one_value(data: bytes) -> bool:
    """Return True if these bytes are exactly one JSON value in UTF-8."""
    try:
        data.decode()
        _value(data)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return False
    return True
