"""What a message costs follows its bytes: it has a bounded number of parts, whatever its strings hold."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirements import requirement
from transports.json_part_counts import ANSWER_PARTS, META_BYTES, META_PARTS, REQUEST_PARTS, has_more_parts
from transports.jsonrpc import InvalidMessage, decode_meta, parse

pytestmark = requirement("wall.structure")

texts = st.text(alphabet='ab"\\[]{}:, é\n')
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=6),
    max_leaves=40,
)


def parts_of(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(map(parts_of, value))
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(parts_of, value.values()))
    return 0


@given(value=values, space=st.booleans())
def test_parts_are_counted_as_a_reader_would(value: Any, space: bool) -> None:
    text = msgspec.json.encode(value)
    if space:
        text = msgspec.json.format(text, indent=2)
    count = parts_of(value)
    assert not has_more_parts(text, count)
    assert not count or has_more_parts(text, count - 1)


@pytest.mark.parametrize(
    "made",
    [
        lambda: b"[" + b",".join([b"[" * 200 + b"]" * 200] * 9_500) + b"]",
        lambda: b"[" + b",".join([b"{}"] * 350_000) + b"]",
        lambda: b"{" + b",".join(b'"%d":0' % n for n in range(350_000)) + b"}",
    ],
    ids=["9,500 arrays, nested 200 deep", "350,000 empty objects", "350,000 members"],
)
def test_a_message_of_too_many_parts_is_not_read(made: Callable[[], bytes]) -> None:
    costly = made()
    for is_lenient in (False, True):
        with pytest.raises(InvalidMessage, match="arrays, objects and members"):
            parse(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + costly + b"}}", is_lenient=is_lenient)
    with pytest.raises(InvalidMessage, match="_meta is longer"):
        decode_meta(msgspec.Raw(costly))


def test_long_texts_and_large_tables_are_read() -> None:
    """Brackets in a string are text, and a result may have more rows than a request."""
    code = msgspec.json.encode('{"a": [1, {"b": "c"}], "t": "12:00:00"},\n' * 90_000)
    assert len(code) > 4 << 20
    parse(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + code + b"}}", REQUEST_PARTS)
    rows = msgspec.json.encode([{"id": n, "name": "row", "at": "2026-01-01T00:00:00"} for n in range(60_000)])
    assert ANSWER_PARTS > 60_000 * 4
    answer = parse(b'{"jsonrpc":"2.0","id":1,"result":{"rows":' + rows + b"}}")
    assert answer.result is not msgspec.UNSET


def test_a_meta_is_bounded_in_bytes_and_in_parts() -> None:
    def read(**meta: object) -> object:
        return decode_meta(msgspec.Raw(msgspec.json.encode(meta)))

    assert read(baggage="x" * 8_192, deep=[[]] * 100)
    with pytest.raises(InvalidMessage, match="_meta is longer than"):
        read(x="y" * META_BYTES)
    with pytest.raises(InvalidMessage, match="_meta is longer than"):
        read(x=[[]] * META_PARTS)
