"""Limit the size of servers' lists, and merge the lists of several servers into one, with public names (`server__name`)
and cursors. Pure, and without policy."""

import base64
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import msgspec

from gateway.protocol.input_schemas import Schema
from gateway.protocol.item_digests import digests_of, form_of
from gateway.protocol.methods import METHODS
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, Object, encode
from transports.mirrored_headers import ANNOTATION

APP_SCHEME: Final = "ui://"
"""The scheme of the resources that are apps (MCP Apps)."""

_ANNOTATION: Final = f'"{ANNOTATION}"'.encode()
_TASK_SUPPORT: Final = frozenset({"required", "optional", "forbidden"})
READ: Final = "read"
WRITE: Final = "write"

MOST_TOOLS: Final = 4_096
"""Maximum number of tools, prompts or resources of one server that the gateway keeps. It ignores later ones."""
MOST_BYTES: Final = 4 << 20
"""Maximum number of bytes of one list of one server that the gateway keeps."""


def items_of(page: Any, key: str, name: str, *, most_chars: int = sys.maxsize) -> list[dict[str, Any]]:
    """Return the valid items in one page of a list. `key` is the list's key in the page, `name` the key of an item's
    name or URI.

    Leave out items whose name is missing, empty, no string, or longer than `most_chars` characters, because requests
    with these names are refused.
    """
    items = page.get(key) if isinstance(page, dict) else None
    named = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return [item for item in named if isinstance(item.get(name), str) and 0 < len(item[name]) <= most_chars]


class Names(frozenset[str]):
    """The names of a server's prompts, or the URIs of its resources or templates."""

    digests: Mapping[str, str] = MappingProxyType({})
    """The digest of each item's content, by name. Empty if the operator has no lock file, which alone needs digests."""

    @classmethod
    def of(cls, items: Iterable[dict[str, Any]], key: str, *, has_digests: bool = False) -> "Names":
        """Return the names under `key` in the first items of a list: up to `MOST_TOOLS` items and `MOST_BYTES`
        characters. `has_digests`: also compute the items' digests."""
        kept, left = [], MOST_BYTES
        for item in islice(items, MOST_TOOLS):
            left -= len(item[key])
            if left < 0:
                break
            kept.append(item)
        found = cls(item[key] for item in kept)
        if has_digests:
            found.digests = _digests(kept, key)
        return found

    def joined(self, newer: "Names") -> "Names":
        """Return these names together with those of `newer`, up to the limits of `of`. If both have a digest for a
        name, that of `newer` counts."""
        found = Names.of(({"name": name} for name in (*self, *(newer - self))), "name")
        if self.digests or newer.digests:
            found.digests = {n: digest for n, digest in {**self.digests, **newer.digests}.items() if n in found}
        return found

    @property
    def size(self) -> int:
        """Return the total number of characters of all names."""
        return sum(map(len, self))


def _digests(items: Sequence[dict[str, Any]], key: str) -> dict[str, str]:
    """Return the digests of items by name; an empty digest if items of the same name differ."""
    found: dict[str, str] = {}
    for item, digest in zip(items, digests_of(items), strict=True):
        found[item[key]] = digest if found.get(item[key], digest) == digest else ""
    return found


def arguments_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties of a tool's input schema, by argument name; empty if the schema has no valid properties."""
    schema = tool.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def operation_of(tool: Mapping[str, Any]) -> str:
    """Return `read` if a tool's annotations set `readOnlyHint`, else `write`, which MCP defines as the default (MCP
    2025-11-25, ToolAnnotations)."""
    annotations = tool.get("annotations")
    return READ if isinstance(annotations, dict) and annotations.get("readOnlyHint") is True else WRITE


def app_of(tool: Mapping[str, Any]) -> str:
    """Return the URI of the app that shows a tool's results (MCP Apps 2026-01-26); empty if the tool has no app. Read
    `_meta.ui.resourceUri`, else `ui/resourceUri` of earlier drafts."""
    meta = tool.get("_meta")
    if not isinstance(meta, dict):
        return ""
    ui = meta.get("ui")
    uri = (ui.get("resourceUri") if isinstance(ui, dict) else None) or meta.get("ui/resourceUri")
    return uri if isinstance(uri, str) and uri.startswith(APP_SCHEME) else ""


def is_for_apps(tool: Mapping[str, Any]) -> bool:
    """Return True if MCP Apps may call a tool (MCP Apps 2026-01-26). Only a list in `_meta.ui.visibility` that lacks
    `app` forbids it."""
    meta = tool.get("_meta")
    ui = meta.get("ui") if isinstance(meta, dict) else None
    visibility = ui.get("visibility") if isinstance(ui, dict) else None
    return not isinstance(visibility, list) or "app" in visibility


def is_mirrored(schema: Schema | None) -> bool:
    """Return True if an input schema has arguments that clients repeat in HTTP headers (MCP 2026-07-28, Transports)."""
    return schema is not None and _ANNOTATION in schema.text


def is_repeatable(tool: Mapping[str, Any]) -> bool:
    """Return True if the annotations of a tool say that it may be called twice without further effect."""
    hints = tool.get("annotations")
    return isinstance(hints, dict) and (hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True)


def task_support(tool: Mapping[str, Any]) -> str:
    """Return a tool's `execution.taskSupport`, which says if it can be called as a task: `required`, `optional` or
    `forbidden` (MCP 2025-11-25); empty if missing or invalid."""
    execution = tool.get("execution")
    support = execution.get("taskSupport") if isinstance(execution, dict) else None
    return support if isinstance(support, str) and support in _TASK_SUPPORT else ""


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """The tool that a call names, and the properties that the tool declares."""

    server: str = ""
    name: str = ""
    """The tool's name at its server."""
    schema: Schema | None = None
    """The input schema."""
    is_repeatable: bool = False
    """The tool may be called twice without further effect."""
    task_support: str = ""
    """`required`, `optional` or `forbidden`; empty if the tool does not say if it can be called as a task."""
    operation: str = WRITE
    """`read` or `write`."""
    app: str = ""
    """The URI of the app that shows the tool's results; empty if it has none."""
    is_for_apps: bool = True
    """MCP Apps may call the tool."""
    is_unlisted: bool = False
    """The server does not list the tool, so the other properties are defaults."""

    @classmethod
    def of(cls, tool: dict[str, Any]) -> "Called":
        """Return the properties of `tool`, an item of a server's list. The field `server` is left empty."""
        return cls(
            name=tool["name"],
            schema=Schema.of(tool.get("inputSchema")),
            is_repeatable=is_repeatable(tool),
            task_support=task_support(tool),
            operation=operation_of(tool),
            app=app_of(tool),
            is_for_apps=is_for_apps(tool),
        )

    @property
    def needs_task(self) -> bool:
        """Return True if the tool must be called as a task."""
        return self.task_support == "required"


_UNLISTED: Final = Called(is_unlisted=True)


class Tools:
    """The tools that one server lists, up to `MOST_TOOLS` tools and `MOST_BYTES` bytes, and the schemas of their
    arguments."""

    def __init__(self, listed: Iterable[dict[str, Any]] = ()) -> None:
        self.listed: list[dict[str, Any]] = []
        self.schemas: dict[str, Schema | None] = {}
        self.mirrored: dict[str, Any] = {}
        """The input schemas with `x-mcp-header` (MCP 2026-07-28), by tool."""
        self.apps: dict[str, str] = {}
        """The URIs of apps, by tool."""
        self._declared: dict[str, Called] = {}
        self._arguments: dict[str, Mapping[str, Any]] = {}
        self._unmatched: list[str] | None = None
        self._digests: dict[str, str] | None = None
        self._forms: dict[str, bytes] | None = None
        self.size = 0
        """The size of the list in bytes."""
        for tool in listed:
            size = _size(tool)
            if len(self.listed) >= MOST_TOOLS or self.size + size > MOST_BYTES:
                break
            self.size += size
            self.listed.append(tool)
            found = self._declared[tool["name"]] = Called.of(tool)
            self.schemas[found.name] = found.schema
            self._arguments[found.name] = arguments_of(tool)
            if found.app:
                self.apps[found.name] = found.app
            if is_mirrored(found.schema):
                self.mirrored[found.name] = tool["inputSchema"]

    def takes(self, name: str, argument: str) -> bool:
        """Return True if the input schema of the tool `name` has this argument."""
        return argument in self._arguments.get(name, ())

    def operation(self, name: str) -> str:
        """Return `read` or `write`, from the annotations of the tool `name` (`operation_of`)."""
        return self._declared.get(name, _UNLISTED).operation

    def digest(self, name: str) -> str:
        """Return the digest by which the lock file approves the tool `name`. Return an empty text if the tool is not
        listed, is listed twice with different contents, or cannot be hashed (`digests_of`). The first call computes the
        digests of all tools."""
        if self._digests is None:
            self._digests = _digests(self.listed, "name")
        return self._digests.get(name, "")

    def form(self, name: str) -> bytes | None:
        """Return the form (hash) of the tool `name` (`item_digests.form_of`). Return None if the tool is not listed,
        and empty bytes if it is listed twice with different contents. The first call computes the forms of all
        tools."""
        if self._forms is None:
            self._forms = {}
            for tool in self.listed:
                form = form_of(tool)
                self._forms[tool["name"]] = form if self._forms.get(tool["name"], form) == form else b""
        return self._forms.get(name)

    def called(self, server: str, name: str) -> Called:
        """Return the properties of the tool `name` of `server`. A tool that is not listed gets default properties."""
        return msgspec.structs.replace(self._declared.get(name, _UNLISTED), server=server, name=name)

    def __contains__(self, name: object) -> bool:
        return name in self.schemas

    def unmatched(self, compare: Callable[[Iterable[str]], list[str]]) -> list[str]:
        """Call `compare` with the names of these tools, and return its messages: one for each pattern of the operator
        that matches no name. Later calls return the same messages without calling `compare`."""
        if self._unmatched is None:
            self._unmatched = compare(self.schemas)
        return self._unmatched

    def are_same(self, tools: Sequence[dict[str, Any]]) -> bool:
        """Return True if this list has every tool in `tools`, and each has the same form (`form_of`) here."""
        return all(self.form(tool["name"]) == form_of(tool) != b"" for tool in tools)


def _size(tool: dict[str, Any]) -> int:
    try:
        return len(encode(tool))
    except (RecursionError, msgspec.MsgspecError):
        return MOST_BYTES + 1


SEPARATOR: Final = "__"
_MOST_CURSOR_CHARS: Final = 4_096
"""Maximum number of characters of a cursor that the gateway makes: half of the length that requests may have."""


def split_public_name(name: str, upstreams: Iterable[str], kind: str) -> tuple[str, str]:
    """Split a public name (`server__name`) into the server (upstream) and the item's own name there. Raises `Refused`
    if no server in `upstreams` has this name. `kind` is the kind of the item for the error message, such as `tool`."""
    upstream, _, inner = name.partition(SEPARATOR)
    if not inner or upstream not in upstreams:
        raise Refused(200, INVALID_PARAMS, f"Unknown {kind}: {name[:128]}", reason=f"unknown_{kind}")
    return upstream, inner


def with_public_name(upstream: str, item: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an item of a server's list, with its public name (`server__name`)."""
    return item | {"name": f"{upstream}{SEPARATOR}{item['name']}"}


def merge_lists(method: str, pages: Iterable[tuple[str, Any]]) -> list[Any]:
    """Return the items of several servers' answers to the list method `method`, in the order of `pages`. Items
    that requests identify by name get public names; all others stay unchanged. `pages` has pairs of a server's name and
    its page."""
    row = METHODS[method]
    items = ((upstream, item) for upstream, page in pages for item in items_of(page, row.listed, row.item_key))
    return [with_public_name(upstream, item) if row.item_key == "name" else item for upstream, item in items]


def has_more(page: Mapping[str, Any]) -> bool:
    """Return True if a page of a list has a cursor for the next page. An empty cursor is valid in the modern era (MCP
    2026-07-28, Pagination), but marks the end of a list at some legacy servers."""
    cursor = page.get("nextCursor")
    return isinstance(cursor, str) and (cursor != "" or "resultType" in page)


def next_cursor(more: Mapping[str, str]) -> str | None:
    """Return one cursor that contains `more`, the next-page cursors of several upstreams by name. Return None if there
    are none. Leave out upstreams with which the cursor would become too long for a request."""
    fitting: dict[str, str] = {}
    for upstream, cursor in more.items():
        if len(_cursor(fitting | {upstream: cursor})) <= _MOST_CURSOR_CHARS:
            fitting[upstream] = cursor
    return _cursor(fitting) if fitting else None


def _cursor(more: Mapping[str, str]) -> str:
    return base64.urlsafe_b64encode(encode(more)).decode()


def cursor_of(params: Object, known: Collection[str]) -> dict[str, str] | None:
    """Return the cursors that a request's combined cursor contains, by upstream (at least one). Return None if the
    request has no cursor, because it asks for the first page. `known` has the names of the upstreams that a cursor may
    contain.

    Raises:
        Refused: `next_cursor` has not made the cursor, or it has an upstream that is not in `known`.
    """
    if "cursor" not in params:
        return None
    try:
        text = msgspec.json.decode(params["cursor"], type=str)
        more = msgspec.json.decode(base64.urlsafe_b64decode(text), type=dict[str, str])
    except (msgspec.MsgspecError, ValueError):
        more = {}
    if not more or not more.keys() <= {*known}:
        raise Refused(200, INVALID_PARAMS, "Invalid cursor", reason="invalid_cursor")
    return more
