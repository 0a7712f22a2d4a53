"""A stdio server for tests of the console: tools with every kind of argument, and hostile results. Standard library."""

import base64
import json
import sys
import zlib
from typing import Any, Final

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support.stdio_server import Call, StdioServer, text


def _png() -> str:
    """A picture of one red point."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = (1).to_bytes(4, "big") * 2 + bytes((8, 2, 0, 0, 0))
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")), chunk(b"IEND", b""))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


SVG: Final = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>").decode()
SCRIPT: Final = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202etxet"
KINDS: Final[dict[str, Any]] = {
    "text": {"type": "string", "description": f"Any text. {SCRIPT}"},
    "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
    "share": {"type": "number"},
    "exact": {"type": "boolean"},
    "unit": {"enum": ["C", "F", 7, None]},
    "tags": {"type": "array", "items": {"type": "string"}},
    'odd "name" & <b>': {"type": "string"},
    "secret": {"type": "string", "format": "password"},
}
TOOLS: Final[list[dict[str, Any]]] = [
    {
        "name": "kinds",
        "title": "All kinds",
        "description": f"Repeats what it gets.\n{SCRIPT}",
        "inputSchema": {"type": "object", "properties": KINDS, "required": ["text", "count"]},
        "annotations": {"readOnlyHint": True},
    },
    {"name": "pictures", "description": "Draws.", "inputSchema": {"type": "object", "properties": {}}},
    {
        "name": "either",
        "description": "Has no form.",
        "inputSchema": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    },
    {"name": "<script>alert(3)</script>", "inputSchema": {"type": "object"}},
]


def called(call: Call) -> dict[str, Any]:
    if call.name != "pictures":
        return text(json.dumps(call.arguments, sort_keys=True))
    pictures = (
        ("image/png", _png()),
        ("image/svg+xml", SVG),
        ("image/png", SVG),
        ('image/png" onerror="alert(4)', _png()),
    )
    drawn = [{"type": "image", "mimeType": kind, "data": data} for kind, data in pictures]
    return {"content": [*drawn, *text(SCRIPT)["content"]]}


if __name__ == "__main__":
    StdioServer("h", {"tools/list": {"tools": TOOLS}, "tools/call": called}, {"tools": {}}, era="legacy").run()
