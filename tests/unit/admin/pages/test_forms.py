"""Forms from the input schemas of tools: each field sends JSON of the declared type, or says why not."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.pages.forms import JSON_CONTROL, PREFIX, Form, FormFaults, arguments_in, form_of
from tests.requirements import requirement

pytestmark = requirement("ops.try-tools")

NAMES = st.text('aZ09_-.$<"&=;ä語', min_size=1, max_size=12)
STRINGS = st.text('aZ0 9.-+eE{}[]\\"\n\tä語', max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=8,
)
TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
SIMPLE = st.sampled_from(TYPES).map(lambda kind: {"type": kind})
PARTS = st.one_of(
    SIMPLE,
    st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True).map(lambda kinds: {"type": kinds}),
    SIMPLE.map(lambda part: {"anyOf": [part, {"type": "null"}]}),
    st.sampled_from(TYPES).map(lambda kind: {"$ref": f"#/$defs/{kind}"}),
    st.sampled_from(TYPES).map(lambda kind: {"allOf": [{"$ref": f"#/$defs/{kind}"}], "title": "One"}),
    st.lists(JSON, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    JSON.map(lambda value: {"const": value}),
    st.just({}),
)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, PARTS, max_size=5))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    definitions = {kind: {"type": kind} for kind in TYPES}
    return {"type": "object", "properties": properties, "required": required, "$defs": definitions}


TEXTS = st.one_of(
    st.sampled_from(["", "1", "-3", "2.5", "1e3", ".5", "1_000", "true", "false", "null", "[]", "{}", "NaN", "\u0661"]),
    STRINGS,
    JSON.map(json.dumps),
    st.integers().map(str),
)


@given(schemas(), st.data())
def test_whatever_stands_in_the_controls_is_sent_as_the_declared_types_or_refused(
    schema: dict[str, Any], data: st.DataObject
) -> None:
    form = form_of(schema)
    assert form.fields is not None
    filled = {}
    for field in form.fields:
        choices = st.sampled_from(field.choices) | TEXTS if field.choices else TEXTS
        filled[field.control] = data.draw(choices)
    try:
        arguments = arguments_in(form, filled)
    except FormFaults as error:
        assert error.faults and error.faults.keys() <= filled.keys()
        return
    sent = json.loads(json.dumps(arguments, allow_nan=False))
    assert sent == arguments
    assert jsonschema_rs.is_valid(schema, sent), sent


@given(schemas(), st.data())
def test_every_value_of_a_schema_can_be_entered(schema: dict[str, Any], data: st.DataObject) -> None:
    form = form_of(schema)
    filled, expected = {}, {}
    for field in form.fields or ():
        if field.kind == "choice":
            filled[field.control] = data.draw(st.sampled_from(field.choices))
            expected[field.name] = json.loads(filled[field.control])
            continue
        if field.types == {"null"}:
            continue
        value = data.draw(_values(field.types))
        plain = field.kind in ("text", "password")
        filled[field.control] = value if plain else json.dumps(value)
        expected[field.name] = value
    assert {
        name: value for name, value in arguments_in(form, filled).items() if value is not None or name in expected
    } == expected


def _values(kinds: frozenset[str]) -> st.SearchStrategy[Any]:
    """Values of these types, but for those that an empty control means."""
    each = {
        "string": STRINGS.filter(bool),
        "integer": st.integers(),
        "number": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        "boolean": st.booleans(),
        "array": st.lists(JSON, max_size=3),
        "object": st.dictionaries(STRINGS, JSON, max_size=3),
    }
    return st.one_of([values for kind, values in each.items() if kind in kinds or not kinds])


def a_form(**properties: Any) -> Form:
    return form_of({"type": "object", "properties": properties})


def test_each_type_has_its_control_and_required_ones_come_first() -> None:
    form = form_of(
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where"},
                "key": {"type": "string", "format": "password"},
                "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 3},
                "unit": {"enum": ["C", "F", None]},
                "exact": {"type": ["boolean", "null"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            },
            "required": ["days"],
        }
    )
    assert form.fields is not None
    assert [(field.name, field.kind) for field in form.fields] == [
        *(("days", "integer"), ("city", "text"), ("key", "password"), ("unit", "choice"), ("exact", "boolean")),
        *(("tags", "json"), ("either", "json")),
    ]
    [days, *_] = form.fields
    assert (days.value, days.minimum, days.maximum) == ("3", "1", "7")
    assert days.hint == "integer · from 1 · up to 7 · default: 3"
    assert json.loads(form.skeleton) == {"days": 3}


def test_an_empty_control_leaves_the_argument_out_unless_it_is_required() -> None:
    types = {"a": "string", "b": "string", "c": ["integer", "null"], "d": "integer"}
    properties = {name: {"type": kind} for name, kind in types.items()}
    form = form_of({"type": "object", "properties": properties, "required": ["b", "c"]})
    empty = {f"{PREFIX}{name}": "" for name in "abcd"}
    assert arguments_in(form, empty) == {"b": "", "c": None}


@pytest.mark.parametrize(
    "schema",
    [
        None,
        True,
        {"type": "string"},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}},
        {"type": "object", "properties": {"line\nbreak": {"type": "string"}}},
        {"type": "object", "properties": {"\ud800": {"type": "string"}}},
        {"type": "object", "properties": {"": {"type": "string"}}},
        {"type": "object", "properties": {}, "required": ["nowhere"]},
        {"type": "object", "properties": {str(number): {} for number in range(500)}},
        {"type": "object", "properties": []},
    ],
    ids=str,
)
def test_a_schema_that_makes_no_form_takes_json(schema: Any) -> None:
    form = form_of(schema)
    assert form.fields is None
    assert isinstance(json.loads(form.skeleton), dict)
    assert arguments_in(form, {JSON_CONTROL: '{"a": [1]}'}) == {"a": [1]}


def test_references_that_lead_in_circles_or_nowhere_take_json() -> None:
    form = a_form(a={"$ref": "#/properties/a"}, b={"$ref": "#/no/where"}, c={"$ref": "http://x/y"})
    assert [field.kind for field in form.fields or ()] == ["json"] * 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "object"),
        ("{", "line 1"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1e999}', "JSON"),
        ('{"a": "\\ud800"}', "half a character"),
        ("[" * 100_000, "nested"),
    ],
    ids=["array", "cut off", "NaN", "infinite", "surrogate", "deep"],
)
def test_json_that_cannot_be_sent_is_refused(text: str, why: str) -> None:
    with pytest.raises(FormFaults) as error:
        arguments_in(a_form(), {JSON_CONTROL: text})
    assert why in str(error.value)


def test_a_control_that_the_tool_does_not_have_any_more_is_named() -> None:
    with pytest.raises(FormFaults, match="gone: the tool has no such argument now"):
        arguments_in(a_form(here={"type": "string"}), {f"{PREFIX}gone": "x"})


def test_lines_are_those_that_were_typed() -> None:
    assert arguments_in(a_form(code={"type": "string"}), {f"{PREFIX}code": "a\r\nb"}) == {"code": "a\nb"}
