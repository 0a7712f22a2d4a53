"""The call of a task as it is stored, so that it can run again with the rights that it had. Pure."""

import msgspec

from session_store import Context
from transports.jsonrpc import Object, encode

__all__ = ["MAX_BYTES", "StoredCall", "stored"]

MAX_BYTES = 256 << 10
"""Bytes of a call that is stored. A larger one does not run again."""


class StoredCall(msgspec.Struct, frozen=True):
    """What the client has sent, `_meta` included, and the context of its request: the session's may be another one by
    the time the call runs again, and may grant more. `is_legacy`: the client is of a version before 2026-07-28."""

    params: Object
    context: Context
    is_legacy: bool = False

    @classmethod
    def read(cls, data: bytes) -> "StoredCall":
        """The call that `stored` has made bytes of."""
        return msgspec.json.decode(data, type=cls)


def stored(params: Object, context: Context, *, is_legacy: bool = False) -> bytes:
    """The bytes of a call, without answers to what it has asked: it begins anew. Empty if it is too large."""
    params = {key: raw for key, raw in params.items() if key not in ("requestState", "inputResponses")}
    size = sum(len(memoryview(raw)) for raw in params.values())
    data = encode(StoredCall(params, context, is_legacy)) if size <= MAX_BYTES else b""
    return data if len(data) <= MAX_BYTES else b""
