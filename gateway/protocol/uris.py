"""Which resource a URI means: in the forms that servers may read it in, and by which template. Pure."""

import functools
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

import re2

from gateway.protocol.normal_form import TooManyMarks, normal

__all__ = ["forms", "is_of", "is_of_any", "with_plain_host"]

_UNWRAPPED: Final = 4
_HELD, _MEMORY = 256, 256 << 10
"""Templates that are kept compiled, and the most that one of them may take."""
_MOST_WORK: Final = 2_000_000
"""About 0.1 s: characters of a URI times expressions that are tried on them. It is enough for 4,000 templates with two
expressions each and a URI of 150 characters."""
_COMPILING: Final = 2
_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
_ONE: Final = {"": r"[^/?#]*", ".": r"[^/?#]*", ";": r"[^/?#]*"}


def forms(uri: str) -> tuple[str, ...] | None:
    """A URI as it is written, and as it reads with percent-encoding undone, dots and doubled slashes followed, and
    lookalikes made plain. None for one that hides what it means: encoded over and over, or under heaps of marks."""
    plain = uri
    for _ in range(_UNWRAPPED):
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
        plain = f"{scheme}://{host}{slash}{_followed(path)}"
    return (uri,) if plain == uri else (uri, plain)


def with_plain_host(uri: str) -> str:
    """A URI with scheme and host in lower case (RFC 3986, 6.2.2.1)."""
    scheme, separator, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}{separator}{host.lower()}{slash}{path}" if separator else uri


def _followed(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in (".", ""):
            parts.append(part)
    return "/".join(parts) + ("/" if path.endswith("/") and parts else "")


def is_of(uri: str, template: str) -> bool:
    """Whether a URI can be made of a template (RFC 6570)."""
    try:
        return _expression(template).fullmatch(uri.encode("utf-8", "replace")) is not None
    except re2.error:  # larger than anybody needs
        return False


def is_of_any(uri: str, templates: Iterable[str]) -> bool:
    """Whether a URI can be made of one of the templates. False as well where finding out would take too long: a server
    chooses how many templates there are, and how many expressions stand in each."""
    work = 0
    for template in templates:
        work += len(uri) * (1 + template.count("{")) + _COMPILING * len(template)
        if work > _MOST_WORK:
            return False
        if template == uri or is_of(uri, template):
            return True
    return False


@functools.lru_cache(maxsize=_HELD)  # by what servers list
def _expression(template: str) -> Any:
    pieces, at = [], 0
    for found in _EXPRESSION.finditer(template):
        pieces += [re2.escape(template[at : found.start()]), _ONE.get(found[1], ".*")]
        at = found.end()
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    return re2.compile(("(?s)" + "".join(pieces) + re2.escape(template[at:])).encode("utf-8", "replace"), options)
