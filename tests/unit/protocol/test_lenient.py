"""What a lenient check of arguments takes beside what the schema says."""

import copy
import json
from typing import Any

import jsonschema_rs
import pytest

from gateway.protocol.lenient import read_leniently
from tests.requirements import requirement
from tests.unit.protocol.parts import checker_of

INTEGER = {"type": "integer"}
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
