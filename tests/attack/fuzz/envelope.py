"""Messages and batches of them, more or less: whatever the bytes are, they are read as `json` reads them, or refused.

The oracle is `json.loads` and the rules of JSON-RPC 2.0 and MCP written down a second time. Hypothesis makes the bytes.
"""

import json
from collections import Counter
from functools import partial
from time import perf_counter
from typing import Any, Final, cast

import msgspec
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.attack.fuzz.transport import loop
from transports.era import Era
from transports.inbound.batch import Batches, BatchResponse
from transports.inbound.post_parsing import LengthChecks
from transports.inbound.unauthenticated_limits import Limits
from transports.inbound_port import Refused, Request
from transports.jsonrpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    InvalidMessage,
    Message,
    decode_object,
    encode_error,
    encode_request,
    error_code,
    parse,
    splice,
)

MOST_S: Final = 2.0
"""No message of this size may take longer."""

_INVALID = "invalid"

# -- what is sent

_floats = st.floats(allow_nan=False, allow_infinity=False)
_numbers = st.integers() | _floats | st.sampled_from((0, -0.0, 2**63, 2**64, 1e308))
_known_texts = ("2.0", "tools/call", "\x00", "\u2028", "\U0001f600", "a\nb", "\\", '"')
_texts = st.text(max_size=12) | st.sampled_from(_known_texts)
_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)
_odd_ids: tuple[Any, ...] = (0, 1, "a", None, True, 1.0, 1.5, [], {})
_ids = st.integers(-(2**70), 2**70) | _texts | st.sampled_from(_odd_ids)
_messages = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(("2.0", "2.0", "2.0", "1.0", 2.0, None)),
        "id": _ids,
        "method": _texts | _values,
        "params": st.dictionaries(_texts, _values, max_size=3) | _values,
        "result": _values,
        "error": st.dictionaries(st.sampled_from(("code", "message", "data")), _values) | _values,
        "extra": _values,
    },
)
_plain = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "id": st.integers(0, 9), "method": st.just("ping")}, optional={"params": _values}
)
_odd: Final = (
    b"\\ud800", b"\\udc00x", b"\\u00e9", b"\\x",
    b"\\", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x00", b"\n", b"\r\n",
    b"\t", b" ", b"NaN", b"Infinity", b"-", b"01", b"1e999", b"1E+", b".5", b"{", b"}", b"[", b"]", b",", b":",
    b'"', b"//", b"'",
    b"[" * 300, b'{"a":' * 300, b"nul", b"\x0b", b"\xc2\xa0", b"9" * 400, b"1." + b"0" * 400, b'"id":1,',
    b'"jsonrpc":"2.0",',
)  # fmt: skip


@st.composite
def _written(draw: st.DrawFn, value: Any) -> bytes:
    """A value as somebody might write it, sometimes damaged."""
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from((None, None, 1))))
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        place = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 2)):
            case 0:
                data[place:place] = draw(st.sampled_from(_odd))
            case 1:
                del data[place : place + draw(st.integers(1, 6))]
            case _:
                data[place:place] = data[place : place + draw(st.integers(1, 30))]
    return bytes(data)


messages: st.SearchStrategy[bytes] = (_messages | _plain).flatmap(_written) | st.binary(max_size=60)
batches: st.SearchStrategy[bytes] = (
    st.lists(_plain | _messages | _values, max_size=6) | st.lists(_plain, min_size=60, max_size=70)
).flatmap(_written)


# -- what `json` says of it


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def loaded(data: bytes) -> Any:
    """As the standard library reads it, but strictly: UTF-8 without a mark at its start, numbers as RFC 8259 has them.

    Raises:
        ValueError: it is no JSON.
        RecursionError: too deep for it.
    """
    return json.loads(data.decode(), parse_constant=_no_constant)


def _verdict(value: Any) -> str:
    """Empty for one JSON-RPC message of MCP."""
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return _INVALID
    has_id, request_id = "id" in value, value.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, int | str | None):
        return _INVALID  # 1.0 is a number with a fraction as well (JSON-RPC 2.0 §4)
    if "method" in value:
        named = isinstance(value["method"], str)
        good = named and "result" not in value and "error" not in value and (not has_id or request_id is not None)
    else:
        good = ("result" in value) != ("error" in value) and has_id and (request_id is not None or "error" in value)
    return "" if good else _INVALID


# -- the checks


def check_message(data: bytes) -> None:
    """One message, by `parse`, strict and lenient."""
    begin = perf_counter()
    strict = _outcome(parse, data)
    lenient = _outcome(partial(parse, is_lenient=True), data)
    assert perf_counter() - begin < MOST_S, "it takes too long"
    try:
        value = loaded(data)
    except ValueError:
        # What the gateway does not look into, it relays as it came: servers and clients read it themselves.
        assert not isinstance(strict, Message), "no JSON, and yet a message"
        return
    except RecursionError:
        return
    if isinstance(strict, Message):
        assert _verdict(value) == "", f"{value!r} is no message"
        _same(strict, value)
        assert isinstance(lenient, Message) and lenient == strict, "lenient is stricter"
    elif not _repeats_a_key(data) and not _has_surrogates(value) and _depth(value) < 200 and not _is_huge(value):
        expected = _verdict(value)
        assert expected, f"{value!r} is a message, and refused: {strict}"
        assert strict.code == INVALID_REQUEST, f"{value!r}: {strict}"


def _outcome(read: Any, data: bytes) -> Message | InvalidMessage:
    try:
        return cast("Message", read(data))
    except InvalidMessage as invalid:
        assert invalid.code in (PARSE_ERROR, INVALID_REQUEST), invalid.code
        return invalid


def _same(message: Message, value: dict[str, Any]) -> None:
    """It says what it said, also after it went through."""
    for name in ("params", "result", "error"):
        raw = getattr(message, name)
        assert (raw is not msgspec.UNSET) == (name in value), name
        if raw is not msgspec.UNSET:
            line = splice(raw)
            assert b"\n" not in line and b"\r" not in line, line
            assert _equal(json.loads(line), value[name]), (line, value[name])
    if message.is_request:
        params = message.params if isinstance(message.params, msgspec.Raw) else None
        again = parse(encode_request(cast("int | str", message.id), str(message.method), params and splice(params)))
        assert (again.id, again.method) == (message.id, message.method)
        try:
            given = message.params_object()
        except InvalidMessage:
            assert not isinstance(value.get("params"), dict | None), value
        else:
            assert given.keys() == (value.get("params") or {}).keys()
    if isinstance(message.error, msgspec.Raw):
        error_code(message.error)
        assert parse(encode_error(b"1", splice(message.error))).is_response


def _equal(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _repeats_a_key(data: bytes) -> bool:
    """Of two values `json` takes the last one. Whoever looks at the first as well may refuse it (RFC 8259 §4)."""
    repeats = []
    json.loads(data, object_pairs_hook=lambda pairs: repeats.append(len({key for key, _ in pairs}) < len(pairs)))
    return any(repeats)


def _has_surrogates(value: Any) -> bool:
    """Lone surrogates, which are no text: `json` lets them through."""
    return any(0xD800 <= ord(c) < 0xE000 for c in json.dumps(value, ensure_ascii=False))


def _is_huge(value: Any) -> bool:
    """Numbers beyond what 64 bits, or a double, can hold: `json` has no limit."""
    return any(len(part) > 18 for part in json.dumps(value).replace(",", " ").replace("]", " ").split())


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


class _Handler:
    """Refuses every call: then the answer says whose it is and nothing else is needed."""

    def refused(self, headers: Any, refused: Refused, *, again: bool = False) -> Refused:
        return refused

    async def negotiated(self, request: Request) -> str:
        return "2025-03-26"

    async def call(self, request: Request) -> Any:
        raise Refused(200, 1, "called")

    async def notify(self, request: Request) -> None:
        pass

    async def respond(self, request: Request) -> None:
        pass


def check_batch(data: bytes) -> None:
    """A batch: each of its messages is answered once, or all of it refused."""
    limits = Limits()
    made = Batches(cast("Any", _Handler()), LengthChecks(limits, Counter[Any]()), limits, Counter[Any]())
    request = Request(era=Era.LEGACY, endpoint="/mcp", headers={}, protocol_version="2025-03-26")
    sent: list[bytes] = []

    async def send(event: Any) -> None:
        sent.append(event.get("body", b""))

    async def answered() -> bytes:
        response = BatchResponse(send)
        await response.during(made.handle(await made.accepted(data, request), request, response, send))
        return b"".join(sent)

    begin = perf_counter()
    try:
        answer = loop().run_until_complete(answered())
    except Refused as refused:
        assert refused.status == 400, refused
        answer = b"refused"
    assert perf_counter() - begin < MOST_S, "it takes too long"
    try:
        value = loaded(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(value, list) or not 0 < len(value) <= limits.batch_messages:
        assert answer == b"refused", answer
    elif answer != b"refused" and not _repeats_a_key(data):
        told = json.loads(answer or b"[]")
        wanting = [part for part in value if _wants_an_answer(part)]
        assert len(told) == len(wanting), (told, wanting)
        for one, part in zip(told, wanting, strict=True):
            assert one["id"] in (part.get("id") if isinstance(part, dict) else None, None), (one, part)


def _wants_an_answer(part: Any) -> bool:
    """A request, or what is no message of the gateway: it takes no id beyond 64 bits."""
    if _verdict(part) or ("method" in part and "id" in part):
        return True
    return isinstance(part.get("id"), int) and part["id"].bit_length() > 64


def check_object(data: bytes) -> None:
    """The top level of an object, as params are read."""
    try:
        found = decode_object(data, "params")
    except InvalidMessage:
        return
    for raw in found.values():
        assert b"\n" not in splice(raw)


CHECKS: Final = {
    "message": (messages, check_message),
    "batch": (batches, check_batch),
    "object": (messages, check_object),
}


def run(name: str, number: int, examples: int) -> None:
    """So many examples of one check, the same ones for the same number. Raises what it finds, made small."""
    strategy, check = CHECKS[name]

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def checked(data: bytes) -> None:
        check(data)

    checked()
