"""Encode and check the headers that repeat parts of a request body, such as `Mcp-Param-*` for arguments of tools.

MCP 2026-07-28, Transports §Custom Headers. Pure. The rules are those of the MCP SDK (`mcp.shared.inbound`), in the same
words, and a test compares both. The SDK is not imported, because loading it takes half of a gateway's start.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

PREFIX: Final = "Mcp-Param-"
MAX_HEADERS: Final = 32
MAX_HEADER_CHARS: Final = 8_192
"""The most characters of all `Mcp-Param-*` headers of a request together, with their names."""
_PREFIX: Final = PREFIX.lower()
ANNOTATION: Final = "x-mcp-header"
_TYPES: Final = frozenset({"string", "integer", "boolean"})
"""The types of properties that a schema may annotate. No floats: languages write them differently."""

_CODED = re.compile(r"=\?base64\?(?P<payload>.*)\?=")
_PRINTABLE = re.compile(r"[\x20-\x7E]*")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110 §5.6.2
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")

# The keywords of JSON Schema 2020-12 that hold schemas, by the shape of what they hold. Data (`default`, `enum`) and
# references are left out: data is no schema, and a reference is never followed.
_ONE: Final = frozenset(
    "items contains unevaluatedItems additionalProperties propertyNames unevaluatedProperties not if then else "
    "contentSchema".split()
)
_SEVERAL: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_BY_NAME: Final = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})

PropertyPath = tuple[str, ...]


class _Annotated(NamedTuple):
    """A property of an input schema whose value is repeated in a header."""

    path: PropertyPath
    """The names of the properties that lead to this one, which is the last."""
    token: str
    """The header's name without `Mcp-Param-`."""
    schema: dict[str, Any]
    """The schema of the property."""

    @property
    def header(self) -> str:
        return PREFIX + self.token


def encode_value(text: str) -> str:
    """Return a text as a header value: unchanged if it is printable ASCII without spaces at its ends, else base64."""
    if _PRINTABLE.fullmatch(text) and text == text.strip() and not _CODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def decode_value(value: str | None) -> str | None:
    """Return the text of a header value; None if there is no value, or if its base64 is not canonical or not UTF-8."""
    coded = _CODED.fullmatch(value) if value is not None and value.startswith("=?") else None
    if coded is None:
        return value
    payload = coded["payload"]
    try:
        decoded = base64.b64decode(payload, validate=True)
        # The spare bits of the last character have to be zero, so that each text has one spelling.
        return decoded.decode() if base64.b64encode(decoded).decode() == payload else None
    except (binascii.Error, ValueError):
        return None


def argument_headers(schema: Any, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the `Mcp-Param-*` headers of a `tools/call`, as the annotations in the tool's input schema require.
    Arguments without a value, and arrays and objects, get no header."""
    headers: dict[str, str] = {}
    for annotated in _annotated(schema):
        text = _text(_at(arguments, annotated.path))
        if text is not None:
            headers[annotated.header] = encode_value(text)
    return headers


def has_params(headers: Iterable[str]) -> bool:
    """Return True if one of these headers (lower-case names) is an `Mcp-Param-*` header."""
    return any(name.startswith(_PREFIX) for name in headers)


def param_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return all `Mcp-Param-*` headers of a request, by lower-case name.

    Raises:
        ValueError: they are more than `MAX_HEADERS`, longer than `MAX_HEADER_CHARS` together, or not printable ASCII.
    """
    found = {name: value for name, value in headers.items() if name.startswith(_PREFIX)}
    if not found:
        return found
    if len(found) > MAX_HEADERS or sum(len(name) + len(value) for name, value in found.items()) > MAX_HEADER_CHARS:
        raise ValueError(f"{PREFIX}* headers are limited to {MAX_HEADERS}, and {MAX_HEADER_CHARS} characters together.")
    for name, value in found.items():
        if not _PRINTABLE.fullmatch(value):
            raise ValueError(f"The header {name[:64]} has characters that are not printable ASCII.")
    return found


def unknown_headers(schema: Any, headers: Mapping[str, str]) -> dict[str, str]:
    """Return those of `headers` (by lower-case name) for which the tool's input schema has no annotation."""
    known = {annotated.header.lower() for annotated in _annotated(schema)}
    return {name: value for name, value in headers.items() if name not in known}


def disagreement(schema: Any, arguments: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """Compare the headers of a `tools/call` with its arguments. Return the first difference as text; None if equal.

    A header without its argument is a difference too: a proxy would route by a value that the request does not have.
    With an invalid annotation in the schema, nothing is checked: clients send no headers for such a tool.

    Args:
        headers: the headers of the request, by lower-case name.
    """
    if annotation_fault(schema):
        return None
    for annotated in _annotated(schema):
        why = _difference(annotated, _at(arguments, annotated.path), headers.get(annotated.header.lower()))
        if why is not None:
            return f"{annotated.header} header {why}"
    return None


def _difference(annotated: _Annotated, value: Any, header: str | None) -> str | None:
    argument = f"{'.'.join(annotated.path)!r} argument"
    text = _text(value)
    if text is None:
        if header is None:
            return None
        if value is None:
            return f"is present but the request body's {argument} is absent"
        return f"does not match the request body's {argument}"
    if header is None:
        return f"is missing but the request body's {argument} is present"
    decoded = decode_value(header)
    if decoded is None:
        return "carries a malformed base64 sentinel value"
    if decoded != text and not _is_equal_integer(annotated.schema.get("type"), value, decoded):
        return f"does not match the request body's {argument}"
    return None


def _is_equal_integer(kind: Any, value: Any, decoded: str) -> bool:
    """Return True if a decoded header is another spelling of the integer `value`, such as `42.0` for 42. `kind` is the
    type of the property in the schema; False unless it is "integer". Exact for integers of any size."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if kind != "integer" or isinstance(value, bool) or not is_whole or not _DECIMAL.fullmatch(decoded):
        return False
    whole, _, fraction = decoded.partition(".")
    try:
        return not fraction.strip("0") and int(whole) == int(value)
    except ValueError:  # more digits than Python converts
        return False


def _text(value: Any) -> str | None:
    """Return the text that a header has for a scalar value; None for a value that no header can have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return str(value) if isinstance(value, str | int | float) else None
    except ValueError:  # an integer of more digits than Python converts
        return None


def _at(arguments: Any, path: PropertyPath) -> Any:
    for key in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(key)
    return arguments


def _annotated(schema: Any) -> Iterator[_Annotated]:
    """Yield the annotated properties of a schema. Leave out a property that an array, a condition or anything else but
    other properties encloses."""
    for path, node in _schemas(schema):
        token = node.get(ANNOTATION)
        if path and isinstance(token, str):
            yield _Annotated(path, token, node)


def annotation_fault(schema: Any) -> str:
    """Return the fault in an input schema's annotations, as text; empty if there is none. With a fault, clients on HTTP
    must not use the tool (MCP 2026-07-28, Transports §Schema Extension). A valid annotation is on a scalar property
    that only other properties enclose, and names a header that no other property names."""
    seen: set[str] = set()
    for path, node in _schemas(schema):
        if ANNOTATION not in node:
            continue
        token, kind = node[ANNOTATION], node.get("type")
        if not path:
            return f"{ANNOTATION} stands where no property is, or where not only properties enclose it"
        where = f"{ANNOTATION} of {'.'.join(path)[:128]!r}"
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            return f"{where} is not a name for a header"
        if not isinstance(kind, str) or kind not in _TYPES:
            return f"{where} stands at a property that is not a string, integer or boolean"
        if token.lower() in seen:
            return f"{where} names a header that another property has"
        seen.add(token.lower())
    return ""


def _schemas(root: Any) -> Iterator[tuple[PropertyPath | None, dict[str, Any]]]:
    """Yield a schema and all schemas in it, each with the path of properties that enclose it. The path is None if
    anything else, such as an array, encloses it too.

    Works without recursion, so that no depth exhausts the stack.
    """
    waiting: list[tuple[PropertyPath | None, Any]] = [((), root)]
    while waiting:
        path, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for keyword, held in node.items():
            if keyword == "properties" and isinstance(held, dict):
                waiting += [(None if path is None else (*path, name), each) for name, each in held.items()]
            elif keyword in _ONE:
                waiting.append((None, held))
            elif keyword in _SEVERAL and isinstance(held, list):
                waiting += [(None, each) for each in held]
            elif keyword in _BY_NAME and isinstance(held, dict):
                waiting += [(None, each) for each in held.values()]
