"""Input schemas are checked in bounded time or refused."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.schemas import Schema, Schemas, UnusableSchema
from tests.requirements import requirement

NESTED: Any = {}


for _ in range(24):
    NESTED = {"a": NESTED}


UNION = {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["b"]} for _ in range(3)]}
PATTERN = {"properties": {"a": {"pattern": "(a+)+$"}}}
LOOKING = {"properties": {"a": {"pattern": "(?=a)(a+)+$"}}}


@requirement("wall.decoded")
@pytest.mark.parametrize(
    ("schema", "arguments", "is_good"),
    [
        (UNION, NESTED, False),
        (PATTERN, {"a": "a" * 1_000_000 + "!"}, False),
        (LOOKING, {"a": "a" * 1_000_000 + "!"}, True),
        ({"items": {"not": {"anyOf": [{"const": n} for n in range(300)]}}}, [-1] * 100_000, False),
        ({"properties": {f"p{n}": {"pattern": "x$"} for n in range(60)}}, {"p0": "x" * 3_000_000}, False),
        ({"minProperties": 1}, json.loads('{"a":' * 900 + "1" + "}" * 900), True),
        ({"properties": {"a": {"$ref": "#"}}}, json.loads('{"a":' * 900 + "1" + "}" * 900), None),
    ],
    ids=["union", "pattern", "look-around", "product", "scanned", "deep", "deep-recursive"],
)
def test_a_check_takes_a_bounded_time(schema: Any, arguments: Any, is_good: bool | None) -> None:
    raw = json.dumps(arguments).encode()
    checker = Schemas().checker(_schema(schema))
    began = time.process_time()
    problem = checker.problem(arguments, raw)
    assert time.process_time() - began < 1
    assert is_good is None or (problem is None) is is_good
    assert problem is None or len(problem[0]) + len(problem[1]) <= 600


def _schema(listed: Any) -> Schema:
    schema = Schema.of(listed)
    assert schema is not None
    return schema


@requirement("wall.decoded")
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{n}": {"pattern": f"x{n}"} for n in range(65)}},
        {"pattern": "((a{1,100}){1,100}){1,100}"},
        {"pattern": "("},
        {"description": "x" * (129 << 10)},
        {"$defs": {"a": {"$ref": "#/$defs/b"}}, "$ref": "#/$defs/a"},
        {"patternProperties": {"^(?!x)": {}}},
        ["no", "object"],
        json.loads('{"not":' * 200 + "{}" + "}" * 200),
        {"x": {"$id": "x", "y": json.loads('{"a":' * 600 + "1" + "}" * 600)}},
    ],
    ids=["patterns", "pattern-size", "pattern-syntax", "size", "dangling", "look-around-names", "list", "depth", "ids"],
)
def test_a_schema_beyond_its_bounds_is_not_used(schema: Any) -> None:
    began = time.process_time()
    with pytest.raises(UnusableSchema):
        Schemas().checker(_schema(schema))
    assert time.process_time() - began < 1


def test_identifiers_in_one_another_are_looked_at_once() -> None:
    once = _compile_s(ids=1)
    assert _compile_s(ids=120) < 10 * once  # 120 times as long if each of them were searched anew


def _compile_s(*, ids: int) -> float:
    """Seconds of processor time to compile a large schema inside that many identifiers."""
    schema: Any = {"enum": [[]] * 40_000}
    for _ in range(ids):
        schema = {"$id": "a", "a": schema}
    listed = _schema({"a": schema})
    began = time.process_time()
    assert Schemas().checker(listed).problem({}, b"{}") is None
    return time.process_time() - began


KEYWORDS = (
    "type properties items allOf anyOf not $ref $defs enum const pattern $id $anchor $dynamicRef required".split()
)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.sampled_from(["#", "#/a", "object"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=4)
    ),
    max_leaves=30,
)


@requirement("wall.decoded")
@settings(max_examples=300, deadline=2_000)
@given(schema=VALUES, arguments=VALUES)
def test_any_schema_is_used_or_refused_and_any_arguments_are_judged(schema: Any, arguments: Any) -> None:
    listed = Schema.of(schema)
    if listed is None:
        return
    try:
        checker = Schemas().checker(listed)
    except UnusableSchema as fault:
        assert str(fault)
        return
    checker.problem(arguments, json.dumps(arguments).encode())
