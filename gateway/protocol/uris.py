"""Find the forms in which servers may read a URI, and match URIs with templates (RFC 6570). Pure."""

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import unquote

import re2

MOST_MARKS: Final = 64
"""Maximum number of combining marks of one character. The time for NFKC grows with the square of their number."""


class TooManyMarks(ValueError):
    """A text has too many combining marks to be converted to NFKC in limited time."""


def normal(text: str) -> str:
    """Return the text in NFKC.

    Raises:
        TooManyMarks: a character has more than `MOST_MARKS` marks.
    """
    if text.isascii():
        return text
    if _marks().search(text) is not None:
        raise TooManyMarks(f"a character has more than {MOST_MARKS} marks")
    return unicodedata.normalize("NFKC", text)


@functools.cache
def _marks() -> re.Pattern[str]:
    """Return a regular expression for more than `MOST_MARKS` combining marks in a row. It never backtracks. A character
    that NFKC turns into text beginning with a mark counts as a mark too."""
    marks = "".join(mark for mark in map(chr, range(0x300, 0x1F000)) if _is_mark(mark))
    return re.compile(f"[{marks}]{{{MOST_MARKS + 1}}}")


def _is_mark(character: str) -> bool:
    if unicodedata.decomposition(character):
        character = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.combining(character) > 0


_MAX_DECODINGS: Final = 4
"""How often percent-encoding is decoded. A URI that needs more is refused."""
_CACHED, _MEMORY = 256, 256 << 10
"""Number of compiled templates in the cache, and the most bytes that one of them may use."""
_MOST_WORK: Final = 2_000_000
"""Maximum work of matching a URI: its characters times the template expressions that it is matched with. It takes about
0.1 s, and is enough for 4,000 templates with two expressions each and a URI of 150 characters."""
_COMPILING: Final = 2
"""The cost of compiling one character of a template, in units of `_MOST_WORK`."""
_SEGMENT: Final = re.compile(r"^[^:/]*:/*|[^/]*/")
_COMPARED: Final = 256
"""How many characters at the beginning of two URIs are compared to find their common beginning."""
_SAME: Final = 1 << 30
_DROPPED: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")
"""Characters in URIs that parsers drop, replace or refuse: a tab in a URL is ignored, for example (WHATWG URL, 4.4)."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21", "file": ""}
"""The special schemes of the WHATWG URL standard (4.2), with their default ports."""
_AUTHORITY: Final = re.compile(r"[^/\\?#]*")
_SEPARATOR: Final = re.compile(r"[/\\?#;]")
_QUERY: Final = re.compile(r"[?#;]")
_PORT: Final = re.compile(r":([0-9]*)$")
_NO_HOST: Final = re.compile(r"[\s<>^|%@\[\]]")
_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
_ONE: Final = {"": r"[^/?#]*", ".": r"[^/?#]*", ";": r"[^/?#]*"}


def forms(uri: str) -> tuple[str, ...] | None:
    """Return the forms in which servers may read a URI: as it is written and, if different, its normal form.

    In the normal form, percent-encoding is decoded, dot segments and double slashes are removed, and text is in NFKC.
    Return None if parsers (RFC 3986, the WHATWG URL standard, file systems) may disagree on the normal form: the URI is
    encoded too often, has control characters or surrounding spaces, has dot segments beside encoded delimiters, leaves
    its authority by dot segments, or writes its host in an unusual way.
    """
    if uri != uri.strip():
        return None
    plain = uri
    for _ in range(_MAX_DECODINGS):
        try:
            decoded = normal(unquote(plain))
        except TooManyMarks:
            return None
        if _DROPPED.search(decoded) is not None:
            return None
        if decoded == plain:
            break
        plain = decoded
    else:
        return None
    once = unquote(uri)
    is_literal = once == plain and "\\" not in plain and all(uri.count(mark) == once.count(mark) for mark in "/?#")
    canonical = _canonical(plain, is_literal=is_literal)
    if canonical is None:
        return None
    return (uri,) if canonical == uri else (uri, canonical)


def _canonical(plain: str, *, is_literal: bool) -> str | None:
    """Return the normal form of a decoded URI; None if there is none. `is_literal`: every parser finds the same
    segments in the URI as in its decoded form."""
    found = _SCHEME.fullmatch(plain)
    scheme, rest = (found[1], found[2]) if found else ("", plain)
    if scheme.lower() in _DEFAULT_PORTS:
        split = _special(scheme.lower(), rest)
        if split is None:
            return None
        authority, path = split
        beginning = f"{scheme}://{authority}"
    elif rest.startswith("//") and found:
        authority, slash, path = rest[2:].replace("\\", "/").partition("/")
        if not authority and path.startswith("/"):
            return None  # a host may follow for readers that skip slashes
        if authority in (".", "..") or _climbs(path):
            return None  # for readers of `skill://`, the authority is a folder, which a path can leave
        beginning, path = f"{scheme}://{authority}", slash + path
    else:
        segments = _SEPARATOR.split(rest)
        return None if "." in segments or ".." in segments else plain
    segments = _SEPARATOR.split(path)
    if ("." in segments or ".." in segments) and not (is_literal and "//" not in path and not _QUERY.search(path)):
        return None
    return beginning + (f"/{_without_dots(path[1:])}" if path.startswith("/") else path)


def _special(scheme: str, rest: str) -> tuple[str, str] | None:
    """Return the authority and the path of a URI with a special scheme. `rest` is the text after the colon: the host
    may follow any number of slashes or backslashes in it (WHATWG URL, 4.4). Return None if parsers may find different
    hosts."""
    body = rest.lstrip("/\\")
    slashes = len(rest) - len(body)
    if scheme == "file" and slashes != 2:
        return "", "/" + body.replace("\\", "/")
    authority = _AUTHORITY.match(body)
    assert authority is not None  # it also matches an empty text
    path = body[authority.end() :].replace("\\", "/")
    if path and not path.startswith("/") and "{" not in authority[0]:
        path = "/" + path  # a query follows the host
    if scheme == "file" and authority[0].lower() == "localhost":
        return "", path
    return (authority[0], path) if _is_plain_host(scheme, _without_login(authority[0])) else None


def _is_plain_host(scheme: str, place: str) -> bool:
    """Return True if all parsers read the host in `place` as it is written, except for case and port: an ASCII name, or
    an IP address in its usual form."""
    host, _, _ = _PORT.sub("", place).partition("{")  # a template may go on with an expression
    if not host:
        return scheme == "file" or "{" in place
    if not host.isascii() or host.endswith("."):
        return False
    try:
        if host.startswith("["):
            return f"[{ipaddress.IPv6Address(host[1:-1])}]" == host.lower()
        if _NO_HOST.search(host) is not None:
            return False
        last = host.rpartition(".")[2].lower()
        return not (last.isdigit() or last.startswith("0x")) or str(ipaddress.IPv4Address(host)) == host
    except ValueError:
        return False


def with_plain_host(uri: str) -> str:
    """Return a URI with scheme and host in lower case, and without user and default port (RFC 3986, 6.2.2.1, 6.2.3)."""
    found = _SCHEME.fullmatch(uri)
    if found is None:
        return uri
    scheme, rest = found[1].lower(), found[2]
    if not rest.startswith("//"):
        return f"{scheme}:{rest}"
    authority, slash, path = rest[2:].partition("/")
    if scheme in _DEFAULT_PORTS:
        authority = _without_login(authority)
        if (port := _PORT.search(authority)) is not None and port[1].lstrip("0") in ("", _DEFAULT_PORTS[scheme]):
            authority = authority[: port.start()]
    return f"{scheme}://{authority.lower()}{slash}{path}"


def _without_login(authority: str) -> str:
    return authority.rpartition("@")[2]


def _climbs(path: str) -> bool:
    """Return True if `..` segments of a path lead above the path's beginning."""
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else part not in (".", "")
        if depth < 0:
            return True
    return False


def _without_dots(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in (".", ""):
            parts.append(part)
    return "/".join(parts) + ("/" if path.endswith(("/", "/.", "/..")) and parts else "")


def matches_template(uri: str, template: str) -> bool:
    try:
        return _expression(template).fullmatch(uri.encode("utf-8", "replace")) is not None
    except re2.error:  # the compiled template is larger than `_MEMORY`
        return False


def _matching(uri: str, templates: Iterable[str]) -> Iterator[str]:
    """Yield the templates that a URI matches or equals. Stop if the search takes too long, because servers choose the
    number of templates and expressions."""
    work = 0
    for template in templates:
        work += len(uri) * (1 + template.count("{")) + _COMPILING * len(template)
        if work > _MOST_WORK:
            return
        if template == uri or matches_template(uri, template):
            yield template


def matches_any_template(uri: str, templates: Iterable[str]) -> bool:
    """Return True if a URI matches one of the templates. Return False if the search takes too long."""
    return next(_matching(uri, templates), None) is not None


def template_fit(uri: str, templates: Iterable[str]) -> int:
    """Return how well the best matching template fits a URI; 0 if none matches, or if the search takes too long. The
    longer the text before its first expression, the higher. A template equal to the URI gives the highest value."""
    closest_first = sorted(templates, key=lambda template: (-len(template.partition("{")[0]), template))
    fits = (template for template in closest_first if uri.startswith(template.partition("{")[0]))
    found = next(_matching(uri, fits), None)
    return 0 if found is None else _SAME if found == uri else 1 + len(found.partition("{")[0])


def closeness(uri: str, others: Iterable[str]) -> int:
    """Return the length of the longest beginning, in whole segments, that a URI has in common with one of `others`; 0
    if there is none. Only the first `_COMPARED` characters are compared."""
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
