"""The envelope: what is a message, what is not, and that bodies pass through untouched."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.too_deep import TOO_DEEP
from transports.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    InvalidMessage,
    encode_request,
    encode_result,
    error_code,
    parse,
    splice,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(params=st.dictionaries(st.text(), JSON, max_size=5), indent=st.sampled_from([None, 2]))
def test_params_survive_exactly_and_fit_on_a_line(params: dict[str, Any], indent: int | None) -> None:
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "m", "params": params}, indent=indent, ensure_ascii=False)
    message = parse(text.encode())
    assert isinstance(message.params, msgspec.Raw)
    line = encode_request(7, "m", splice(message.params))
    assert b"\n" not in line and b"\r" not in line
    assert json.loads(line) == {"jsonrpc": "2.0", "id": 7, "method": "m", "params": params}


def test_numbers_and_key_order_are_not_touched_and_a_lone_surrogate_of_a_server_is_repaired() -> None:
    raw = b'{"z":1.10,"a":1e400,"big":123456789012345678901234567890}'
    message = parse(b'{"jsonrpc":"2.0","id":1,"result":' + raw + b"}")
    assert isinstance(message.result, msgspec.Raw)
    assert encode_result(b'"x"', splice(message.result)) == b'{"jsonrpc":"2.0","id":"x","result":' + raw + b"}"
    message = parse(b'{"jsonrpc":"2.0","id":0,"result":{"text":"a\\ud800b"}}', is_lenient=True)
    assert isinstance(message.result, msgspec.Raw) and json.loads(bytes(message.result)) == {"text": "a?b"}
    assert parse(b'{"jsonrpc":"2.0","id":0,"method":"initialize"}').is_request, "zero is an id"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        *((data, PARSE_ERROR) for data in (b"", b"{", b"nonsense")),
        (b'{"jsonrpc":"2.0","id":1,"method":"m"} trailing', PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\xff"}}', PARSE_ERROR),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"line\nbreak"}}', PARSE_ERROR),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + TOO_DEEP + b"}", PARSE_ERROR, id="too deep"),
        *((data, INVALID_REQUEST) for data in (b"[]", b"null", b'"text"', b"{}")),
        (b'{"id":1,"method":"m"}', INVALID_REQUEST),
        (b'{"jsonrpc":"1.0","id":1,"method":"m"}', INVALID_REQUEST),
        *(
            (b'{"jsonrpc":"2.0","id":%b,"method":"m"}' % no_id, INVALID_REQUEST)
            for no_id in (b"null", b"1.5", b"true", b"[1]")
        ),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","result":{}}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","result":{}}', INVALID_REQUEST),
    ],
)
def test_what_is_no_message_says_why(data: bytes, code: int) -> None:
    with pytest.raises(InvalidMessage) as caught:
        parse(data)
    assert caught.value.code == code


def test_an_error_that_cannot_be_read_is_an_internal_one() -> None:
    for data in (b"null", TOO_DEEP, b'"\xff"'):
        assert error_code(b'{"data":' + data + b"}") == INTERNAL_ERROR


@given(st.binary())
def test_any_bytes_are_a_message_or_invalid(data: bytes) -> None:
    for is_lenient in (False, True):
        try:
            parse(data, is_lenient=is_lenient)
        except InvalidMessage:
            pass
