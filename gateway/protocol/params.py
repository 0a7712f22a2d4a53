"""Read single values from the params of a message. Pure."""

import msgspec

from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, Object, decode_object

_texts = msgspec.json.Decoder(str)


def meta_of(params: Object) -> Object:
    """Return the entries of `_meta` in params or in a result; empty without `_meta`. Raises `InvalidMessage` if `_meta`
    is neither an object nor null."""
    return decode_object(params["_meta"], "_meta") if "_meta" in params else {}


def text_of(params: Object, key: str) -> str:
    """Return the string under `key` in params. Raises `Refused` (-32602) if it is missing or not a string."""
    try:
        return _texts.decode(params.get(key, b"null"))
    except msgspec.MsgspecError:
        raise Refused(200, INVALID_PARAMS, f"params.{key} must be a string") from None
