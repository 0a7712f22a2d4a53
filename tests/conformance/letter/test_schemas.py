"""The dialects of JSON Schema that arguments are checked in."""

from pathlib import Path

import pytest

from gateway.protocol.schemas import Schema, Schemas, UnusableSchema
from tests.requirements import requirement
from transports.jsonrpc import encode

pytestmark = requirement("spec.letter")

DIALECTS = {
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft 4": "http://json-schema.org/draft-04/schema#",
    "draft 6": "http://json-schema.org/draft-06/schema#",
    "draft 7": "http://json-schema.org/draft-07/schema#",
}


def problem(schema: object, arguments: object) -> object:
    read = Schema.of(schema)
    assert read is not None
    return Schemas().checker(read).problem(arguments, encode(arguments))


def test_a_schema_without_a_dialect_is_of_2020_12() -> None:
    """`prefixItems` came with it; before, an array of schemas under `items` had that meaning."""
    schema = {"type": "object", "properties": {"a": {"prefixItems": [{"type": "integer"}]}}}
    assert problem(schema, {"a": [1]}) is None and problem(schema, {"a": ["x"]}) is not None


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_a_schema_is_checked_in_the_dialect_that_it_names(name: str) -> None:
    schema = {"$schema": DIALECTS[name], "type": "object", "properties": {"a": {"items": [{"type": "integer"}]}}}
    assert problem(schema, {"a": [1]}) is None and problem(schema, {"a": ["x"]}) is not None


def test_another_dialect_is_refused_and_the_document_names_those_that_are_not() -> None:
    with pytest.raises(UnusableSchema):
        problem({"$schema": "https://example.com/dialect", "type": "object"}, {})
    document = (Path(__file__).parents[3] / "docs/policy.md").read_text(encoding="utf-8")
    assert all(name in document for name in ("2020-12", *DIALECTS))
