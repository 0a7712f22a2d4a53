"""The arguments that a filled form means. Pure.

Whether they fit the whole schema is decided where calls are checked. Here they only get the declared types.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from gateway.admin.forms import JSON_CONTROL, PREFIX, Field, Form

__all__ = ["FormFaults", "arguments_in"]

_EXACT: Final = 2**53
_MOST_DIGITS: Final = 300
_NUMERALS: Final = frozenset("0123456789+-.eE")
_PYTHON: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
    "null": type(None),
}


class FormFaults(ValueError):
    """Controls that hold no value of their type: what is wrong with each, by the name of the control."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name.removeprefix(PREFIX)}: {why}" for name, why in faults.items()))
        self.faults = faults


def arguments_in(form: Form, given: Mapping[str, str]) -> dict[str, Any]:
    """The arguments in a filled form. `given` are the texts of the controls, by name.

    An empty control means that its argument is left out. That of a required argument means an empty text, or null, if
    the argument can be that.

    Raises:
        FormFaults: a control holds no value of its type, or there is no such control.
    """
    if JSON_CONTROL in given or form.fields is None:
        return _all_in_json(given.get(JSON_CONTROL, ""))
    known = {field.control: field for field in form.fields}
    faults = {
        name: "the tool has no such argument now" for name in given if name.startswith(PREFIX) and name not in known
    }
    arguments: dict[str, Any] = {}
    for control, field in known.items():
        text = given.get(control, "")
        try:
            if text or field.is_required:
                arguments[field.name] = _value(field, text)
        except ValueError as error:
            faults[control] = str(error)
    if faults:
        raise FormFaults(faults)
    return arguments


def _value(field: Field, text: str) -> Any:
    """The value in a control. Raises `ValueError`: it is none of its type."""
    if not text and "null" in field.types:
        return None
    if field.kind in ("text", "password"):
        return text.replace("\r\n", "\n")  # browsers send the lines of a text like this
    if not text:
        raise ValueError("is required")
    match field.kind:
        case "integer":
            return _whole(text.strip())
        case "number":
            return _number(text.strip())
        case "boolean" | "choice":
            choices = field.choices or ("true", "false")
            if text not in choices:
                raise ValueError("is not one of the choices")
            return json.loads(text)
    value = _read(text)
    if field.types and not any(_is_of(value, kind) for kind in field.types):
        raise ValueError(f"must be JSON: {' or '.join(sorted(field.types))}")
    return value


def _all_in_json(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        value = _read(text)
    except ValueError as error:
        raise FormFaults({JSON_CONTROL: str(error)}) from None
    if not isinstance(value, dict):
        raise FormFaults({JSON_CONTROL: "must be a JSON object"})
    return value


def _whole(text: str) -> int:
    number = _number(text)
    if isinstance(number, float):
        if not number.is_integer() or abs(number) > _EXACT:
            raise ValueError("must be an integer")
        return int(number)
    return number


def _number(text: str) -> int | float:
    if not _NUMERALS.issuperset(text) or len(text) > _MOST_DIGITS:
        raise ValueError("must be a number")
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not isfinite(number):
        raise ValueError("is too large")
    return number


def _read(text: str) -> Any:
    """JSON as the standard has it: no NaN, no infinity, and nothing that cannot be sent."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("has half a character: \\ud800 to \\udfff stand in pairs") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number in JSON")


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON[kind])
