"""Search the arguments of a call for text that an operator has blocked, in every spelling of JSON and Unicode.

Pure. Every string is searched, keys and values, as the server reads it. It is searched again in its normal form: NFKC,
without invisible characters, and with every kind of space as U+0020. Numbers, `true` and `false` are searched as JSON
writes them, even if a string spells them: many servers read "3" as 3.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

from gateway.protocol.uris import TooManyMarks, normal

MOST_TEXTS: Final = 20_000
"""Maximum number of strings and numbers in one call. Searching this many takes 0.1 s."""
MOST_FOREIGN: Final = 128 << 10
"""Maximum number of characters in all non-ASCII strings of a call. NFKC of this many takes 0.1 s, at worst 0.5 s."""
_MOST_SPELLED: Final = 4_300
"""The longest string, in characters, that is also searched as the number it may spell: Python's limit for the digits of
an integer."""
_MOST_OF_NAME: Final = 64
"""Longest argument name, in characters, for which the search result is cached."""
_NAMES: Final = 1_024
_BEGINS: Final = frozenset("+-.0123456789tTfF")
_READS: Final[tuple[Callable[[str], float], ...]] = (int, float, functools.partial(int, base=0))
_EXPANDING: Final = (("\ufdfa", 18), ("\ufdfb", 8))
"""Characters that NFKC expands to more than four, and the number of characters that each becomes."""
_INVISIBLE: Final = (
    *((0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
    *((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF)),
    *((0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
"""The invisible characters, which are removed before the search: Default_Ignorable_Code_Point (Unicode,
DerivedCoreProperties)."""
_SPACES: Final = (0x0B, *range(0x1C, 0x20), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x3000)
"""Unicode's White_Space characters that the pattern engine RE2 does not count as space. They are replaced by U+0020
before the search."""
_PLAIN: Final[dict[int, str | None]] = {
    **{point: None for first, last in _INVISIBLE for point in range(first, last + 1)},
    **dict.fromkeys((*_SPACES, 0x205F), " "),
}


class TooMuchText(ValueError):
    """The search of the arguments would take too long. The message says why."""


def contains(arguments: Any, expressions: tuple[Any, ...]) -> bool:
    """Return True if one of the expressions (`gateway.config.patterns.expression`) matches a string, number or
    truth value in the arguments.

    Raises:
        TooMuchText: the search would take too long.
    """
    names, texts = _texts(arguments)
    for name in names:
        found = _in_name(name, expressions) if len(name) <= _MOST_OF_NAME else None
        if found:
            return True
        if found is None:
            texts.append(name)
    unusual = []
    for text in texts:
        if _matches(text, expressions):
            return True
        if not (text.isascii() and text.isprintable()):
            unusual.append(text)
    return bool(unusual) and any(_matches(text, expressions) for text in _normal_forms(unusual))


def _normal_forms(texts: list[str]) -> Iterator[str]:
    """Yield the normal form of each text that is not yet in its normal form. Raises `TooMuchText`."""
    left = MOST_FOREIGN
    for text in texts:
        plain = text
        if not text.isascii():
            left -= len(text) + sum(grown * text.count(character) for character, grown in _EXPANDING)
            if left < 0:
                raise TooMuchText(f"they have more than {MOST_FOREIGN >> 10} Ki characters that are not ASCII")
            try:
                plain = normal(text)
            except TooManyMarks as error:
                raise TooMuchText(str(error)) from None
        plain = plain.translate(_PLAIN)
        if plain != text:
            yield plain


def _matches(text: str, expressions: tuple[Any, ...]) -> bool:
    raw = text.encode("utf-8", "replace")
    for expression in expressions:
        if expression.search(raw) is not None:
            return True
    return False


@functools.lru_cache(maxsize=_NAMES)
def _in_name(name: str, expressions: tuple[Any, ...]) -> bool | None:
    """Return whether an expression matches the name of an argument. Return None if the name may have another normal
    form: the caller then has to search both. Cached, because all calls of a tool repeat the names of its arguments."""
    if name.isascii() and name.isprintable():
        return _matches(name, expressions)
    return None


def _texts(arguments: Any) -> tuple[list[str], list[str]]:
    """Return two lists: the names of all arguments and nested fields; and all strings, numbers and truth values, as
    text."""
    names: list[str] = []
    texts: list[str] = []
    waiting = [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts.append(value)
            plain = value.strip() if len(value) <= _MOST_SPELLED else ""
            if plain and (not plain.isascii() or plain[0] in _BEGINS):  # else no server reads a number or truth value
                texts.extend(_spelled(value, plain))
        elif isinstance(value, dict):
            names.extend(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, bool):
            texts.append("true" if value else "false")
        elif isinstance(value, int | float):
            texts.extend(_number(value))
        if len(names) + len(texts) > MOST_TEXTS:
            raise TooMuchText(f"they have more than {MOST_TEXTS} strings and numbers")
    return names, texts


def _number(value: float) -> Iterator[str]:
    """Yield the text of a number. For a float with an integer value, also yield the text of the integer."""
    if isinstance(value, int):
        yield _digits(value)
    else:
        yield repr(value)
        if value.is_integer():
            yield _digits(int(value))


def _spelled(text: str, plain: str) -> Iterator[str]:
    """Yield, as text, the number or truth value that a server may read from the string `text`; a number only if its
    text differs from `text`. `plain`: that string without spaces around it. The rules are Python's and JavaScript's,
    which accept more than JSON: spaces, signs, leading zeros, `1_000`, `0x10`, `True`."""
    if plain.lower() in ("true", "false"):
        yield plain.lower()
    for read in _READS:
        try:
            texts = list(_number(read(plain)))
        except (ValueError, OverflowError):
            continue
        yield from (each for each in texts if each != text)
        return


def _digits(number: int) -> str:
    try:
        return str(number)
    except ValueError:  # more digits than Python converts (sys.get_int_max_str_digits)
        raise TooMuchText("a number has too many digits") from None
