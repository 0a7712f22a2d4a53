"""What a page shows of the result of a tool. Pure.

Results come from servers, and are not trusted: texts are cut and cannot steer the page, images are of few known types,
and everything else is shown as JSON.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from gateway.observability.visible import as_json, visible

__all__ = ["parts_of"]

MOST_CHARS: Final = 100_000
MOST_PARTS: Final = 50
_IMAGES: Final = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""Types of images that a browser draws without executing anything, and how such a file begins."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a result. An `image` has a `data:` URL in `source`, and no `text`. `note` says what was left out.
    `is_aside`: it is not what the tool answers, but beside it."""

    kind: Literal["text", "image", "json"]
    title: str = ""
    text: str = ""
    source: str = ""
    note: str = ""
    is_aside: bool = False


def parts_of(result: Any) -> list[Part]:
    """Return the content of a result, its structured content, and its `_meta`."""
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
    """Return an image, if its type is known and its bytes are of that type."""
    title = f"Image, {visible(kind[:100])}, {len(data) * 3 // 4:,} bytes"
    try:
        head = base64.b64decode(data[:64], validate=True)
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return Part(kind="text", title=title, note="It is no base64.")
    if kind not in _IMAGES:
        return Part(kind="text", title=title, note=f"Only {', '.join(sorted(_IMAGES))} are shown.")
    if not head.startswith(_IMAGES[kind]):
        return Part(kind="text", title=title, note="Its bytes are not of that type.")
    return Part(kind="image", title=title, source=f"data:{kind};base64,{data}")


def _text(title: str, text: str) -> Part:
    note = "" if len(text) <= MOST_CHARS else f"The first {MOST_CHARS:,} of {len(text):,} characters."
    return Part(kind="text", title=title, text=visible(text[:MOST_CHARS]), note=note)


def _json(title: str, value: Any) -> Part:
    try:
        text = as_json(value, indent=2)
    except (RecursionError, ValueError):
        return Part(kind="text", title=title, note="It is nested too deeply to be shown.")
    note = "" if len(text) <= MOST_CHARS else f"The first {MOST_CHARS:,} of {len(text):,} characters."
    return Part(kind="json", title=title, text=text[:MOST_CHARS], note=note)
