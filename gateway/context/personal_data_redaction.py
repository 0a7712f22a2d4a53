"""Redact personal data in text: e-mail addresses, telephone numbers, numbers of payment cards. Pure.

Data is found by its form alone, so other text may be redacted, and some personal data missed. So it is off by default
(`session.scrub_metadata`).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import re2

from gateway.config.sessions import PersonalData
from session_store.redaction import REDACTED

# ISO/IEC 7812: 13 to 19 digits, of which the first is 2 to 6 for cards that pay.
_LEAST_DIGITS: Final = 13
_MOST_DIGITS: Final = 19
_FIRST_DIGITS: Final = "23456"
_GROUP: Final = re.compile("[0-9]+")

_EMAIL: Final = r"[\pL\pN._%+'\-]+@[\pL\pN\-]+(?:\.[\pL\pN\-]+)+"
# Groups of digits. `_without_cards` finds the card's among them: other numbers may stand right before it.
_DIGITS: Final = r"\b[0-9](?:[ \-]?[0-9])*\b"
# ITU-T E.164 with its prefix, however it is written, and the usual forms of North America.
_PHONE: Final = (
    r"(?:\+|\b00)[1-9](?:[ .\-/()]{0,3}[0-9]){6,14}\b"
    r"|(?:\([2-9][0-9]{2}\) ?|\b[2-9][0-9]{2}[ .\-])[2-9][0-9]{2}[ .\-][0-9]{4}\b"
)


def _without_cards(found: Any) -> str:
    """Return groups of digits with card numbers redacted. If two possible card numbers overlap, redact both."""
    text, kept, at = str(found.group(0)), list[str](), 0
    for begin, end in _cards(text):
        if begin >= at:
            kept += (text[at:begin], REDACTED)
        at = max(at, end)
    return "".join((*kept, text[at:]))


def _cards(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each card number: whole groups of digits with a valid check digit (ISO/IEC 7812-1,
    Luhn). Other long numbers rarely pass this check."""
    groups = [(group.start(), group[0]) for group in _GROUP.finditer(text)]
    for first, (begin, group) in enumerate(groups):
        if group[0] not in _FIRST_DIGITS:
            continue
        length = plain = doubled = 0  # the sums of the digits with the last one as it is, and doubled
        for start, digits in groups[first : first + _MOST_DIGITS]:
            if (length := length + len(digits)) > _MOST_DIGITS:
                break
            for digit in map(int, digits):
                plain, doubled = doubled + digit, plain + sum(divmod(2 * digit, 10))
            if length >= _LEAST_DIGITS and plain % 10 == 0:
                yield begin, start + len(digits)


# In this order: a card's number may look like a telephone's.
_KINDS: Final[Mapping[PersonalData, tuple[Any, Any]]] = {
    "email": (re2.compile(_EMAIL), REDACTED),
    "card": (re2.compile(_DIGITS), _without_cards),
    "phone": (re2.compile(_PHONE), REDACTED),
}


def scrubber(kinds: Collection[PersonalData]) -> Callable[[str], str]:
    """Return a function that redacts these kinds of personal data in a text."""
    wanted = [rule for kind, rule in _KINDS.items() if kind in kinds]

    def scrub(text: str) -> str:
        for pattern, replacement in wanted:
            text = pattern.sub(replacement, text)
        return text

    return scrub
