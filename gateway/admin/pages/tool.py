"""Show one tool: its description by the server, a form that calls it, and the result."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from gateway.admin.operator_tool_calls import body_of, left
from gateway.admin.pages.page import ConsolePage
from gateway.admin.pages.schema_forms import JSON_CONTROL, PREFIX, Form, FormFaults, arguments_in, form_of
from gateway.admin.query_types import OperatorError
from gateway.admin.report_types import Attempt, ToolRow, TriedCall
from gateway.admin.verb_handlers import Operations
from gateway.observability.escaped_text import as_json, visible
from transports.inbound.http_requests_and_responses import peer_of

MOST_CHARS: Final = 100_000
MOST_PARTS: Final = 50
_IMAGES: Final = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""The image types that browsers draw without executing code, each with the first bytes of its files."""

_MOST_CONTROLS: Final = 200
_MOST_SCHEMA: Final = 100_000
_OUTCOMES: Final = {
    "ok": ("good", "Answered"),
    "tool_error": ("bad", "The tool reports an error"),
    "error": ("bad", "Refused, or failed"),
    "asks": ("warn", "The tool asks its user"),
    "timeout": ("bad", "No answer"),
    "too_large": ("warn", "Too large to be shown"),
    "unreadable": ("bad", "Not readable"),
}


async def _facts(operators: Operations, request: Request) -> dict[str, Any]:
    query = request.query_params
    tool = operators.tried.catalog.tool(request.path_params["server"], query.get("name", ""))
    values = {"session": query.get("session", "")}
    return await _shown(operators, tool, form_of(tool.input_schema), values, in_json="json" in query)


async def _try(operators: Operations, request: Request, operator: str) -> dict[str, Any]:
    given = await _controls(request)
    tool = operators.tried.catalog.tool(request.path_params["server"], given.get("name", ""))
    form = form_of(tool.input_schema)
    try:
        arguments = arguments_in(form, given)
    except FormFaults as error:
        return await _shown(operators, tool, form, given, faults=error.faults)
    attempt = Attempt(
        server=tool.server,
        tool=tool.name,
        arguments={name: msgspec.Raw(json.dumps(value).encode()) for name, value in arguments.items()},
        session=given.get("session", "").strip(),
        keep="keep" in given,
    )
    try:
        tried = await operators.tried.call(attempt, operator, peer=peer_of(request.scope), left=left(request))
    except OperatorError as error:
        return await _shown(operators, tool, form, given, problem=str(error))
    return await _shown(operators, tool, form, given, tried=tried)


async def _controls(request: Request) -> dict[str, str]:
    """Return the texts in the submitted form, by control. Raises `OperatorError` if the form is invalid or repeats a
    control."""
    try:
        pairs = parse_qsl(
            (await body_of(request)).decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_CONTROLS
        )
    except ValueError as error:
        raise OperatorError(f"the form cannot be read: {error}") from None
    if len(dict(pairs)) < len(pairs):
        raise OperatorError("the form cannot be read: one control stands in it twice")
    return dict(pairs)


async def _shown(
    operators: Operations, tool: ToolRow, form: Form, values: Mapping[str, str], **found: Any
) -> dict[str, Any]:
    """Return the variables of the page's template. `values`: the texts of the form's controls, by name. `found`: what a
    submitted form has led to (`faults` in its values, a `problem` as text, or `tried`, the outcome of the call); or
    `in_json`, True for a form that takes the arguments as JSON."""
    tried: TriedCall | None = found.get("tried")
    secret = {field.control for field in form.fields or () if field.kind == "password"}
    in_json = found.get("in_json", JSON_CONTROL in values) or form.fields is None
    outcome = _OUTCOMES["ok"] if tried is None else _OUTCOMES[tried.outcome]
    session = values.get("session", "")
    return {
        "tool": tool,
        "unapproved": await operators.tried.catalog.unapproved(tool.server, tool.name),
        "schemas": [
            (title, visible(as_json(schema, indent=2)[:_MOST_SCHEMA]))
            for title, schema in (("Input schema", tool.input_schema), ("Output schema", tool.output_schema))
            if schema is not None
        ],
        "form": form,
        "in_json": in_json,
        "values": {name: value for name, value in values.items() if name not in secret},
        "faults": found.get("faults", {}),
        "problem": found.get("problem", ""),
        "where": operators.tried.where,
        "session": tried.session if tried is not None and tried.kept else session,
        "keep": "keep" in values,
        "tried": tried,
        "tone": outcome[0],
        "outcome": outcome[1],
        "parts": [] if tried is None else parts_of(tried.result) if tried.result is not None else [],
        "error": "" if tried is None or tried.error is None else as_json(tried.error, indent=2)[:_MOST_SCHEMA],
        "messages": [] if tried is None else [visible(text) for text in (*tried.asked, *tried.messages)],
        "prefix": PREFIX,
        "json_control": JSON_CONTROL,
    }


# What is shown of a result. Results come from servers, and are not trusted: texts are cut and cannot steer the page,
# images are of few known types, and everything else is shown as JSON.


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a tool's result, as the page shows it."""

    kind: Literal["text", "image", "json"]
    title: str = ""
    text: str = ""
    """The text of the part; empty for an image."""
    source: str = ""
    """The `data:` URL of an image."""
    note: str = ""
    """What of the part is not shown, or why; empty if all of it is shown."""
    is_aside: bool = False
    """True for fields of the result other than content and structured content."""


def parts_of(result: Any) -> list[Part]:
    """Return a tool's result in parts: its content, its structured content, and its other fields."""
    if not isinstance(result, dict):
        return [_json("Result", result)]
    content = result.get("content")
    items = content if isinstance(content, list) else []
    parts = [_part(item) for item in items[:MOST_PARTS]]
    if len(items) > MOST_PARTS:
        parts.append(Part(kind="text", note=f"{len(items) - MOST_PARTS} more parts are not shown."))
    return [*parts, *_rest(result)]


def _rest(result: dict[str, Any]) -> Iterator[Part]:
    if "structuredContent" in result:
        yield _json("Structured content", result["structuredContent"])
    known = {"content", "structuredContent", "isError", "resultType"}
    if rest := {name: value for name, value in result.items() if name not in known}:
        yield msgspec.structs.replace(_json("Other fields of the result", rest), is_aside=True)


def _part(item: Any) -> Part:
    match item:
        case {"type": "text", "text": str(text)}:
            return _text("Text", text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return _image(data, kind)
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            return _text(f"Resource {visible(uri[:300])}", text)
    return _json("Part", item)


def _image(data: str, kind: str) -> Part:
    """Return an image in a tool's result as a part. `data` is its Base64 text, `kind` its media type. If that type is
    not supported, or the bytes are of another type, the part is a note without the image."""
    title = f"Image, {visible(kind[:100])}, {len(data) * 3 // 4:,} bytes"
    try:
        head = base64.b64decode(data[:64], validate=True)
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return Part(kind="text", title=title, note="It is not base64.")
    if kind not in _IMAGES:
        return Part(kind="text", title=title, note=f"Only {', '.join(sorted(_IMAGES))} are shown.")
    if not head.startswith(_IMAGES[kind]):
        return Part(kind="text", title=title, note="Its bytes are not of that type.")
    return Part(kind="image", title=title, source=f"data:{kind};base64,{data}")


def _text(title: str, text: str, kind: Literal["text", "json"] = "text") -> Part:
    note = "" if len(text) <= MOST_CHARS else f"The first {MOST_CHARS:,} of {len(text):,} characters."
    return Part(kind=kind, title=title, text=visible(text[:MOST_CHARS]), note=note)


def _json(title: str, value: Any) -> Part:
    try:
        return _text(title, as_json(value, indent=2), "json")
    except (RecursionError, ValueError):
        return Part(kind="text", title=title, note="It is nested too deeply to be shown.")


PAGE: Final = ConsolePage(
    path="/admin/tools/{server}",
    facts=_facts,
    actions={"/admin/tools/{server}": _try},
    is_live=False,
    title="{{ tool.name }}",
    live='{% include "tool.html" %}',
)
