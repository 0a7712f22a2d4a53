"""Find the skill that a URI belongs to, and put the server's name into a skill's URI (the Skills extension). Pure.

Hosts identify a skill by its server and its URI, and see only one server, the gateway. If several servers have a skill
with the same URI, the URIs of all but the first server get the server's name in front:
`skill://billing__/refunds/SKILL.md`. The other segments of the URI stay, because one of them is the skill's name (so
says the extension).
"""

import functools
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final

from gateway.protocol.merged_lists import SEPARATOR

SKILLS_LIST: Final = "skills/list"
_SKILL_FILE: Final = "/SKILL.md"
WITH_URIS: Final = ("skills", "skill", "resources", "contents")
"""Members of results, and of skills, whose items have URIs to convert. Other members, such as a skill's frontmatter,
must not change."""


def skill_fit(uri: str, skills: Iterable[str]) -> int:
    """Return how closely a URI matches one of `skills`, the URIs of `SKILL.md` files; 0 if it matches none. The
    innermost skill that contains the URI gives the highest number. A URI of a directory of skills gives 1."""
    best = 0
    for skill in skills:
        root = skill.removesuffix(_SKILL_FILE)
        if uri == root or uri.startswith(f"{root}/"):
            best = max(best, 1 + len(root))
        elif not best and root.startswith(f"{uri}/"):
            best = 1
    return best


def named_uri(server: str, uri: str) -> str:
    """Return a URI with the server's name put in after `://`; empty if the URI has no `://`."""
    scheme, slashes, rest = uri.partition("://")
    return f"{scheme}://{server}{SEPARATOR}/{rest}" if slashes else ""


def distinct(server: str, skills: Iterable[dict[str, Any]], taken: Container[str]) -> list[dict[str, Any]]:
    """Return a server's skills with URIs that no other server's skill has. `taken` has the URIs of the skills of
    earlier servers. If the URI of a skill is in `taken`, put the server's name into all URIs of the skill. If that URI
    has no `://`, leave the skill out."""
    convert = functools.partial(named_uri, server)
    named = (_with_uri(skill, convert) if skill["uri"] in taken else skill for skill in skills)
    return [skill for skill in named if skill]


def origin_of(uri: str) -> tuple[str, str]:
    """Split a URI of `named_uri` into the server's name and the server's own URI. For any other URI, return an empty
    name and the URI itself."""
    scheme, _, rest = uri.partition("://")
    server, separator, own = rest.partition(f"{SEPARATOR}/")
    return (server, f"{scheme}://{own}") if separator and "/" not in server else ("", uri)


def with_uris(result: Mapping[str, Any], convert: Callable[[str], str]) -> dict[str, Any]:
    """Return a result about skills or resources with `convert` applied to all URIs, including those of each skill's
    files. Leave out items without a URI, and items for whose URI `convert` returns an empty string."""
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
