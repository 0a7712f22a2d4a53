"""Finds the name that was meant by one that is unknown. Pure."""

import difflib
import re
from collections.abc import Iterable
from typing import Final

__all__ = ["did_you_mean", "meant"]

_CUTOFF: Final = 0.8
"""`arg` and `args`, `gatway` and `gateway` are more alike than this; `tags` and `args` are not. Names with the same
letters (`prot`) count as well."""
_WORDS: Final = {"arguments": "args", "cmd": "command", "uri": "url"}
"""Other words for the same thing, which are not alike."""


def meant(name: str, known: Iterable[str], *, cutoff: float = _CUTOFF) -> str:
    """The known name that resembles an unknown one most; an empty string if none does."""
    folded: dict[str, str] = {}
    for each in known:
        folded.setdefault(_folded(each), each)  # the first of names that differ in case and separators only
    if _WORDS.get(name.lower(), "") in folded:
        return folded[_WORDS[name.lower()]]
    swapped = [each for each in folded if sorted(each) == sorted(_folded(name))]
    found = swapped or difflib.get_close_matches(_folded(name), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found and name else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: a suggestion, or an empty string."""
    found = meant(name, known)
    return f"; did you mean {found}?" if found else ""


def _folded(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()
