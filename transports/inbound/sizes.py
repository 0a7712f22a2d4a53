"""Checks the size of the parts of a message that the gateway keeps, compares or repeats.

Only the limit of the body bounds what is relayed and forgotten (arguments, results). What becomes a key, part of a log
line or part of a session's record is checked here, before anything else is done with the message. No I/O.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from transports.inbound.limits import MAX_CURSOR_BYTES, MAX_FILTER_BYTES, MAX_ID_CHARS, Limited, Limits, Refusals
from transports.inbound_port import Refused
from transports.json_shape import REQUEST_PARTS
from transports.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, Message, Object, parse

__all__ = ["Sizes"]


class _Meta(msgspec.Struct):
    progressToken: Any = None


class Sizes:
    """Checks messages against the limits, and counts what it refuses."""

    def __init__(self, limits: Limits, refusals: Refusals) -> None:
        self._name_chars = limits.name_chars
        self._refusals = refusals
        # By parameter: what it counts as, and its longest form in characters (after decoding) or bytes (of JSON).
        names, ids = (Limited.NAME, limits.name_chars), (Limited.NAME, MAX_ID_CHARS)
        self._texts: Final = {
            "name": names,
            "level": names,
            "requestId": ids,
            "progressToken": ids,
            "uri": (Limited.URI, limits.uri_chars),
        }
        self._values: Final = {
            "cursor": (Limited.NAME, MAX_CURSOR_BYTES),
            "ref": (Limited.URI, limits.uri_chars + limits.name_chars),  # of `completion/complete`: a name or a URI
            "notifications": (Limited.URI, MAX_FILTER_BYTES),  # of `subscriptions/listen`: its filter
        }

    def parse(self, data: bytes) -> Message:
        """As `jsonrpc.parse`, for a message of a client. Checks the length of its id and its method.

        Raises:
            InvalidMessage: the bytes are not a message.
            Refused: 400, without the id.
        """
        message = parse(data, REQUEST_PARTS)
        if isinstance(message.id, int):
            if message.id.bit_length() > 64:
                raise self._refused("The request id does not fit 64 bits.")
        elif isinstance(message.id, str) and len(message.id) > MAX_ID_CHARS:
            raise self._refused(f"The request id is longer than {MAX_ID_CHARS} characters.")
        if isinstance(message.method, str) and len(message.method) > self._name_chars:
            raise self._refused(f"The method is longer than {self._name_chars} characters.")
        return message

    def check(self, params: Object, meta: Mapping[str, Any] | None) -> None:
        """Check the params of a message. `meta` is their `_meta` if it has been decoded already.

        Raises:
            Refused: -32602, naming the parameter that is too long.
        """
        for key, raw in params.items():
            if key in self._texts:
                kind, most = self._texts[key]
                if not _is_short(raw, most):
                    raise self._too_long(kind, f"params.{key}", f"{most} characters")
            elif key in self._values:
                kind, most = self._values[key]
                if len(memoryview(raw)) > most:
                    raise self._too_long(kind, f"params.{key}", f"{most} bytes")
        if "_meta" in params:
            token = _progress_token(params["_meta"]) if meta is None else meta.get("progressToken")
            if isinstance(token, str) and len(token) > MAX_ID_CHARS:
                raise self._too_long(Limited.NAME, "params._meta.progressToken", f"{MAX_ID_CHARS} characters")

    def _refused(self, reason: str) -> Refused:
        self._refusals[Limited.NAME] += 1
        return Refused(400, INVALID_REQUEST, reason)

    def _too_long(self, kind: Limited, what: str, most: str) -> Refused:
        self._refusals[kind] += 1
        return Refused(200, INVALID_PARAMS, f"{what} is longer than {most}.")


def _progress_token(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw, type=_Meta).progressToken
    except msgspec.MsgspecError:
        return None  # the decoding of the whole `_meta` will report the fault


def _is_short(raw: msgspec.Raw, most: int) -> bool:
    """True if the value is a text of at most `most` characters. Short JSON needs no decoding: its text is shorter."""
    if len(memoryview(raw)) <= most + 2:
        return True
    text = msgspec.json.decode(raw)
    return isinstance(text, str) and len(text) <= most
