"""Make forms from the input schemas of tools, and read submitted forms. Pure.

Schemas come from servers, and are not trusted. A part that is too large or not supported becomes a field for JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal

PREFIX: Final = "argument."
"""The prefix of a control's name, before the name of the argument."""

JSON_CONTROL: Final = "arguments"
"""The name of the control for all arguments as one JSON object, in place of one control for each argument."""

_MOST_FIELDS: Final = 60
_MOST_CHOICES: Final = 200
_MOST_NAME: Final = 128
_MOST_TEXT: Final = 2_000
"""The most characters of a description, a default or a choice. A longer text is cut, or gets a field for JSON."""

_MOST_REFERENCES: Final = 8
_EXACT: Final = 2**53
_TYPES: Final = frozenset({"string", "boolean", "integer", "number", "array", "object", "null"})
_COMBINED: Final = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties"})
Kind = Literal["text", "password", "integer", "number", "boolean", "choice", "json"]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """The form field of one argument of a tool: its control, the initial text, and which values are allowed."""

    name: str
    kind: Kind
    """The kind of control."""
    title: str
    description: str = ""
    hint: str = ""
    """The restrictions of the argument's schema, in words."""
    is_required: bool = False
    types: frozenset[str] = frozenset()
    """The JSON types that the argument may have; empty: all."""
    choices: tuple[str, ...] = ()
    """The allowed values of a `choice`, as JSON."""
    value: str = ""
    """The initial text of the control."""
    minimum: str = ""
    """The lower limit of a number, as an attribute of the control; empty: none."""
    maximum: str = ""
    """The upper limit of a number, in the same form."""

    @property
    def control(self) -> str:
        """Return the name of the control in the HTML form."""
        return PREFIX + self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of a tool. `fields` is None if its arguments can only be given as JSON."""

    fields: tuple[Field, ...] | None
    skeleton: str
    """The initial text of the control for JSON: the required arguments, each with a sample value of its type."""


def form_of(schema: Any) -> Form:
    """Return the form for the arguments that a tool's input schema describes. If the schema as a whole is invalid, not
    supported or too large, the form has only the control for JSON (`Form.fields` is None)."""
    skeleton = json.dumps(skeleton_of(schema), indent=2, ensure_ascii=False)
    if not isinstance(schema, dict) or not _COMBINED.isdisjoint(schema):
        return Form(fields=None, skeleton=skeleton)
    properties = schema.get("properties", {})
    required = _required_of(schema)
    if (
        schema.get("type", "object") != "object"
        or not isinstance(properties, dict)
        or len(properties) > _MOST_FIELDS
        or not all(map(_is_usable, properties))
        or not required <= properties.keys()
    ):
        return Form(fields=None, skeleton=skeleton)
    fields = [_field(name, part, schema, is_required=name in required) for name, part in properties.items()]
    fields.sort(key=lambda field: not field.is_required)
    return Form(fields=tuple(fields), skeleton=skeleton)


def skeleton_of(schema: Any) -> dict[str, Any]:
    """Return an object with the required arguments of an input schema, each with a sample value of its type. It is the
    initial text of the control for JSON."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    names = [name for name in properties if name in _required_of(schema)][:_MOST_FIELDS]
    return {name: _sample(_resolved(properties[name], schema)[0]) for name in names}


def _required_of(schema: Mapping[str, Any]) -> set[str]:
    required = schema.get("required")
    return {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()


def _is_usable(name: str) -> bool:
    """Return True if an argument's name can be that of a control, which the browser then sends back unchanged."""
    return 0 < len(name) <= _MOST_NAME and name.isprintable() and name.strip() == name


def _field(name: str, part: Any, root: Mapping[str, Any], *, is_required: bool) -> Field:
    found, is_nullable = _resolved(part, root)
    kind, types = _kind_of(found)
    choices: tuple[str, ...] = ()
    if kind == "choice":
        choices = tuple(_json(value) for value in _listed(found))
        if is_nullable and "null" not in choices:
            choices = (*choices, "null")
    default = found.get("default")
    return Field(
        name=name,
        kind=kind,
        title=_text(found.get("title")) or name,
        description=_text(found.get("description")),
        hint=_hint(found, kind, types),
        is_required=is_required,
        types=types | {"null"} if types and is_nullable else types,
        choices=choices,
        value=_shown(kind, default) if is_required and "default" in found else "",
        minimum=_bound(kind, found.get("minimum")),
        maximum=_bound(kind, found.get("maximum")),
    )


def _resolved(part: Any, root: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Simplify the schema of one argument (`part`): replace references by what they name in the whole schema `root`,
    and a union of one schema with null by that schema. Return the result, and True if the argument may be null."""
    found: dict[str, Any] = dict(part) if isinstance(part, dict) else {}
    is_nullable = False
    for _ in range(_MOST_REFERENCES):
        inner: Any = None
        for keyword in ("anyOf", "oneOf", "allOf"):
            parts = found.get(keyword)
            if not isinstance(parts, list):
                continue
            others = parts if keyword == "allOf" else [one for one in parts if not _is_null(one)]
            others = others or parts[:1]  # null, however often it is said
            if len(others) != 1:
                return found, is_nullable
            is_nullable |= any(map(_is_null, parts))
            inner = others[0]
            found.pop(keyword)
        if "$ref" in found:
            if inner is not None:
                return found, is_nullable
            inner = _at(root, found.pop("$ref"))
        if not isinstance(inner, dict):
            break
        found = inner | found
    kinds = found.get("type")
    if isinstance(kinds, list):
        is_nullable |= "null" in kinds
        others = [kind for kind in kinds if kind != "null"] or kinds
        found["type"] = others[0] if len(others) == 1 else others
    return found, is_nullable


def _is_null(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "null"


def _at(root: Mapping[str, Any], reference: Any) -> Any:
    """Return the part of the whole schema `root` to which a reference such as `#/$defs/Name` points; None if there is
    no such part."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for step in reference[2:].split("/")[:_MOST_REFERENCES]:
        if not isinstance(found, dict):
            return None
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found


def _kind_of(part: Mapping[str, Any]) -> tuple[Kind, frozenset[str]]:
    """Return the kind of control for an argument with the schema `part`, and the JSON types that the argument may have;
    no types mean that its schema does not restrict them, or that it is a `choice`."""
    if _listed(part):
        return "choice", frozenset()
    kind = part.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    types = frozenset(one for one in kinds if isinstance(one, str) and one in _TYPES)
    if not _COMBINED.isdisjoint(part) or len(types) != 1:
        return "json", types
    if kind == "string":
        is_secret = part.get("format") == "password" or part.get("writeOnly") is True
        return "password" if is_secret else "text", types
    return kind if kind in ("integer", "number", "boolean") else "json", types


def _listed(part: Mapping[str, Any]) -> list[Any]:
    """Return the values that `const` or `enum` of a schema allow. Empty if the schema has neither, or if there are too
    many values, or too long ones, for a control."""
    values = [part["const"]] if "const" in part else part.get("enum")
    if not isinstance(values, list) or len(values) > _MOST_CHOICES:
        return []
    return values if all(len(_json(value)) <= _MOST_TEXT for value in values) else []


def _hint(part: Mapping[str, Any], kind: Kind, types: frozenset[str]) -> str:
    """Return a few words that tell the operator how the schema `part` restricts the argument, and its default. `kind`
    and `types`: the results of `_kind_of`."""
    said = [" or ".join(sorted(types))] if kind == "json" and types else []
    said += [kind] if kind in ("integer", "number") else []
    if isinstance(part.get("format"), str):
        said.append(_text(part["format"]))
    for keyword, words in (
        ("minimum", "from"),
        ("exclusiveMinimum", "more than"),
        ("maximum", "up to"),
        ("exclusiveMaximum", "less than"),
        ("minLength", "characters at least:"),
        ("maxLength", "characters at most:"),
        ("pattern", "like"),
    ):
        value = part.get(keyword)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            said.append(f"{words} {_text(value)}")
    items = part.get("items")
    if isinstance(items, dict) and isinstance(items.get("type"), str):
        said.append(f"items: {_text(items['type'])}")
    if "default" in part:
        said.append(f"default: {_text(_json(part['default']))}")
    return " · ".join(said)


def _bound(kind: Kind, value: Any) -> str:
    if kind not in ("integer", "number") or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return _json(value) if abs(value) < _EXACT and (isinstance(value, int) or isfinite(value)) else ""


def _sample(part: Mapping[str, Any]) -> Any:
    """Return a sample value for a schema: its default, or its first listed value, or an empty value of its type. None
    if its type is unknown."""
    if "default" in part:
        return part["default"]
    if listed := _listed(part):
        return listed[0]
    kind = part.get("type")
    samples: dict[str, Any] = {"string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}
    return samples.get(kind) if isinstance(kind, str) else None


def _shown(kind: Kind, value: Any) -> str:
    """Return the text with which a control of this kind begins, for the default `value`; empty if the control cannot
    hold it."""
    if kind in ("text", "password"):
        return value if isinstance(value, str) and len(value) <= _MOST_TEXT else ""
    text = _json(value)
    return text if len(text) <= _MOST_TEXT else ""


def _text(value: Any) -> str:
    """Return a value that a schema contains as text, cut to `_MOST_TEXT` characters; empty for null, lists and
    objects."""
    if isinstance(value, str):
        text = value
    else:
        text = "" if value is None or isinstance(value, dict | list) else _json(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class FormFaults(ValueError):
    """Values in a submitted form are invalid. `faults` has the reason for each invalid value, by the name of its
    control."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name.removeprefix(PREFIX)}: {why}" for name, why in faults.items()))
        self.faults = faults


def arguments_in(form: Form, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of the call that a submitted form describes. `given`: the texts of the controls, by name.

    If a control is empty and its argument is optional, the argument is left out. If the argument is required, it
    becomes null or an empty text, whichever its type allows; if it allows neither, that is a fault.

    Raises:
        FormFaults: a value is invalid, or a control belongs to no argument of the tool.
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
    """Return the value of the argument `field` that its control's text stands for. Raises `ValueError`, with the fault
    in words, if the argument cannot have this value."""
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
    if isinstance(number, float) and (not number.is_integer() or abs(number) > _EXACT):
        raise ValueError("must be an integer")
    return int(number)


def _number(text: str) -> int | float:
    if not _NUMERALS.issuperset(text) or len(text) > _MOST_DIGITS:
        raise ValueError("must be a number")
    try:
        number = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not isfinite(number):
        raise ValueError("is too large")
    return int(text) if text.lstrip("+-").isdigit() else number


def _read(text: str) -> Any:
    """Parse standard JSON. Raises `ValueError` also for NaN, infinity and unpaired surrogates, which cannot be sent."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("has an unpaired surrogate (\\ud800 to \\udfff)") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number in JSON")


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON[kind])
