"""Input schemas are checked in bounded time or refused."""

import copy
import json
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol import input_schemas
from gateway.protocol.input_schemas import Schema, Schemas, UnusableSchema, read_leniently
from tests.requirements import requirement
from tests.unit.protocol.parts import checker_of

pytestmark = requirement("wall.decoded")

INTEGER = {"type": "integer"}
NESTED = json.loads('{"a":' * 24 + "{}" + "}" * 24)
DEEP = json.loads('{"a":' * 900 + "1" + "}" * 900)
UNION = {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["b"]} for _ in range(3)]}
PATTERN = {"properties": {"a": {"pattern": "(a+)+$"}}}
SCANNED = {"properties": {"a": {"pattern": "(a*){400}b"}}}
REFERRED = {
    "$defs": {"a": {"pattern": "^([ab]*a[ab]{50})$"}},
    "properties": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 900}},
}
TRIED: Any = {"pattern": "(a*){400}b"}
for _ in range(40):
    TRIED = {"oneOf": [TRIED]}
UNEVALUATED: Any = {"type": "string"}
for _ in range(16):
    UNEVALUATED = {"anyOf": [{"unevaluatedProperties": UNEVALUATED}], "unevaluatedProperties": False}
LARGE = {"properties": {"a": {"pattern": "(a?){3000}b"}}}
LOOKING = {"properties": {"a": {"pattern": "(?=a)(a+)+$"}}}


@pytest.mark.parametrize(
    ("schema", "arguments", "is_good"),
    [
        (UNION, NESTED, False),
        (PATTERN, {"a": "a" * 1_000_000 + "!"}, False),
        (LOOKING, {"a": "a" * 1_000_000 + "!"}, True),
        ({"items": {"not": {"anyOf": [{"const": n} for n in range(300)]}}}, [-1] * 100_000, False),
        ({"properties": {f"p{n}": {"pattern": "x$"} for n in range(60)}}, {"p0": "x" * 3_000_000}, False),
        (SCANNED, {"a": "a" * 300_000}, False),
        (REFERRED, {"a": "ab" * 150_000}, False),
        ({"properties": {"a": {"pattern": "(?:a?){600}b"}, "b": INTEGER}}, {"a": "a" * 24_000, "b": "3"}, False),
        ({"properties": {"a": TRIED}}, {"a": "a" * 2_000}, False),
        (LARGE, {"a": "a" * 300_000}, True),
        ({"minProperties": 1}, DEEP, True),
        ({"properties": {"a": {"$ref": "#"}}}, DEEP, None),
    ],
    ids="union pattern look-around product scanned slow referred reported tried large deep deep-recursive".split(),
)
@pytest.mark.parametrize("lenient", [False, True])
def test_a_check_takes_a_bounded_time(schema: Any, arguments: Any, is_good: bool | None, *, lenient: bool) -> None:
    raw = json.dumps(arguments).encode()
    checker = checker_of(schema)
    began = time.process_time()
    problem = checker.problem(arguments, raw, lenient=lenient)
    assert time.process_time() - began < 1
    assert is_good is None or (problem is None) is is_good
    assert problem is None or len(problem[0]) + len(problem[1]) <= 600


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{n}": {"pattern": f"x{n}"} for n in range(65)}},
        {"pattern": "^(((a{1,100}){1,100}){1,100}){1,100}$"},
        {"patternProperties": {"(a?){3000}": {}}},
        {"pattern": "("},
        {"description": "x" * (129 << 10)},
        {"$defs": {"a": {"$ref": "#/$defs/b"}}, "$ref": "#/$defs/a"},
        {"patternProperties": {"^(?!x)": {}}},
        ["no", "object"],
        json.loads('{"not":' * 200 + "{}" + "}" * 200),
        {"x": {"$id": "x", "y": json.loads('{"a":' * 600 + "1" + "}" * 600)}},
        {"properties": {"a": {"$id": "x", "$ref": "#"}}},
        {"properties": {"a": {"default": {"pattern": "(a*){400}b"}, "$ref": "#/properties/a/default"}}},
        {"$defs": {"pattern": "(a*){400}b"}, "$ref": "#/$defs"},
        UNEVALUATED,
    ],
    ids=(
        "patterns pattern-size name-size syntax size dangling look-around-names list depth ids refers-from-id "
        "refers-to-data refers-to-names unevaluated"
    ).split(),
)
def test_a_schema_beyond_its_bounds_is_not_used(schema: Any) -> None:
    began = time.process_time()
    with pytest.raises(UnusableSchema):
        checker_of(schema)
    assert time.process_time() - began < 1


def test_identifiers_in_one_another_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    schema: Any = {"enum": [[]] * 40_000}
    for _ in range(120):
        schema = {"$id": "a", "a": schema}
    looked, look = 0, input_schemas._Weight._look

    def counted(*parts: Any) -> bool:
        nonlocal looked
        looked += 1
        return look(*parts)

    monkeypatch.setattr(input_schemas._Weight, "_look", counted)
    assert checker_of({"a": schema}).problem({}, b"{}") is None
    assert looked == 1 + 120 + 2 + 40_000  # each object and list of the schema once


@pytest.mark.parametrize("keyword", ["default", "examples", "const", "enum"])
def test_keywords_in_data_mean_nothing(keyword: str) -> None:
    data = {"pattern": "(?=a)", "patternProperties": {"*.py": {}}, "$anchor": "b", "$id": "x", "a": {"$ref": "none"}}
    schema = {keyword: data if keyword in ("default", "const") else [data]}
    checker = checker_of({"properties": {"a": schema, "b": {"$anchor": "b", "type": "integer"}, "c": {"$ref": "#b"}}})
    assert not checker.unchecked and checker.problem({"a": data, "c": 1}, b"{}") is None
    assert checker.problem({"c": "x"}, b"{}") is not None
    assert keyword not in ("const", "enum") or checker.problem({"a": {}}, b"{}") is not None
    for outer in ("properties", "$defs"):
        assert checker_of({outer: {keyword: {"pattern": "(?=a)"}}}).unchecked, "it is only called like the keyword"


KEYWORDS = "a type properties items allOf anyOf not $ref $defs enum const pattern $id $anchor $dynamicRef required"
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.sampled_from(["#", "#/a", "object"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYWORDS.split()), inner, max_size=4),
    max_leaves=30,
)


@settings(deadline=2_000)
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


@requirement("pol.lenient")
def test_a_lenient_check_of_many_faults_takes_a_bounded_time() -> None:
    checker = checker_of({"properties": {"a": {"items": {"type": "integer"}}}})
    began = time.process_time()
    for wrong in ({"a": ["1"] * 100_000}, {"a": ["1"] * 10_000}, {"a": [{"b": "x" * 100}] * 10_000}):
        assert checker.problem(wrong, json.dumps(wrong).encode(), lenient=True) is not None
    assert time.process_time() - began < 1


BOOLEAN = {"type": "boolean"}
NULL = {"type": "null"}


@requirement("pol.lenient")
@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (INTEGER, ["3", "3.0"], ["three", "3.5", "[3]", '"3"', "", "1e400", "\ud800"]),
        (INTEGER | {"maximum": 2}, [], ["3"]),
        ({"type": "number"}, ["-2.5e3"], []),
        (BOOLEAN, ["True"], ["yes", 1]),
        ({"anyOf": [INTEGER, NULL]}, ["3"], []),
        ({"oneOf": [INTEGER, NULL]}, ["3"], []),
        ({"type": "string"}, [None], [3]),
        ({"type": "string", "enum": ["a"]}, [], ["3"]),
        ({"type": "array", "items": INTEGER}, [["1", "2"]], [["1", None]]),
        ({"type": "array"}, [], ["[1]"]),
        ({"type": "object", "properties": {"b": BOOLEAN}, "required": ["b"]}, [{"b": "false"}], [{"b": None}]),
    ],
    ids=str,
)
def test_a_lenient_check_takes_what_servers_commonly_take(schema: Any, taken: list[Any], refused: list[Any]) -> None:
    checker = checker_of({"type": "object", "properties": {"a": schema}})
    for value in taken + refused:
        given = {"a": copy.deepcopy(value)}
        raw = json.dumps(given).encode("utf-8", "replace").replace(b"\\ud800", b"?")
        assert (checker.problem(given, raw, lenient=True) is None) is (value in taken), value
        assert given == {"a": value}, "the arguments of the call stay as they are"
        assert value in taken or checker.problem(given, raw) is not None, value


def test_only_an_error_about_the_type_has_another_reading() -> None:
    validator = jsonschema_rs.validator_for({"properties": {"a": {"type": "integer", "minLength": 5}}})
    arguments: Any = {"a": "3"}
    kinds = {type(error.kind).__name__.rpartition(".")[2]: error.kind for error in validator.iter_errors(arguments)}
    assert not read_leniently(arguments, ["a"], kinds["MinLength"]) and arguments == {"a": "3"}
    assert read_leniently(arguments, ["a"], kinds["Type"]) and arguments == {"a": 3}
    assert not read_leniently(arguments, ["a"], kinds["Type"]), "it is read already"
    gone: list[list[str | int]] = [[], ["b"], ["a", "b"], ["a", 0]]
    assert not any(read_leniently(arguments, path, kinds["Type"]) for path in gone)
