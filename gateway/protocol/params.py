"""Single values out of a message's params. Pure."""

import msgspec

from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, Object, decode_object

__all__ = ["meta_of", "text_of"]


def meta_of(params: Object) -> Object:
    """The top level of `_meta`; empty when there is none."""
    return decode_object(params["_meta"], "_meta") if "_meta" in params else {}


def text_of(params: Object, key: str) -> str:
    """A string that has to be there. Raises `Refused`: -32602, naming the key."""
    try:
        return msgspec.json.decode(params.get(key, b"null"), type=str)
    except msgspec.MsgspecError:
        raise Refused(200, INVALID_PARAMS, f"params.{key} must be a string") from None
