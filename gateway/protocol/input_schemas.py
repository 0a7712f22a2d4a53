"""Compile servers' input schemas, and check arguments against them, at limited cost.

Schemas come from servers, which are not trusted. References to other documents are not fetched, and patterns run in
linear time. Two costs of a check are limited: the number of parts of the schema, with every reference followed, times
the number of parts of the arguments; and the time that the patterns may take for a character, times the number of
characters. A `pattern` with look-around or backreferences is not checked, because no engine runs it in linear time. A
`pattern` that is large once compiled is not checked either. The rest of such a schema is checked.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, Literal

import jsonschema_rs
import msgspec
from cachetools import LRUCache

from transports.jsonrpc import decode_exact, encode

_MOST_READ_CHARS: Final = 64
_KINDS: Final = (
    jsonschema_rs.ValidationErrorKind.Type,
    jsonschema_rs.ValidationErrorKind.AnyOf,
    jsonschema_rs.ValidationErrorKind.OneOfNotValid,
)
"""Kinds of schema errors that say that a value has the wrong type. All other kinds are about the value itself."""

_scalars = msgspec.json.Decoder(int | float | bool)


def read_leniently(arguments: Any, path: Sequence[str | int], kind: Any) -> bool:
    """Convert the value at `path` in `arguments`, in place, as a lenient server would: drop a null, or read a string as
    a number or boolean. Return True if it was converted. `kind` is the kind of the schema error at `path`; only a value
    of the wrong type is converted."""
    if not path or not isinstance(kind, _KINDS):
        return False
    try:
        parent = arguments
        for key in path[:-1]:
            parent = parent[key]
        value = parent[path[-1]]
    except (KeyError, IndexError, TypeError):
        return False  # another error of the same value was found before
    if value is None and isinstance(parent, dict):
        del parent[path[-1]]
        return True
    if isinstance(value, str) and len(value) <= _MOST_READ_CHARS:
        try:
            parent[path[-1]] = _scalars.decode(value.lower() if value in ("True", "False") else value)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            return False
        return True
    return False


SCHEMA_BYTES: Final = 128 << 10
"""Maximum number of bytes of a schema that is used: compiling one of this size blocks the event loop for 20 ms."""
MOST_VISITS: Final = 20_000
"""Maximum number of parts of a schema, with its references followed. A schema of forty lines could have 2^30."""
MOST_DEPTH: Final = 128
MOST_PATTERNS: Final = 64
SCAN_NS: Final = {512: 20, 4 << 10: 600, 16 << 10: 1_500, 64 << 10: 15_000}
"""Memory of one compiled pattern in bytes, and the nanoseconds that the worst pattern of that size takes for a
character of text. Most patterns are in the first two classes. A pattern that is larger than the last class is not
checked."""
PATTERN_BYTES, DFA_BYTES = max(SCAN_NS), 32 << 10
"""The limits in bytes of one compiled pattern, and of its cache."""
READ_BYTES: Final = 1 << 20
"""Memory limit in bytes for compiling a pattern just to decide if it is a regular expression at all."""
_FEW: Final = 256
"""Maximum number of values in arguments that are counted exactly. In larger arguments, the count follows from their
size."""
MOST_COST: Final = 2_000_000
"""Maximum cost of a check: the parts of the schema times the parts of the arguments. A check takes up to 0.1 s, at
worst 1 s."""
MOST_REPORTED: Final = 100_000
"""Maximum cost, counted like `MOST_COST`, up to which the error to report is searched for: this takes longer than a
check."""
MOST_SCAN_NS: Final = 1_000_000_000
"""Maximum time in nanoseconds that all patterns of a schema, with its references followed, may take for the arguments.
The error to report is searched for only if the patterns take no longer with that."""
HELD_BYTES: Final = 128 << 20
"""Maximum bytes of all compiled schemas in the cache. The schemas of one tool list may use half of it."""
_READINGS: Final = 2
"""Maximum number of rounds of lenient conversions, because converting one value can reveal another error."""
_MOST_CHARS: Final = 300
_MOST_PATH: Final = 20

_SINGLE: Final = frozenset(
    "items additionalItems contains unevaluatedItems additionalProperties propertyNames unevaluatedProperties not if "
    "then else contentSchema".split()
)
_LISTS: Final = frozenset("allOf anyOf oneOf prefixItems items".split())
_MAPS: Final = frozenset("properties patternProperties dependentSchemas dependencies".split())
_NAMED: Final = _MAPS | {"$defs", "definitions"}
_DATA: Final = frozenset("default examples const enum".split())
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_UNEVALUATED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
"""Schema keywords that cause all other parts of their schema to be checked twice."""
_TRIED: Final = _UNEVALUATED | {"anyOf", "oneOf"}
"""Schema keywords whose parts are first checked, and then searched, when the error to report is searched for."""

Problem = tuple[str, str]
"""A violation of a schema: the place in the arguments, and the error message."""
_Kind = Literal["schema", "named", "data"]
"""The meaning of a value in a schema: `schema`, a schema or a list of schemas; `named`, an object of schemas by name;
`data`, plain data."""


class UnusableSchema(ValueError):
    """Arguments cannot be checked against this schema. The message says why."""


class _Weight:
    """Compute the cost of a schema, which limits the checks of arguments against it. Remove from the schema each
    `pattern` that cannot be checked at limited cost.

    `visits` is the number of its parts, with local references followed. `scan_ns` is the time in nanoseconds that its
    patterns may take for a character. `tried` is how many keywords of `_TRIED` contain one another.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._root = schema
        self._anchors: dict[str, Any] = {}
        self.unchecked: list[str] = []
        """The removed patterns: each was a `pattern` that does not run in linear time, or is too large."""
        self.held = 0
        """Memory of the compiled patterns in bytes."""
        self._known: dict[int, tuple[int, int, int]] = {}
        self._open: set[int] = set()
        self._scan_ns: dict[str, int] = {}
        self._patterns = 0
        self.cycles = 0
        """How many references refer to a part that encloses them. Such a reference counts as one part."""
        self._look(schema, 0)
        self.visits, self.scan_ns, self.tried = self._weigh(schema, 0)

    def _look(self, value: dict[str, Any] | list[Any], depth: int, kind: _Kind = "schema") -> bool:
        """Collect the anchors and patterns of a schema, or of a part of it at `depth`. `kind` is the kind of `value`.
        Return True if `value` contains a reference. Raises `UnusableSchema`."""
        if depth > MOST_DEPTH:
            raise UnusableSchema(f"it is nested more than {MOST_DEPTH} deep")
        refers = False
        if isinstance(value, dict) and kind == "schema":
            for anchor in ("$anchor", "$dynamicAnchor"):
                if isinstance(value.get(anchor), str):
                    self._anchors[value[anchor]] = value
            self._move_unbounded(value)
            refers = not _REFERENCES.isdisjoint(value)
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(part, dict | list) and self._look(part, depth + 1, _kind_in(kind, key)):
                refers = True
        if refers and depth and isinstance(value, dict) and isinstance(value.get("$id", value.get("id")), str):
            raise UnusableSchema("a part of it has an $id of its own, and refers from there")
        return refers

    def _move_unbounded(self, value: dict[str, Any]) -> None:
        """Move the `pattern` of a schema to `unchecked` if it does not run in linear time, or is large. Raises
        `UnusableSchema` if a key of `patternProperties` is such a pattern."""
        for pattern in tuple(_patterns(value)):
            if self._count_pattern(pattern):
                continue
            if pattern != value.get("pattern"):
                raise UnusableSchema(f"its patternProperties have {pattern[:128]!r}, which is large or has look-around")
            self.unchecked.append(pattern)
            del value["pattern"]

    def _count_pattern(self, pattern: str) -> bool:
        """Add the memory and the time of a pattern to those of the schema, and return True. Return False, and count
        nothing, if only the slow engine compiles the pattern, because it is large or has look-around. Raises
        `UnusableSchema` if the schema has too many patterns, or the text is no regular expression."""
        self._patterns += 1
        if self._patterns > MOST_PATTERNS:
            raise UnusableSchema(f"it has more than {MOST_PATTERNS} patterns")
        for size, scan_ns in SCAN_NS.items():
            if _compiles(pattern, jsonschema_rs.RegexOptions(size_limit=size, dfa_size_limit=DFA_BYTES)):
                self.held += size + DFA_BYTES
                self._scan_ns[pattern] = scan_ns
                return True
        if _compiles(pattern, jsonschema_rs.FancyRegexOptions(size_limit=READ_BYTES, dfa_size_limit=DFA_BYTES)):
            return False
        raise UnusableSchema(f"the pattern {pattern[:128]!r} is not a regular expression, or is much too large")

    def _weigh(self, node: Any, depth: int) -> tuple[int, int, int]:
        if not isinstance(node, dict):
            return 1, 0, 0
        if id(node) in self._open:
            self.cycles += 1
            return 1, 0, 0
        if id(node) in self._known:
            return self._known[id(node)]
        if depth > MOST_DEPTH:
            raise UnusableSchema(f"it is nested more than {MOST_DEPTH} deep, its references followed")
        self._open.add(id(node))
        visits = 1 + len(node) + sum(len(node[key]) for key in ("enum", "required") if isinstance(node.get(key), list))
        scan_ns, tried = sum(self._scan_ns[pattern] for pattern in _patterns(node)), 0
        for part in self._parts(node):
            more_visits, more_ns, tried_there = self._weigh(part, depth + 1)
            visits, scan_ns, tried = visits + more_visits, scan_ns + more_ns, max(tried, tried_there)
            if visits > MOST_VISITS:
                raise UnusableSchema(f"it has more than {MOST_VISITS} parts, its references followed")
        self._open.discard(id(node))
        times = 1 if _UNEVALUATED.isdisjoint(node) else 2
        found = self._known[id(node)] = times * visits, times * scan_ns, tried + len(_TRIED & node.keys())
        return found

    def _parts(self, node: dict[str, Any]) -> Iterator[Any]:
        for key, value in node.items():
            if key in _REFERENCES and isinstance(value, str):
                yield self._referred(value)
            elif key in _MAPS and isinstance(value, dict):
                yield from value.values()
            elif key in _LISTS and isinstance(value, list):
                yield from value
            elif key in _SINGLE:
                yield value

    def _referred(self, reference: str) -> Any:
        base, _, place = reference.partition("#")
        if base and base != str(self._root.get("$id", "")).partition("#")[0]:
            raise UnusableSchema(f"it refers to {reference[:128]!r}, and nothing is fetched for it")
        if place and not place.startswith("/"):
            if place not in self._anchors:
                raise UnusableSchema(f"it refers to {reference[:128]!r}, which it does not have")
            return self._anchors[place]
        node: Any = self._root
        kind: _Kind = "schema"
        for name in place.split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            kind = _kind_in(kind, key)
            try:
                node = node[int(key)] if isinstance(node, list) else node[key]
            except (KeyError, ValueError, IndexError, TypeError):
                raise UnusableSchema(f"it refers to {reference[:128]!r}, which it does not have") from None
        if kind != "schema":
            raise UnusableSchema(f"it refers to {reference[:128]!r}, which is no schema")
        return node


def _kind_in(kind: _Kind, key: str | int) -> _Kind:
    """Return the kind of the value under `key` in a value of the kind `kind`: a schema, an object that names schemas
    (`named`), or plain data such as an enum."""
    if kind == "data" or (kind == "schema" and key in _DATA):
        return "data"
    return "named" if kind == "schema" and key in _NAMED else "schema"


def _patterns(node: dict[str, Any]) -> Iterator[str]:
    """Yield the patterns of this schema itself, but not those of the schemas in it."""
    pattern, properties = node.get("pattern"), node.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(properties, dict):
        yield from properties


def _few(value: Any) -> int:
    """Return the number of values within a JSON value, including the value itself; 0 if there are more than `_FEW`."""
    count, left = 0, [value]
    while left:
        count += 1
        if count > _FEW:
            return 0
        part = left.pop()
        if isinstance(part, dict | list):
            if len(part) > _FEW:
                return 0
            left.extend(part.values() if isinstance(part, dict) else part)
    return count


class Checker:
    """Check arguments against one schema."""

    def __init__(self, schema: dict[str, Any], size: int) -> None:
        weight = _Weight(schema)
        self._visits, self._scan_ns = weight.visits, weight.scan_ns
        self._search_ns = weight.scan_ns * (1 + (_READINGS + 1) * (2 + weight.tried))
        self._cycles = weight.cycles
        self.held = 1_024 + 16 * size + weight.held
        """Memory of this checker in bytes."""
        self.unchecked = tuple(weight.unchecked)
        """The patterns of the schema that are not checked."""
        self._validator = _compiled(schema)

    def problem(self, arguments: Any, raw: bytes, *, lenient: bool = False) -> Problem | None:
        """Return the first violation of the schema: its place in the arguments, and the error message. Return None if
        there is none. `raw` is the JSON of the arguments. `lenient`: accept a value that servers commonly convert to
        the type in the schema (`read_leniently`)."""
        parts = len(raw) // 2 + 1
        if parts * self._visits > MOST_COST:
            parts = _few(arguments) or 1 + sum(map(raw.count, (b",", b"[", b"{")))
        if parts * self._visits > MOST_COST or len(raw) * self._scan_ns > MOST_SCAN_NS:
            return (
                "arguments",
                "they are too large to be checked against the tool's schema in a bounded time (policy.check_arguments)",
            )
        try:
            if self._validator.is_valid(arguments):
                return None
            if self._cycles or parts * self._visits > MOST_REPORTED or len(raw) * self._search_ns > MOST_SCAN_NS:
                return "arguments", "they are not what the tool's schema says"
            error = (
                self._error_left(decode_exact(raw, bounded=True))
                if lenient
                else next(self._validator.iter_errors(arguments))
            )
            if error is None:
                return None
        except (ValueError, RecursionError) as fault:
            return "arguments", f"they cannot be checked: {str(fault)[:_MOST_CHARS]}"
        path = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path]
        return f"arguments{''.join(path[:_MOST_PATH])}"[:_MOST_CHARS], str(error.message)[:_MOST_CHARS]

    def _error_left(self, arguments: Any) -> Any:
        """Apply lenient conversions to `arguments`, and return the first error that remains; None if there is none."""
        for _ in range(_READINGS):
            errors = list(islice(self._validator.iter_errors(arguments), _FEW))
            read = [read_leniently(arguments, error.instance_path, error.kind) for error in errors]
            if not any(read):
                break
        return next(self._validator.iter_errors(arguments), None)


def _compiled(schema: dict[str, Any]) -> Any:
    patterns = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES, dfa_size_limit=DFA_BYTES)
    try:
        # `offline`: nothing that a schema refers to is fetched. A server must not make the gateway call others.
        return jsonschema_rs.validator_for(schema, offline=True, pattern_options=patterns)
    except Exception as error:
        raise UnusableSchema(" ".join(str(error).split())[:200]) from None


def _compiles(pattern: str, options: Any) -> bool:
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, offline=True, pattern_options=options)
    except jsonschema_rs.ValidationError:
        return False
    return True


class Schema(msgspec.Struct, frozen=True):
    """One JSON Schema as a server has listed it: its text, and a digest by which equal schemas are found."""

    text: bytes
    """The schema as JSON; empty if it is too large or nested too deeply."""
    digest: bytes
    """The SHA-256 of `text`."""

    @classmethod
    def of(cls, listed: Any) -> "Schema | None":
        """Return the `Schema` of a tool's `inputSchema` (`listed`); None if the tool has none."""
        if listed is None:
            return None
        try:
            text = encode(listed)
        except RecursionError:
            text = b""
        text = text if len(text) <= SCHEMA_BYTES else b""
        return cls(text, hashlib.sha256(text).digest())


class Schemas:
    """Compile the schemas that servers list, and cache them by digest. Tools with the same schema share one."""

    def __init__(self) -> None:
        self._cached: LRUCache[bytes, Checker | UnusableSchema] = LRUCache(
            HELD_BYTES, getsizeof=lambda found: found.held if isinstance(found, Checker) else 1_024
        )

    def checker(self, schema: Schema) -> Checker:
        """Return the checker of a schema, from the cache if possible.

        Raises:
            UnusableSchema: the schema is invalid, too large or too costly.
        """
        found = self._cached.get(schema.digest)
        if found is None:
            found = self._cached[schema.digest] = _made(schema.text)
        if isinstance(found, UnusableSchema):
            raise UnusableSchema(str(found))  # a new one, because a raised exception keeps its traceback
        return found


def _made(text: bytes) -> Checker | UnusableSchema:
    if not text:
        return UnusableSchema(f"it is larger than {SCHEMA_BYTES >> 10} KiB, or nested too deep")
    try:
        schema = msgspec.json.decode(text)
        return Checker(schema, len(text)) if isinstance(schema, dict) else UnusableSchema("it is not an object")
    except UnusableSchema as error:
        return UnusableSchema(str(error))
    except RecursionError:
        return UnusableSchema(f"it is nested more than {MOST_DEPTH} deep")
