"""Redacts personal data in text: e-mail addresses, telephone numbers, numbers of payment cards. Pure.

Found by their form alone, so an operator has to ask for it (`session.scrub_metadata`): a form says neither that text is
personal nor that it is not.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import re2

from gateway.config.sessions import PersonalData

__all__ = ["scrubber"]

REDACTED: Final = "[redacted]"

_EMAIL: Final = r"[\pL\pN._%+'\-]+@[\pL\pN\-]+(?:\.[\pL\pN\-]+)+"
# ISO/IEC 7812: 13 to 19 digits, of which the first is 2 to 6 for cards that pay.
_CARD: Final = r"\b[2-6](?:[ \-]?[0-9]){12,18}\b"
# ITU-T E.164 with its prefix, however it is written, and the usual forms of North America.
_PHONE: Final = (
    r"(?:\+|\b00)[1-9](?:[ .\-/()]{0,3}[0-9]){6,14}\b"
    r"|(?:\([2-9][0-9]{2}\) ?|\b[2-9][0-9]{2}[ .\-])[2-9][0-9]{2}[ .\-][0-9]{4}\b"
)


def _card(found: Any) -> str:
    text = str(found.group(0))
    return REDACTED if _has_check_digit([int(char) for char in text if char.isdigit()]) else text


def _has_check_digit(digits: list[int]) -> bool:
    """Whether the last digit checks the others (ISO/IEC 7812-1, Luhn): other long numbers seldom have it."""
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(digits[::-2]) + sum(doubled)) % 10 == 0


# In this order: a card's number may look like a telephone's.
_KINDS: Final[Mapping[PersonalData, tuple[Any, Any]]] = {
    "email": (re2.compile(_EMAIL), REDACTED),
    "card": (re2.compile(_CARD), _card),
    "phone": (re2.compile(_PHONE), REDACTED),
}


def scrubber(kinds: Collection[PersonalData]) -> Callable[[str], str]:
    """A function that redacts these kinds of personal data in a text."""
    wanted = [rule for kind, rule in _KINDS.items() if kind in kinds]

    def scrub(text: str) -> str:
        for pattern, replacement in wanted:
            text = pattern.sub(replacement, text)
        return text

    return scrub
