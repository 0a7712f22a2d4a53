"""Tells random keys from those that are made of words, numbers, repetitions and sequences. Pure.

A key is compared by two likelihoods: that of the text as a person writes one, and that of random text. Of keys that are
random, at most one in 2^b is 2^b times likelier as written text, whatever the model of written text is (Markov's
inequality): so the model below needs no precision, and can refuse hardly any random key.
"""

import functools
import itertools
import math
from typing import Final

__all__ = ["written_bits"]

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_OTHERS: Final = "-_+/="
# Of a hundred thousand letters of English text.
_FREQUENCIES: Final = dict(
    zip(
        _LETTERS,
        map(
            int,
            "8167 1492 2782 4253 12702 2228 2015 6094 6966 153 772 4025 2406 "
            "6749 7507 1929 95 5987 6327 9056 2758 978 2360 150 1974 74".split(),
        ),
        strict=True,
    )
)
_ALL: Final = sum(_FREQUENCIES.values())
# The letters that mostly follow each letter within a word.
_FOLLOWERS: Final = dict(
    zip(
        _LETTERS,
        "ntlrscdm elaourys ohektari eiasorul rsndaltcm oireafut ehraiouls eaioturn nstcolegr uoae eisnlay eilaosdy "
        "eaoipusb gtdeoscai nrumflwst eroalpiuh u eaiotsydn teisohuac hoeirasu rnsltpcm eiao aieohn ptiec sotemi "
        "eaioz".split(),
        strict=True,
    )
)
# How a text goes on after a character of each kind: with a small letter, a capital, a digit, or another character.
_KINDS: Final = {
    "small": (0.81, 0.11, 0.04, 0.04),
    "capital": (0.90, 0.06, 0.02, 0.02),
    "digit": (0.12, 0.10, 0.66, 0.12),
    "other": (0.45, 0.25, 0.25, 0.05),
}
_ALIKE: Final = 0.02
"""The share of a character that repeats the one before it, and of either of its neighbours."""
_FOLLOWS: Final = 0.75


def written_bits(text: str) -> float:
    """How unlikely a text is as one that a person writes: the binary logarithm of one in so many. `text` consists of
    the characters of base64 and base64url; without small letters, its capitals are taken as such."""
    if not any(map(str.islower, text)):
        text = text.lower()
    bits = -math.log2(_share("-", text[:1])) if text else 0.0
    return bits - sum(math.log2(_share(before, after)) for before, after in itertools.pairwise(text))


@functools.cache  # by two characters of seventy
def _share(before: str, after: str) -> float:
    """The probability of a character behind another one. The sum over all characters is at most 1."""
    is_alike = abs(ord(before) - ord(after)) <= 1
    small, capital, digit, other = _KINDS[_kind(before)]
    share = {
        "small": small * _letter(before.lower(), after),
        "capital": capital * _letter(before.lower() if before.isupper() else "", after.lower()),
        "digit": digit / 10,
        "other": other / len(_OTHERS),
    }[_kind(after)]
    return _ALIKE * is_alike + (1 - 3 * _ALIKE) * share


def _letter(before: str, after: str) -> float:
    alone = _FREQUENCIES.get(after, 0) / _ALL
    if (followers := _FOLLOWERS.get(before)) is None:
        return alone
    return _FOLLOWS / len(followers) * (after in followers) + (1 - _FOLLOWS) * alone


def _kind(character: str) -> str:
    if character.isdigit():
        return "digit"
    return "small" if character.islower() else "capital" if character.isupper() else "other"
