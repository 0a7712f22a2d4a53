"""Read session keys, the names that clients choose for their sessions, and estimate how hard they are to guess. Pure.

A key is bound to its principal. All anonymous clients are one principal, so whoever guesses the key of one gets its
session. Such a key must be as hard to guess as a session token.
"""

import functools
import hashlib
import itertools
import json
import math
import re
import string
from collections.abc import Sequence
from typing import Any, Final

from gateway.errors import bad_session_key
from session_store import Principal
from transports.inbound_port import Request

KEY_META: Final = "io.github.mcp-session-gateway/session-key"
MAX_KEY_CHARS: Final = 256
ANONYMOUS_BITS: Final = 128
"""Random bits that the key of an anonymous client must have: as many as a session id has."""

_MIN_DISTINCT: Final = 8
"""A key with fewer different characters than this is not random: random text of its length always has more."""

_WRITTEN: Final = 22
"""A key is refused if it is 2^22 times likelier that a person has written it than that it is random. About one random
key in 2 million is refused by mistake."""

_HEX: Final = frozenset(string.hexdigits)
_BASE32: Final = frozenset(string.ascii_uppercase + "234567")
_BASE32_SMALL: Final = frozenset(string.ascii_lowercase + "234567")
_BASE64: Final = frozenset(string.ascii_letters + string.digits + "-_+/=")
"""The characters of both forms of base64 (RFC 4648 §4, §5)."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_UNREPLACED = re.compile(r"\$\{[^}]*\}|\$\([^)]*\)|\{\{[^}]*\}\}|<[^>]*>|KEY")
"""Matches a placeholder that the user should have replaced in a client's configuration, such as `${NAME}` or the `KEY`
of the documentation. Only used for texts of up to 256 characters."""


def session_key(request: Request, headers: Sequence[str]) -> str | None:
    """Return the session key of a request, from the first of `headers` (lower case) that is present, else from `_meta`;
    None if the request has no key.

    Raises:
        Refused: 400, the value cannot be a key.
    """
    for name in headers:
        if (value := request.headers.get(name)) is not None:
            return checked_key(value if value.isascii() else _as_utf_8(value))
    value = request.meta.get(KEY_META)
    return None if value is None else checked_key(value)


def _as_utf_8(value: str) -> str:
    """Decode a header's text as UTF-8 if possible, so that a key is the same text in a header and in `_meta`."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def checked_key(key: Any) -> str:
    """Return `key`, which comes from a client or an environment variable, unchanged if it can be a session key.
    Otherwise raise the same error as `session_key`."""
    if not isinstance(key, str):
        raise bad_session_key("must be a string")
    if not key.strip():
        raise bad_session_key("is empty: leave it out, or give each client that is to have a session of its own a key")
    if len(key) > MAX_KEY_CHARS:
        raise bad_session_key(f"is longer than {MAX_KEY_CHARS} characters")
    if _UNREPLACED.fullmatch(key):
        raise bad_session_key("is a placeholder that the client's configuration has not replaced with a value")
    return key


@functools.lru_cache(maxsize=4_096)
def key_alias(key: str, principal: Principal, endpoint: str) -> str:
    """Return the alias under which the store finds the session that a principal's key names at an endpoint. The alias
    does not have the key itself, but its hash.

    Raises:
        Refused: 400, the key of an anonymous client could be guessed.
    """
    if principal.is_anonymous and (bits := estimated_bits(key)) < ANONYMOUS_BITS:
        raise bad_session_key(
            f"of a client without a credential must have {ANONYMOUS_BITS} random bits, because whoever guesses the "
            f"key gets the session, and this one has at most {bits:.0f}: use 32 random hex digits, as "
            "`openssl rand -hex 16` prints them, or 22 random characters of base64url"
        )
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return json.dumps(["key", principal.issuer, principal.subject, endpoint, digest])


def estimated_bits(key: str) -> float:
    """Return an upper bound on the random bits of a key, from its length and its apparent alphabet: 4 bits for a hex
    digit, 6 for a character of base64url. A key made of repetitions, sequences or words has 0.

    The estimate detects text that a person types; it cannot tell random text from text that looks random.
    """
    if (uuid := _UUID.fullmatch(key)) is not None and uuid[1] != "4":
        return 0.0  # made of a time or a name (RFC 9562 §5)
    text = key.rstrip("=")
    text = text[: (text + text).find(text, 1)]  # the shortest text whose repetition it is: itself, if nothing repeats
    digits = text.replace("-", "") if set(text) <= _HEX | {"-"} else text
    # In 32 random hex digits, up to half equal the digit before or are next to it.
    steps = [abs(ord(after) - ord(before)) for before, after in itertools.pairwise(digits)]
    if len(set(digits)) < _MIN_DISTINCT or 5 * sum(step <= 1 for step in steps) > 3 * len(steps):
        return 0.0
    bits = len(digits) * math.log2(_alphabet(digits))
    is_written = set(digits) <= _BASE64 and not set(digits) <= _HEX and written_bits(digits) < bits - _WRITTEN
    return 0.0 if is_written else bits


def _alphabet(text: str) -> int:
    """Return the size of the smallest alphabet (decimal, hex, base32, base64) with all characters of a text.

    Return 1 if there is none: addresses and phrases have spaces, dots or colons.
    """
    used = set(text)
    if used <= set(string.digits):
        return 10
    if used <= _HEX:
        return 16
    if used <= _BASE32 or used <= _BASE32_SMALL:
        return 32
    return 64 if used <= _BASE64 else 1


# Random keys are told from keys of words, numbers, repetitions and sequences by two likelihoods: that of the text as
# written by a person, and as random. Of random keys, at most one in 2^b is 2^b times likelier as written by a person,
# whatever the model of written text is (Markov's inequality). So the model below needs no precision, and refuses hardly
# any random key.

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_OTHERS: Final = "-_+/="
# How often each letter occurs in a hundred thousand letters of English text.
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
# The shares of what follows a character of each kind: a small letter, a capital, a digit, another character.
_KINDS: Final = {
    "small": (0.81, 0.11, 0.04, 0.04),
    "capital": (0.90, 0.06, 0.02, 0.02),
    "digit": (0.12, 0.10, 0.66, 0.12),
    "other": (0.45, 0.25, 0.25, 0.05),
}
_ALIKE: Final = 0.02
"""The probability that a person repeats the previous character. The model gives the same probability to the next letter
of the alphabet, and to the one before."""
_FOLLOWS: Final = 0.75


def written_bits(text: str) -> float:
    """Return -log2 of the probability of `text` under a model of text that people write. `text` has only characters of
    base64 or base64url. A text without small letters is first lowercased."""
    if not any(map(str.islower, text)):
        text = text.lower()
    bits = -math.log2(_share("-", text[:1])) if text else 0.0
    return bits - sum(math.log2(_share(before, after)) for before, after in itertools.pairwise(text))


@functools.cache  # at most for each pair of seventy characters
def _share(before: str, after: str) -> float:
    """Return the probability that the character `after` follows the character `before` in text that people write. For
    each `before`, the probabilities of all characters add up to at most 1."""
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
