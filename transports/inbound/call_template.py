"""Recognize request bodies that differ from an earlier tool call only in id, progress token and arguments. Pure: no
I/O.

A template is the body of the earlier call, with holes for these three values. Before it is used, the usual parser
proves it: with test values in the holes, the parser has to read the same call with these values. Replacing one JSON
value by another changes nothing around it (RFC 8259 §2). So the decision on the earlier call holds for each body that
fits, if the arguments are one JSON value, which the caller has to check.
"""

import re
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from transports.inbound_port import CallValues
from transports.jsonrpc import InvalidMessage, Message, Object, decode_object, encode

MAX_BODY_BYTES: Final = 8 << 10
"""Maximum bytes of a body that is compared with a template. Values in so short a body cannot exceed the limits on
messages."""

MAX_KEPT_BYTES: Final = 2 << 10
"""The most bytes that a template stores: those of a body without its arguments."""

_VALUE_BYTES: Final = 40
"""The most bytes of an id or a progress token. A UUID in quotation marks fits."""

_PLAIN: Final = re.compile(rb'0|[1-9][0-9]{0,14}|"[0-9A-Za-z_.-]+"')
"""A plain id or progress token: an integer that every parser reads as the same number, or a string without escapes."""

_ID, _TOKEN, _ARGUMENTS = range(3)
_NAMES: Final = ("id", "progressToken", "arguments")
_KEYS: Final = tuple(re.compile(rb'"%b"[ \t\r\n]*:[ \t\r\n]*' % name.encode()) for name in _NAMES)

_WORD_OF_PROOF: Final = secrets.token_hex(12).encode()
_PROOFS: Final = (
    b"%d" % (10**14 + secrets.randbelow(10**14)),
    b'"%b"' % _WORD_OF_PROOF,
    b'{"a":[1,{"%b":"}"}],"c":{}}' % _WORD_OF_PROOF,
)
"""Random test values for the holes of a template (`_NAMES`). No client knows them, so no body can have them in a place
that the parser ignores."""

_Before = tuple[bytes, int, int]
"""A part of a template: the bytes in front of a hole, their number, and the hole's number."""

_After = tuple[bytes, int, int, bytes]
"""A part of a template: the bytes behind a hole, their number, the hole's number, and the last byte in front of the
hole."""


class CallTemplate:
    """The body of a tool call, cut into the bytes around its holes. Made by `of`.

    `before` has the bytes in front of each hole that precedes the arguments, and `first` those directly in front of the
    arguments. `last` has the bytes directly behind the arguments, and `after` those behind each hole that follows the
    arguments, the last hole first. Without arguments, all holes are in `before`, and `last` is empty.
    """

    __slots__ = ("_after", "_before", "_first", "_first_bytes", "_has_arguments", "_last", "_last_bytes")

    def __init__(
        self, before: tuple[_Before, ...], first: bytes, last: bytes, after: tuple[_After, ...], *, has_arguments: bool
    ) -> None:
        self._before = before
        self._first, self._first_bytes = first, len(first)
        self._last, self._last_bytes = last, len(last)
        self._after = after
        self._has_arguments = has_arguments

    @classmethod
    def of(
        cls, body: bytes, message: Message, params: Object, read: Callable[[bytes], Message]
    ) -> "CallTemplate | None":
        """Return the template of a tool call; None if its body has an unusual form. `read` is the usual parser, which
        has read this body as `message` with `params`."""
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
        has_arguments = _ARGUMENTS in holes
        place = holes.index(_ARGUMENTS) if has_arguments else len(holes)
        before = tuple((pieces[n], len(pieces[n]), holes[n]) for n in range(place))
        after = tuple(
            (pieces[n + 1], len(pieces[n + 1]), holes[n], pieces[n][-1:])
            for n in reversed(range(place + 1, len(holes)))
        )
        return cls(
            before, pieces[place], pieces[place + 1] if has_arguments else b"", after, has_arguments=has_arguments
        )

    def fit(self, body: bytes) -> CallValues | None:
        """Return the id, the progress token and the arguments in a body; None if the body does not fit the template."""
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
            begin = value.end()  # the next part begins with a byte that cannot continue a value
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
        arguments = body[begin + self._first_bytes : end - self._last_bytes]
        return (found[_ID], found[_TOKEN], arguments) if (arguments != b"") is self._has_arguments else None


def _spans(body: bytes, message: Message, params: Object) -> list[tuple[int, int, int]] | None:
    """Return the holes that a template of this body has, in the order of the body: where each begins and ends, and its
    number (`_ID`, `_TOKEN` or `_ARGUMENTS`). Return None if the message is no tool call, or if a value is not plain or
    may stand in more than one place."""
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
    """Return where a hole may be in the body: (begin, end) of each place where `value` stands behind the JSON key of
    this hole (`_KEYS`). Skip keys inside the span `outside`, which is that of the arguments."""
    begins = (key.end() for key in _KEYS[hole].finditer(body) if not outside[0] <= key.start() < outside[1])
    return [(begin, begin + len(value)) for begin in begins if body.startswith(value, begin)]


def _is_proved(
    proof: bytes, has_token: bool, message: Message, params: Object, read: Callable[[bytes], Message]
) -> bool:
    """Return True if `proof`, the body with the test values `_PROOFS` in its holes, is the same call with these values.
    The parser `read` decides. `has_token`: one of the holes is for a progress token. `message` and `params` are those
    of the original body."""
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
    except Exception:  # whatever failed, the body is not read as the call
        return False
    return found.id == int(_PROOFS[_ID]) and found.method == message.method and got == wanted
