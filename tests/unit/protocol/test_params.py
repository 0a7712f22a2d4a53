"""Single values out of the params of a message."""

import msgspec
import pytest

from gateway.protocol.params import meta_of, text_of
from tests.unit.protocol.parts import raw
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, InvalidMessage


def test_meta_is_an_object_and_empty_where_there_is_none() -> None:
    assert meta_of({}) == meta_of(raw(_meta=None)) == {}
    assert meta_of(raw(_meta={"a": [1]})) == raw(a=[1])
    for meta in (b"7", b"[]", b'"text"'):
        with pytest.raises(InvalidMessage, match="_meta"):
            meta_of({"_meta": msgspec.Raw(meta)})


def test_a_text_is_decoded_and_anything_else_is_refused_by_its_name() -> None:
    assert text_of({"name": msgspec.Raw(b'"a\\u00fc"')}, "name") == "a\u00fc"
    for params in ({}, raw(name=7), raw(name=None)):
        with pytest.raises(Refused, match=r"params\.name must be a string") as refused:
            text_of(params, "name")
        assert (refused.value.status, refused.value.code) == (200, INVALID_PARAMS)
