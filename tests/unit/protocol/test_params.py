"""Single values out of the params of a message."""

import msgspec
import pytest

from gateway.protocol.params import meta_of, text_of
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, InvalidMessage


def test_meta_is_an_object_and_empty_where_there_is_none() -> None:
    assert meta_of({}) == meta_of({"_meta": msgspec.Raw(b"null")}) == {}
    assert meta_of({"_meta": msgspec.Raw(b'{"a": [1]}')}) == {"a": msgspec.Raw(b"[1]")}
    for meta in (b"7", b"[]", b'"text"'):
        with pytest.raises(InvalidMessage, match="_meta"):
            meta_of({"_meta": msgspec.Raw(meta)})


def test_a_text_is_decoded_and_anything_else_is_refused_by_its_name() -> None:
    assert text_of({"name": msgspec.Raw(b'"a\\u00fc"')}, "name") == "a\u00fc"
    for params in ({}, {"name": msgspec.Raw(b"7")}, {"name": msgspec.Raw(b"null")}):
        with pytest.raises(Refused, match=r"params\.name must be a string") as refused:
            text_of(params, "name")
        assert (refused.value.status, refused.value.code) == (200, INVALID_PARAMS)
