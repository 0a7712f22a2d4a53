"""Names that requests may ask for, as an operator writes them: a host name or address, `*.` before a domain, or `*`."""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

__all__ = ["ANY_NAME", "host_names"]

ANY_NAME: Final = "*"

_NAME: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


def host_names(given: Iterable[str]) -> tuple[str, ...]:
    """The names in the spelling in which they are compared.

    Raises:
        ValueError: one of them would match nothing: it holds a scheme, a port, a path, or a `*` elsewhere.
    """
    return tuple(map(_host_name, given))


def _host_name(given: str) -> str:
    try:
        return str(ipaddress.ip_address(given.strip("[]")))
    except ValueError:
        name = given.lower()
    if name == ANY_NAME or _NAME.fullmatch(name):
        return name
    raise ValueError(
        f"{given!r} is no host name: write it without scheme, port and path, as in mcp.example.com; *.example.com "
        "stands for all names below a domain, and * for any name"
    )
