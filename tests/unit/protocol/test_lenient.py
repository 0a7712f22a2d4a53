"""What a lenient check of arguments takes beside what the schema says."""

import json
from typing import Any

import jsonschema_rs
import pytest

from gateway.protocol.lenient import read_leniently
from tests.requirements import requirement
from tests.unit.protocol.parts import checker_of


@requirement("pol.lenient")
@pytest.mark.parametrize(
    ("schema", "arguments", "is_good"),
    [
        ({"type": "integer"}, "3", True),
        ({"type": "integer"}, "3.0", True),
        *(({"type": "integer"}, wrong, False) for wrong in ("three", "3.5", "[3]", '"3"', "", "1e400")),
        ({"type": "integer", "maximum": 2}, "3", False),
        ({"type": "number"}, "-2.5e3", True),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "yes", False),
        ({"type": "boolean"}, 1, False),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", True),
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, "3", True),
        ({"type": "string"}, 3, False),
        ({"type": "string"}, None, True),
        ({"type": "string", "enum": ["a"]}, "3", False),
        ({"type": "array", "items": {"type": "integer"}}, ["1", "2"], True),
        ({"type": "array", "items": {"type": "integer"}}, ["1", None], False),
        ({"type": "array"}, "[1]", False),
        ({"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}, {"b": None}, False),
        ({"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}, {"b": "false"}, True),
        ({"type": "integer"}, "\ud800", False),
    ],
)
def test_a_lenient_check_takes_what_servers_commonly_take(schema: Any, arguments: Any, is_good: bool) -> None:
    checker = checker_of({"type": "object", "properties": {"a": schema}})
    given = {"a": arguments}
    raw = json.dumps(given).encode("utf-8", "replace").replace(b"\\ud800", b"?")
    assert (checker.problem(given, raw, lenient=True) is None) is is_good
    assert given == {"a": arguments}, "the arguments of the call stay as they are"
    if not is_good:
        assert checker.problem(given, raw) is not None


def test_only_an_error_about_the_type_has_another_reading() -> None:
    validator = jsonschema_rs.validator_for({"properties": {"a": {"type": "integer", "minLength": 5}}})
    arguments: Any = {"a": "3"}
    kinds = {type(error.kind).__name__.rpartition(".")[2]: error.kind for error in validator.iter_errors(arguments)}
    assert not read_leniently(arguments, ["a"], kinds["MinLength"]) and arguments == {"a": "3"}
    assert read_leniently(arguments, ["a"], kinds["Type"]) and arguments == {"a": 3}
    assert not read_leniently(arguments, ["a"], kinds["Type"]), "it is read already"
    gone: list[list[str | int]] = [[], ["b"], ["a", "b"], ["a", 0]]
    assert not any(read_leniently(arguments, path, kinds["Type"]) for path in gone)
