"""The forms in which servers may read a URI, and whether a URI matches a template (RFC 6570). Pure."""

import functools
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

import re2

from gateway.protocol.normal_form import TooManyMarks, normal

__all__ = ["closeness", "forms", "is_of", "is_of_any", "template_fit", "with_plain_host"]

_MAX_DECODINGS: Final = 4
"""How often percent-encoding is decoded. A URI that needs more is refused."""
_CACHED, _MEMORY = 256, 256 << 10
"""How many compiled templates are cached, and the most bytes that one of them may take."""
_MOST_WORK: Final = 2_000_000
"""Characters of a URI times the template expressions that are matched with it: some 0.1 s. It is enough for 4,000
templates with two expressions each and a URI of 150 characters."""
_COMPILING: Final = 2
"""The work of compiling one character of a template."""
_SEGMENT: Final = re.compile(r"^[^:/]*:/*|[^/]*/")
_COMPARED: Final = 256
"""The characters at the beginning of a URI by which it is compared with others."""
_SAME: Final = 1 << 30
_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
_ONE: Final = {"": r"[^/?#]*", ".": r"[^/?#]*", ";": r"[^/?#]*"}


def forms(uri: str) -> tuple[str, ...] | None:
    """A URI as it is written and, if that differs, in its normal form: percent-encoding decoded, dot segments and
    double slashes removed, text in NFKC. None if the URI is encoded too often, or a character has too many marks."""
    plain = uri
    for _ in range(_MAX_DECODINGS):
        try:
            decoded = normal(unquote(plain))
        except TooManyMarks:
            return None
        if decoded == plain:
            break
        plain = decoded
    else:
        return None
    scheme, separator, rest = plain.partition("://")
    if separator:
        host, slash, path = rest.replace("\\", "/").partition("/")
        plain = f"{scheme}://{host}{slash}{_without_dots(path)}"
    return (uri,) if plain == uri else (uri, plain)


def with_plain_host(uri: str) -> str:
    """A URI with scheme and host in lower case (RFC 3986, 6.2.2.1)."""
    scheme, separator, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}{separator}{host.lower()}{slash}{path}" if separator else uri


def _without_dots(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in (".", ""):
            parts.append(part)
    return "/".join(parts) + ("/" if path.endswith("/") and parts else "")


def is_of(uri: str, template: str) -> bool:
    """Whether a URI matches a template (RFC 6570)."""
    try:
        return _expression(template).fullmatch(uri.encode("utf-8", "replace")) is not None
    except re2.error:  # the compiled template is larger than `_MEMORY`
        return False


def is_of_any(uri: str, templates: Iterable[str]) -> bool:
    """Whether a URI matches one of the templates. False if the search would take too long: servers choose how many
    templates there are, and how many expressions each has."""
    work = 0
    for template in templates:
        work += len(uri) * (1 + template.count("{")) + _COMPILING * len(template)
        if work > _MOST_WORK:
            return False
        if template == uri or is_of(uri, template):
            return True
    return False


def template_fit(uri: str, templates: Iterable[str]) -> int:
    """How well the best of these templates fits a URI: the longer its fixed beginning, the better; a template that is
    itself the URI is best. 0 if the URI matches none, or if the search would take too long (`is_of_any`)."""
    closest_first = sorted(templates, key=lambda template: (-len(template.partition("{")[0]), template))
    fits = (template for template in closest_first if uri.startswith(template.partition("{")[0]))
    work = 0
    for template in fits:
        work += len(uri) * (1 + template.count("{")) + _COMPILING * len(template)
        if work > _MOST_WORK:
            return 0
        if template == uri:
            return _SAME
        if is_of(uri, template):
            return 1 + len(template.partition("{")[0])
    return 0


def closeness(uri: str, others: Iterable[str]) -> int:
    """How much of a URI the closest of the others shares, in whole segments: the number of characters. 0: nothing."""
    cuts = [match.end() for match in _SEGMENT.finditer(uri, 0, _COMPARED)]
    others = tuple(others)
    for cut in reversed(cuts):
        beginning = uri[:cut]
        if any(other.startswith(beginning) for other in others):
            return cut
    return 0


@functools.lru_cache(maxsize=_CACHED)  # keys are templates that servers list
def _expression(template: str) -> Any:
    pieces, at = [], 0
    for found in _EXPRESSION.finditer(template):
        pieces += [re2.escape(template[at : found.start()]), _ONE.get(found[1], ".*")]
        at = found.end()
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    return re2.compile(("(?s)" + "".join(pieces) + re2.escape(template[at:])).encode("utf-8", "replace"), options)
