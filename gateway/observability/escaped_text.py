"""Escape control characters in text of clients and servers, so that it cannot control a terminal. Pure: no I/O."""

import json
import unicodedata
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


_BLANKS: Final = frozenset((0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x1D159))
"""Characters that are drawn as nothing, or as a space, although their Unicode category does not say so: fillers,
joiners and blank patterns."""


def _is_unseen(character: str) -> bool:
    """Return True if a reader does not see a character, or cannot tell it from a space: control and format characters,
    tags, variation selectors, separators other than the space, blank letters, and points without a meaning."""
    point, category = ord(character), unicodedata.category(character)
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or (category == "Zs" and character != " "):
        return True
    is_selector = 0xFE00 <= point <= 0xFE0F or 0xE0100 <= point <= 0xE01EF or 0x180B <= point <= 0x180F
    return is_selector or point in _BLANKS


def revealed(text: str) -> str:
    """Replace every invisible character with a readable escape, for texts in which each character counts. Also emoji
    and scripts lose their joiners. Return one line."""
    return "".join(f"\\u{{{ord(each):x}}}" if _is_unseen(each) else each for each in text)


def revealed_lines(value: Any) -> list[str]:
    """Return a value as lines of indented JSON with sorted keys, `revealed`."""
    return [revealed(line) for line in _sorted_json(value).split("\n")]


def revealed_json(value: Any) -> str:
    """Return a value as indented JSON with sorted keys. What a reader does not see has JSON's own escapes."""
    return "".join(
        "".join(f"\\u{unit:04x}" for unit in _utf_16(each)) if each != "\n" and _is_unseen(each) else each
        for each in _sorted_json(value)
    )


def _sorted_json(value: Any) -> str:
    indent = None if _is_deeper(value, MOST_INDENTED) else 2
    return json.dumps(value, indent=indent, sort_keys=True, ensure_ascii=False)


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
