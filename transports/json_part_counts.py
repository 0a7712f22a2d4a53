"""Count the arrays, objects and members (parts) of a JSON text without decoding it.

Decoding an empty array takes as long as decoding hundreds of characters. So the number of parts has to be limited as
well as the number of bytes. A short text, or one with few brackets and colons, cannot have too many parts, and costs
only a few passes. Pure: knows no messages.
"""

import re
from typing import Final

REQUEST_PARTS: Final = 32_768
"""Maximum number of parts of a client's message. The whole message may be decoded, which takes 5 ms for this number."""

ANSWER_PARTS: Final = 262_144
"""Maximum number of parts of a server's message. Large results have more parts than arguments, and are passed on
without being decoded."""

META_BYTES: Final = 32 << 10
"""The most bytes of a `_meta`, decoded for each request. W3C limits its largest known member, `baggage`, to 8 KiB."""

META_PARTS: Final = 1_024

_MOST_STRINGS: Final = 131_072
"""Maximum number of strings with brackets, colons or commas that are skipped when the parts of a text are counted."""

_BYTES_FOR_ONE: Final = 2
"""The fewest bytes that an array, an object or a member can have."""

_FEW: Final = 64

_REST: Final = bytes(set(range(256)) - set(b'"[{:,'))
_STRING: Final = re.compile(rb'"[^"]*"')


def has_more_parts(data: bytes, most: int) -> bool:
    """Return True if a JSON text has more than `most` arrays, objects and members together."""
    if len(data) <= most * _BYTES_FOR_ONE or _count(data) <= most:
        return False
    # Strings may be full of brackets. Without escapes, each begins and ends with a quotation mark.
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _REST).replace(b'""', b"")
    # Each string that is left takes a step of its own, which costs as much as a part. So the steps are limited too.
    return plain.count(b'"') > 2 * _MOST_STRINGS or _count(_STRING.sub(b"", plain)) > most


def _count(data: bytes) -> int:
    return _number(data, b"[") + _number(data, b"{") + _number(data, b":")


def _number(data: bytes, sign: bytes) -> int:
    """Return how often the byte `sign` occurs in the data. If it is rare, this is ten times as fast as `data.count`,
    because `find` skips the bytes in between."""
    at = -1
    for found in range(_FEW):
        at = data.find(sign, at + 1)
        if at < 0:
            return found
    return _FEW + data.count(sign, at + 1)
