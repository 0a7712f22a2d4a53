"""Redact credentials in metadata, in program output and in any text, by their names and forms. Pure."""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import re2

REDACTED: Final = "[redacted]"
_BEHIND_CUT: Final = 2_000
"""Number of characters beyond the cut of a text that are also searched, so that a credential which begins before the
cut is recognized."""
_LEAST_SECRET: Final = 6
"""The fewest characters of a known value that is redacted. Shorter values occur inside many words."""

_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|[-_.]pwd$|secret|credential|(api|private|access|signing)[-_.]?key|token$|authorization|cookie|session[-_.]?id",
    re.IGNORECASE,
)
_HARMLESS: Final = frozenset({"progressToken"})
# Also what is often no credential, such as `max_tokens`. Words are separated first: `pin` is no part of `shipping`.
_DOUBTFUL_NAME = re.compile(
    r"passw|pass[-_. ]?(phrase|code|key)|pwd|secret|token|jwt|credential|cookie|bearer|auth(?!or(?!i))"
    r"|(api|private|access|signing|encryption|ssh)[-_. ]?key|session[-_. ]?id"
    r"|(?<![a-z])(pass|pins?|t?otps?|creds?)(?![a-z])",
    re.IGNORECASE,
)
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# A name with `=` or `:`, and a value: JSON, JSON inside JSON, a form or a variable inside a text. Names are bounded and
# no value that has begun can fail, so that time is linear.
_NAME: Final = re.compile(r"""(?<![\w.-])([\w.-]{1,64})\\?["']?\s{0,4}[=:]\s{0,4}""")
# The same, or an option and its value: in a command line, or in a list of JSON.
_ARGUMENT_NAME: Final = re.compile(
    r"""(?<![\w.-])(?:((?:(?:api|access|private) )?[\w.-]{1,64})\\?["']?\s{0,4}[=:]\s{0,4}"""
    r"""|(--?\w[\w.-]{0,63})(?:\\?["']?,\s{0,4}|\s{1,4}))""",
    re.IGNORECASE,
)
_VALUE: Final = re.compile(r""""(?:[^"\\]|\\[\s\S])*"?|\\"(?:[^"\\]|\\(?!"))*(?:\\")?|'[^']*'?|[^\s,;&}\])]+""")
_GIVEN = re.compile(r"([\w.-]+)\s*[=:]")
# The characters of Python's `\s`. RE2's `\s` is ASCII only, so a no-break space could hide a credential.
_SPACE: Final = "[\\s\x0b\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
# A JWT, a bearer or basic credential, a PEM block, a URL with a password in it, keys of well-known services. Crashing
# servers choose the texts: with an expression that takes 0.6 ms for a line, they could block all sessions.
_SECRET_VALUE: Final = re2.compile(
    r"(?i)\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    rf"|\b(?:bearer|basic){_SPACE}+[\w.~+/-]{{8,}}=*"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[\w+/=\s]|\\[nr])*(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
    r"|\b[a-z][a-z0-9+.-]{0,30}://[^/\s:@]*:[^/\s@]+@"
    r"|\b(?:sk-|sk_live_|gh[pousr]_|xox[abprs]-|AKIA|glpat-|github_pat_|AIza|ya29\.|hvs\.)[\w-]{12,}"
    r"|\bnpm_[a-z0-9]{30,}"
)


def scrubbed(metadata: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the metadata with credentials redacted, which are recognized by their name or by their form."""
    # A name inside the value does not count: `api-key:alice` is a principal.
    return {
        name: None if value is None else REDACTED if is_secret_name(name) else _without_forms(value)
        for name, value in metadata.items()
    }


def is_secret_name(name: str) -> bool:
    """Return True if the name says that its value is a credential."""
    return name not in _HARMLESS and _SECRET_NAME.search(name) is not None


def may_be_secret_name(name: str) -> bool:
    """Return True if a value with this name may be a credential. This is also true of some harmless names, so it is
    meant for data that is kept for long."""
    return name not in _HARMLESS and _DOUBTFUL_NAME.search(_WORD_BEGINS.sub("_", name)) is not None


def scrubbed_text(text: str) -> str:
    """Return the text with credentials redacted: those of a known form, and values that follow the name of a
    credential, as in `db_password=…`. A lone surrogate becomes `?`."""
    return _without_assigned(_without_forms(text))


def scrubbed_argument(text: str) -> str:
    """Return an argument of a call with credentials redacted. Redacts more than `scrubbed_text`: after all names that
    `may_be_secret_name` accepts, and after options such as `--password …`."""
    return _without_assigned(_without_forms(text), _ARGUMENT_NAME, may_be_secret_name)


def _without_forms(text: str) -> str:
    try:
        return str(_SECRET_VALUE.sub(REDACTED, text))
    except UnicodeEncodeError:
        return str(_SECRET_VALUE.sub(REDACTED, text.encode("utf-8", "replace").decode("utf-8")))


def _without_assigned(
    text: str, names: re.Pattern[str] = _NAME, is_secret: Callable[[str], bool] = is_secret_name
) -> str:
    """Return the text with the values redacted that follow the names of credentials, also within the value of another
    name: `error: password=x` becomes `error: password=[redacted]`. `names` finds what may be a name, and `is_secret`
    decides."""
    parts, at = list[str](), 0
    for found in names.finditer(text):
        if found.start() < at or not is_secret(found[found.lastindex or 0]):
            continue
        value = _VALUE.match(text, found.end())
        if value is not None and not value[0].startswith(REDACTED[:-1]):
            parts += (text[at : found.end()], REDACTED)
            at = value.end()
    return "".join((*parts, text[at:])) if parts else text


def scrubbed_start(text: str, length: int) -> str:
    """Return the first `length` characters of `scrubbed_text(text)`, without scanning a long text to its end. Cutting
    the text first could hide a credential: a URL's password is not recognized if the `@` after it is cut off."""
    return scrubbed_text(text[: length + _BEHIND_CUT])[:length]


def secret_values(environment: Mapping[str, str]) -> set[str]:
    """Return the values of those environment variables whose names say that they are secret."""
    return {value for name, value in environment.items() if _SECRET_NAME.search(name)}


def secret_arguments(arguments: Sequence[str]) -> set[str]:
    """Return the secret values in a command line, recognized by name: `--token VALUE`, `--token=VALUE`, `Name: VALUE`,
    and parameters of URLs. For `Authorization: Bearer VALUE`, the last word is also in the result on its own."""
    found: set[str] = set()
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        if argument.startswith("-") and _SECRET_NAME.search(argument):
            found.add(following)
        for given in _GIVEN.finditer(argument):
            if _SECRET_NAME.search(given[1]):
                value = argument[given.end() :].partition("&")[0].strip()
                found |= {value, value.rpartition(" ")[2]}
    return found


def output_scrubber(
    secret_names: Collection[str], environment: Mapping[str, str], *, secrets: Collection[str] = ()
) -> Callable[[str], str]:
    """Return a function that redacts a program's output: the `secrets`, texts with the form of a credential, and values
    of environment variables whose name is in `secret_names` or says that they are secret."""
    values = {v for n, v in environment.items() if n in secret_names} | secret_values(environment) | {*secrets}
    known = values_to_redact(values)
    return lambda text: scrubbed_text(without_values(text, known))


def values_to_redact(values: Iterable[str]) -> list[str]:
    """Return those of the values that have at least 6 characters, the longest first, as `without_values` needs them."""
    return sorted({value for value in values if len(value) >= _LEAST_SECRET}, key=len, reverse=True)


def without_values(text: str, values: Sequence[str]) -> str:
    """Return the text with these values redacted. A value that contains another one must come first in `values`."""
    for value in values:
        text = text.replace(value, REDACTED)
    return text
