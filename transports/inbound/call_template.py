"""The body of a tool call that a connection repeats, with holes for id, progress token and arguments. Pure: no I/O.

A template is proved by the reader of all bodies: with other values in its holes, a body has to be read as the same call
with these values. A JSON value in place of another changes nothing around it (RFC 8259 §2). So what was decided on the
call holds for each body that fits, if its arguments are one JSON value, which is for the user of the template to check.
"""

import re
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from transports.inbound_port import Holes
from transports.jsonrpc import InvalidMessage, Message, Object, decode_object, encode

__all__ = ["MAX_BODY_BYTES", "MAX_KEPT_BYTES", "CallTemplate"]

MAX_BODY_BYTES: Final = 8 << 10
"""Of a body that fits. So short a body cannot have too many parts, or one that is too long, but for what is compared
with the template."""

MAX_KEPT_BYTES: Final = 2 << 10
"""Of a body without its arguments, which is what a template holds."""

_VALUE_BYTES: Final = 40
"""Of an id or a token. A UUID in quotation marks fits."""

_PLAIN: Final = re.compile(rb'0|[1-9][0-9]{0,14}|"[0-9A-Za-z_.-]+"')
"""An integer of the usual form, which every reader reads as the same number, or a text without an escape."""

_ID, _TOKEN, _ARGUMENTS = range(3)
_NAMES: Final = ("id", "progressToken", "arguments")
_KEYS: Final = tuple(re.compile(rb'"%b"[ \t\r\n]*:[ \t\r\n]*' % name.encode()) for name in _NAMES)

_WORD_OF_PROOF: Final = secrets.token_hex(12).encode()
_PROOFS: Final = (
    b"%d" % (10**14 + secrets.randbelow(10**14)),
    b'"%b"' % _WORD_OF_PROOF,
    b'{"a":[1,{"%b":"}"}],"c":{}}' % _WORD_OF_PROOF,
)
"""Nobody knows them, so no body has them already where its reader does not look."""

_Before = tuple[bytes, int, int]
"""Bytes of a body, how many they are, and the hole behind them."""

_After = tuple[bytes, int, int, bytes]
"""Bytes of a body, how many they are, the hole before them, and the byte before the value in it."""


class CallTemplate:
    """Made by `of`. `before` are the parts that end with a hole before the arguments, `after`, from the end of the
    body, those that begin with one behind the arguments. `first` and `last` are around the arguments. A call without
    arguments has all holes before them, and nothing (`bare`) between `first` and `last`."""

    __slots__ = ("_after", "_bare", "_before", "_first", "_last")

    def __init__(
        self, before: tuple[_Before, ...], first: bytes, last: bytes, after: tuple[_After, ...], *, bare: bool
    ) -> None:
        self._before = before
        self._first = first
        self._last = last
        self._after = after
        self._bare = bare

    @classmethod
    def of(
        cls, body: bytes, message: Message, params: Object, read: Callable[[bytes], Message]
    ) -> "CallTemplate | None":
        """Make the template of a tool call. `read` is the reader of bodies, which has read this one as that message
        with these params. None if the call has another form."""
        spans = _spans(body, message, params)
        if (
            spans is None
            or len(body) > MAX_BODY_BYTES
            or len(body) - len(memoryview(params.get("arguments", b""))) > MAX_KEPT_BYTES
        ):
            return None
        at = 0
        pieces: list[bytes] = []  # around the holes
        for begin, end, _ in spans:
            pieces.append(body[at:begin])
            at = end
        pieces.append(body[at:])
        holes = [hole for _, _, hole in spans]
        proof = b"".join(piece + _PROOFS[hole] for piece, hole in zip(pieces, holes, strict=False)) + pieces[-1]
        if not _is_proved(proof, _TOKEN in holes, message, params, read):
            return None
        bare = _ARGUMENTS not in holes
        place = len(holes) if bare else holes.index(_ARGUMENTS)
        before = tuple((pieces[n], len(pieces[n]), holes[n]) for n in range(place))
        after = tuple(
            (pieces[n + 1], len(pieces[n + 1]), holes[n], pieces[n][-1:])
            for n in reversed(range(place + 1, len(holes)))
        )
        return cls(before, pieces[place], b"" if bare else pieces[place + 1], after, bare=bare)

    def fit(self, body: bytes) -> Holes | None:
        """Return what stands in the holes of a body; None if it does not fit. A call without arguments has none."""
        found = [b"", b""]
        begin, end = 0, len(body)
        if end > MAX_BODY_BYTES:
            return None
        for part, size, hole in self._before:
            if not body.startswith(part, begin):
                return None
            begin += size
            value = _PLAIN.match(body, begin, begin + _VALUE_BYTES)
            if value is None:
                return None
            found[hole] = value[0]
            begin = value.end()  # another part follows, which does not begin as a value could go on
        for part, size, hole, stop in self._after:
            if not body.endswith(part, begin, end):
                return None
            end -= size
            stops = body.rfind(stop, max(begin, end - _VALUE_BYTES), end) + 1
            found[hole] = body[stops:end]
            if not stops or _PLAIN.fullmatch(body, stops, end) is None:
                return None
            end = stops
        if not body.startswith(self._first, begin) or not body.endswith(self._last, begin, end):
            return None
        arguments = body[begin + len(self._first) : end - len(self._last)]
        return None if self._bare and arguments else (found[_ID], arguments)


def _spans(body: bytes, message: Message, params: Object) -> list[tuple[int, int, int]] | None:
    """Return where the values of the holes stand in a body, in this order, and which they are. None if that is not
    clear."""
    if message.method != "tools/call":
        return None
    spans = []
    outside = (0, 0)
    if "arguments" in params:
        arguments = bytes(params["arguments"])
        found = _places(body, _ARGUMENTS, arguments, outside)
        if len(found) != 1 or not arguments.startswith(b"{"):
            return None
        outside = found[0]
        spans.append((*outside, _ARGUMENTS))
    values = {_ID: encode(message.id)}
    try:
        meta = decode_object(params.get("_meta", msgspec.Raw(b"{}")), "_meta")
    except InvalidMessage:
        return None
    if "progressToken" in meta:
        values[_TOKEN] = bytes(meta["progressToken"])
    for hole, value in values.items():
        places = _places(body, hole, value, outside)
        if len(places) != 1 or _PLAIN.fullmatch(value) is None:
            return None
        spans.append((*places[0], hole))
    return sorted(spans)


def _places(body: bytes, hole: int, value: bytes, outside: tuple[int, int]) -> list[tuple[int, int]]:
    """Return where a key of that name is followed by that value, but for a part of the body."""
    begins = (key.end() for key in _KEYS[hole].finditer(body) if not outside[0] <= key.start() < outside[1])
    return [(begin, begin + len(value)) for begin in begins if body.startswith(value, begin)]


def _is_proved(
    proof: bytes, has_token: bool, message: Message, params: Object, read: Callable[[bytes], Message]
) -> bool:
    """Return True if the body with the values of `_PROOFS` is read as that message with these values."""
    try:
        found = read(proof)
        got = found.params_object()
        wanted = {**params}
        if "arguments" in wanted:
            wanted["arguments"] = msgspec.Raw(_PROOFS[_ARGUMENTS])
        if has_token:
            meta, known = decode_object(got.pop("_meta"), "_meta"), decode_object(wanted.pop("_meta"), "_meta")
            if bytes(meta["progressToken"]) != _PROOFS[_TOKEN] or meta != {
                **known,
                "progressToken": meta["progressToken"],
            }:
                return False
    except Exception:  # whatever it is, it is not read as the call
        return False
    return found.id == int(_PROOFS[_ID]) and found.method == message.method and got == wanted
