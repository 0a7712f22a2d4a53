"""`transports.mirrored_headers`: the rules of the SDK, compared with the SDK's own functions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound as sdk

from tests.requirements import requirement
from transports.mirrored_headers import (
    MAX_HEADER_CHARS,
    MAX_HEADERS,
    argument_headers,
    decode_value,
    disagreement,
    encode_value,
    param_headers,
    unknown_headers,
)

pytestmark = requirement("spec.modern")

SCHEMA = {
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "size": {"properties": {"width": {"type": "integer", "x-mcp-header": "Width"}}},
    }
}
NAMES = st.sampled_from(["a", "b", "properties", "items"])
TOKENS = st.sampled_from(["A", "a", "B-1", "", "a b", "ä"]) | st.just(1) | st.none()
TYPES = st.sampled_from(["string", "integer", "boolean", "number", "object"]) | st.just(["string"])
VALUES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=3) | st.just([1])
TEXTS = st.sampled_from(["1", "1.0", "1.5", "-1", "true", "false", "", " ", "=?base64?YQ==?=", "=?base64?YR==?=", "ä"])


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES,
            "x-mcp-header": TOKENS,
            "properties": st.dictionaries(NAMES, inner, max_size=3) | st.just([]),
            "items": inner,
            "allOf": st.lists(inner, max_size=2) | st.just(1),
            "$defs": st.dictionaries(NAMES, inner, max_size=1),
            "enum": st.lists(inner, max_size=1),
        },
    )


SCHEMAS = st.recursive(st.booleans() | schemas(st.none()), schemas, max_leaves=8)
ARGUMENTS = st.dictionaries(NAMES, st.recursive(VALUES, lambda inner: st.dictionaries(NAMES, inner), max_leaves=4))
HEADERS = st.dictionaries(st.sampled_from(["mcp-param-a", "mcp-param-b-1", "mcp-param-", "other"]), TEXTS)


@given(text=st.text(st.characters(exclude_categories=["Cs"])) | TEXTS)
def test_a_value_is_coded_as_the_sdk_codes_it_and_is_read_back(text: str) -> None:
    assert encode_value(text) == sdk.encode_header_value(text)
    assert decode_value(encode_value(text)) == text


@given(value=st.from_regex(r"=\?base64\?[A-Za-z0-9+/=]{0,8}\?=", fullmatch=True) | TEXTS)
def test_a_value_is_read_as_the_sdk_reads_it(value: str) -> None:
    assert decode_value(value) == sdk.decode_header_value(value)


@given(schema=SCHEMAS, arguments=ARGUMENTS, headers=HEADERS)
def test_headers_and_arguments_are_compared_as_the_sdk_compares_them(
    schema: Any, arguments: dict[str, Any], headers: dict[str, str]
) -> None:
    rejection = sdk.validate_mcp_param_headers(schema, arguments, headers)
    assert disagreement(schema, arguments, headers) == (None if rejection is None else rejection.message)


@given(schema=SCHEMAS, arguments=ARGUMENTS)
def test_the_headers_of_a_call_are_those_that_the_sdk_sends(schema: Any, arguments: dict[str, Any]) -> None:
    assert argument_headers(schema, arguments) == sdk.mcp_param_headers(sdk.x_mcp_header_map(schema), arguments)


@pytest.mark.parametrize(
    ("arguments", "headers", "why"),
    [
        *(
            ({"region": "eu"}, {"mcp-param-region": "eu"}, None),
            ({"size": {"width": 42}}, {"mcp-param-width": "42.0"}, None),
        ),
        *((arguments, {}, None) for arguments in ({}, {"region": None}, {"region": ["eu"]})),
        *(({"region": "eu"}, {}, "is missing"), ({}, {"mcp-param-region": "eu"}, "is absent")),
        *(({"region": other}, {"mcp-param-region": "eu"}, "does not match") for other in (["eu"], "us")),
        ({"size": {"width": 42}}, {"mcp-param-width": "42.5"}, "'size.width' argument"),
        ({"size": {"width": True}}, {"mcp-param-width": "1"}, "does not match"),
        ({"region": "eu"}, {"mcp-param-region": "=?base64?!?="}, "malformed"),
    ],
)
def test_a_header_agrees_with_its_argument(arguments: Any, headers: dict[str, str], why: str | None) -> None:
    found = disagreement(SCHEMA, arguments, headers)
    assert found is None if why is None else found is not None and why in found


def test_no_depth_of_a_schema_and_no_value_is_too_much() -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"items": schema}
    assert disagreement(schema, {}, {}) is None and argument_headers(schema, {}) == {}
    assert argument_headers(SCHEMA, {"region": 10**5_000}) == {}, "too long for Python to be a text"
    assert disagreement(SCHEMA, {"size": {"width": 42}}, {"mcp-param-width": "9" * 5_000}) is not None
    for nobodys in (None, "=?base64?ä?=", "=?base64?/w==?="):
        assert decode_value(nobodys) is None


@requirement("ext.relay")
def test_headers_that_nobody_here_knows_are_those_with_the_prefix_that_no_schema_annotates() -> None:
    headers = {"mcp-param-region": "a", "mcp-param-tenant": "b", "mcp-name": "c", "cookie": "d", "x-mcp-param-x": "e"}
    found = param_headers(headers)
    assert found == {"mcp-param-region": "a", "mcp-param-tenant": "b"}
    assert unknown_headers(SCHEMA, found) == {"mcp-param-tenant": "b"} and unknown_headers(None, found) == found
    assert param_headers({"mcp-name": "x" * MAX_HEADER_CHARS}) == {}


@requirement("ext.relay")
@pytest.mark.parametrize(
    "headers",
    [
        {f"mcp-param-{number}": "" for number in range(MAX_HEADERS + 1)},
        {"mcp-param-a": "x" * MAX_HEADER_CHARS},
        {"mcp-param-a": "\u00e9"},
        {"mcp-param-a": "a\tb"},
    ],
    ids=["many", "large", "other characters", "control characters"],
)
def test_headers_for_servers_are_bounded(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"(?i)mcp-param-"):
        param_headers(headers)
