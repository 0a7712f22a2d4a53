"""Escape control characters in text of clients and servers, so that it cannot control a terminal. Pure: no I/O."""

import json
from typing import Any, Final

MOST_INDENTED: Final = 100

# Control characters (Cc), format characters that reorder text (Cf, without the joiners of scripts and emoji), line and
# paragraph separators (Zl, Zp), and surrogates (Cs), which no encoding can write.
_POINTS: Final = (
    *(*range(0x20), *range(0x7F, 0xA0), 0xAD, *range(0x600, 0x606), 0x61C, 0x180E, 0x200B, 0x200E, 0x200F),
    *(
        *range(0x2028, 0x202F),
        *range(0x2060, 0x2070),
        *range(0xD800, 0xE000),
        0xFEFF,
        *range(0xFFF9, 0xFFFC),
        *range(0xE0000, 0xE0080),
    ),
)


def _utf_16(character: str) -> list[int]:
    data = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


_LINE: Final = {
    point: f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
    for point in _POINTS
}
_TEXT: Final = {point: escape for point, escape in _LINE.items() if chr(point) not in "\t\n"}
_JSON: Final = {point: "".join(f"\\u{unit:04x}" for unit in _utf_16(chr(point))) for point in _POINTS if point >= 0x7F}


def visible(text: str) -> str:
    """Replace control characters with readable escapes. Keep line breaks and tabs."""
    return text.translate(_TEXT)


def visible_line(text: str) -> str:
    """Replace control characters with readable escapes, including line breaks and tabs. Return one line."""
    return text.translate(_LINE)


def shortened_line(text: str, length: int) -> str:
    """Return one line with escaped control characters, cut at `length` characters.

    The text is cut before it is escaped, to save time, and again afterwards: an escape has up to ten characters.
    """
    return visible_line(text[:length])[:length]


def as_json(value: Any, indent: int | None = None) -> str:
    """Encode a value as JSON with escaped control characters. A value with more than `MOST_INDENTED` levels is not
    indented, because the length of the text would grow with the square of the levels."""
    if indent is not None and _is_deeper(value, MOST_INDENTED):
        indent = None
    return visible_json(json.dumps(value, indent=indent, ensure_ascii=False))


def _is_deeper(value: Any, most: int) -> bool:
    """Return True if a value has more than `most` levels of arrays and objects."""
    level = [value]
    for _ in range(most + 1):
        level = [each for each in level if isinstance(each, dict | list | tuple)]
        if not level:
            return False
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return True


def visible_json(text: str) -> str:
    """Replace control characters in a JSON text with JSON's own escapes. Keep line breaks between values."""
    return text.translate(_JSON)
