"""Find the skill that a URI belongs to, and name the server of a skill in its URI (the Skills extension). Pure.

Hosts know a skill by its server and its URI, and the only server that they know is the gateway. So where several
servers have a skill of one URI, all but the first get their name in front: `skill://billing__/refunds/SKILL.md`. The
segments behind it stay, because the extension demands that one of them is the name of the skill.
"""

import functools
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final

from gateway.protocol.listing import SEPARATOR

SKILLS_LIST: Final = "skills/list"
_SKILL_FILE: Final = "/SKILL.md"
WITH_URIS: Final = ("skills", "skill", "resources", "contents")
"""Members of results, and of skills, whose items have URIs. The frontmatter of a skill is its author's: it may not
change."""


def skill_fit(uri: str, skills: Iterable[str]) -> int:
    """Return how closely a URI belongs to one of these skills, which are given by the URIs of their `SKILL.md`. The
    closest is the innermost skill that contains it. A directory of skills fits least; 0 if the URI fits none."""
    best = 0
    for skill in skills:
        root = skill.removesuffix(_SKILL_FILE)
        if uri == root or uri.startswith(f"{root}/"):
            best = max(best, 1 + len(root))
        elif not best and root.startswith(f"{uri}/"):
            best = 1
    return best


def named_uri(server: str, uri: str) -> str:
    """Return a server's URI with the server in it; empty if the URI has no place for it."""
    scheme, slashes, rest = uri.partition("://")
    return f"{scheme}://{server}{SEPARATOR}/{rest}" if slashes else ""


def distinct(server: str, skills: Iterable[dict[str, Any]], taken: Container[str]) -> list[dict[str, Any]]:
    """Return a server's skills. One whose URI is `taken` has the server in its URIs, or is left out if these have no
    place for it."""
    convert = functools.partial(named_uri, server)
    named = (_with_uri(skill, convert) if skill["uri"] in taken else skill for skill in skills)
    return [skill for skill in named if skill]


def origin_of(uri: str) -> tuple[str, str]:
    """Return the server that a URI names (`named_uri`) and this server's own URI. The server is empty if it names
    none."""
    scheme, _, rest = uri.partition("://")
    server, separator, own = rest.partition(f"{SEPARATOR}/")
    return (server, f"{scheme}://{own}") if separator and "/" not in server else ("", uri)


def with_uris(result: Mapping[str, Any], convert: Callable[[str], str]) -> dict[str, Any]:
    """Return a result about skills or resources with converted URIs, also those of the files of each skill. What has no
    URI, or one that `convert` makes empty, is left out."""
    converted = dict(result)
    for key in WITH_URIS:
        found = result.get(key)
        if isinstance(found, list):
            converted[key] = [item for each in found if (item := _with_uri(each, convert))]
        elif isinstance(found, dict):
            converted[key] = _with_uri(found, convert)
    return converted


def _with_uri(item: Any, convert: Callable[[str], str]) -> dict[str, Any]:
    uri = item.get("uri") if isinstance(item, dict) else None
    converted = convert(uri) if isinstance(uri, str) else ""
    return with_uris(item, convert) | {"uri": converted} if converted else {}
