"""Forms from the input schemas of tools: each field sends JSON of the declared type, or says why not."""

import base64
import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.pages.schema_forms import JSON_CONTROL, PREFIX, Form, FormFaults, arguments_in, form_of
from gateway.admin.pages.tool import MOST_CHARS, MOST_PARTS, parts_of
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
    filled = {
        field.control: data.draw(st.sampled_from(field.choices) | TEXTS if field.choices else TEXTS)
        for field in form.fields
    }
    try:
        arguments = arguments_in(form, filled)
    except FormFaults as error:
        assert error.faults and error.faults.keys() <= filled.keys()
        return
    sent = json.loads(json.dumps(arguments, allow_nan=False))
    assert sent == arguments and jsonschema_rs.is_valid(schema, sent), sent


def a_form(**properties: Any) -> Form:
    return form_of({"type": "object", "properties": properties})


def test_each_type_has_its_control_and_required_ones_come_first() -> None:
    properties = {
        "city": {"type": "string", "description": "Where"},
        "key": {"type": "string", "format": "password"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 3},
        "unit": {"enum": ["C", "F", None]},
        "exact": {"type": ["boolean", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    }
    form = form_of({"type": "object", "properties": properties, "required": ["days"]})
    assert form.fields is not None
    assert {field.name: field.kind for field in form.fields} == {
        **{"days": "integer", "city": "text", "key": "password", "unit": "choice", "exact": "boolean"},
        **{"tags": "json", "either": "json"},
    }
    [days, *_] = form.fields
    assert (days.name, days.value, days.minimum, days.maximum) == ("days", "3", "1", "7")
    assert days.hint == "integer · from 1 · up to 7 · default: 3" and json.loads(form.skeleton) == {"days": 3}
    entered = {"city": "A\r\nB", "days": "2", "unit": '"F"', "exact": "false", "tags": '["x"]', "either": "7"}
    assert arguments_in(form, {f"{PREFIX}{name}": text for name, text in entered.items()}) == {
        **{"city": "A\nB", "days": 2, "unit": "F", "exact": False, "tags": ["x"], "either": 7},
    }
    for text in ("true", "2.5"):
        with pytest.raises(FormFaults, match="must be JSON: array or integer"):
            arguments_in(a_form(two={"type": ["array", "integer"]}), {f"{PREFIX}two": text})


def test_an_empty_control_leaves_the_argument_out_unless_it_is_required() -> None:
    types = {"a": "string", "b": "string", "c": ["integer", "null"], "d": "integer"}
    properties = {name: {"type": kind} for name, kind in types.items()}
    form = form_of({"type": "object", "properties": properties, "required": ["b", "c"]})
    empty = {f"{PREFIX}{name}": "" for name in "abcd"}
    assert arguments_in(form, empty) == {"b": "", "c": None}


@pytest.mark.parametrize(
    "schema",
    [
        *(None, True, {"type": "string"}, {"type": "object", "properties": []}),
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}},
        *({"type": "object", "properties": {name: {"type": "string"}}} for name in ("line\nbreak", "\ud800", "")),
        {"type": "object", "properties": {}, "required": ["nowhere"]},
        {"type": "object", "properties": {str(number): {} for number in range(500)}},
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
        ('{"a": "\\ud800"}', "unpaired surrogate"),
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
        arguments_in(a_form(), {f"{PREFIX}gone": "x"})


# -- What a page shows of results of tools: nothing of a server steers the page, and everything is cut


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()


def image(kind: str, data: str) -> dict[str, Any]:
    return {"content": [{"type": "image", "mimeType": kind, "data": data}]}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        *(
            (kind, PNG)
            for kind in ("image/svg+xml", "text/html", "image/PNG;x=", 'image/png" onerror="x', "image/jpeg")
        ),
        *(("image/png", data) for data in ("<script>", PNG + '" onload="x', "ä")),
    ],
)
def test_an_image_of_a_known_type_is_shown_and_no_other_has_a_source(kind: str, data: str) -> None:
    [part] = parts_of(image("image/png", PNG))
    assert (part.kind, part.source) == ("image", f"data:image/png;base64,{PNG}")
    [part] = parts_of(image(kind, data))
    assert part.kind == "text" and part.source == "" and part.note


def test_texts_are_cut_and_their_controls_are_visible() -> None:
    [part] = parts_of({"content": [{"type": "text", "text": "\x1b[2J\u202e\n\t" + "x" * 2 * MOST_CHARS}]})
    assert part.text.startswith("\\x1b[2J\\u202e\n\tx")
    assert len(part.text) < MOST_CHARS + 100 and "The first" in part.note


def test_parts_are_counted_and_what_they_are_beside_is_told_apart() -> None:
    result = {"content": [{"type": "text", "text": "x"}] * (MOST_PARTS + 3), "structuredContent": {"a": 1}, "_meta": {}}
    *texts, more, structured, beside = parts_of(result)
    assert len(texts) == MOST_PARTS and more.note == "3 more parts are not shown."
    assert (structured.title, structured.is_aside) == ("Structured content", False)
    assert (beside.title, beside.is_aside) == ("Other fields of the result", True)


@pytest.mark.parametrize("result", [None, 7, [], {"content": 5}, {"content": [None, 5, {"type": "image"}]}], ids=str)
def test_what_is_no_result_is_shown_as_json(result: Any) -> None:
    assert all(part.kind == "json" for part in parts_of(result))


def test_what_is_nested_without_end_is_told() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    [part] = parts_of({"content": [{"type": "odd", "deep": deep}]})
    assert part.note == "It is nested too deeply to be shown."
