"""Which registries and proxies npx and uvx use on this machine, and where they are.

The operator has named them, in files and variables of npm and uv, or the tools name them themselves. Their addresses
may be private, or special in another way: a mirror in the operator's network, or a name that the machine's own hosts
file leads to a proxy.
"""

import asyncio
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from gateway.sandbox.lookups import Lookups
from transports.upstream.walls.reach import shown

__all__ = ["places_of", "registries_of"]

_OWN: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "npm": (("registry.npmjs.org", 443),),
    "uv": (("pypi.org", 443), ("files.pythonhosted.org", 443)),
}
"""Those that the tools use if nobody names others. Some packages of Python install a part by npm."""

_URL: Final = re.compile(r"https?://[^\s\"'<>,\]]+", re.IGNORECASE)
_MAX_FILE_BYTES: Final = 1 << 20


def registries_of(
    kind: Literal["npm", "uv"], words: Iterable[str], variables: Mapping[str, str], files: Iterable[Path]
) -> frozenset[tuple[str, int]]:
    """Hosts and ports: those in URLs in the words of a command, in variables for fetches, and in files of settings."""
    texts = [*words, *variables.values(), *_texts_of(files)]
    return frozenset((*_OWN[kind], *_OWN["npm"], *(place for text in texts for place in _places_in(text))))


async def places_of(registries: Iterable[tuple[str, int]], lookups: Lookups) -> tuple[str, ...]:
    """Their addresses with ports, as they are written in `sandbox.reach`. A name that cannot be looked up has none."""
    known = sorted(registries)
    found = await asyncio.gather(*(lookups.find(host) for host, _ in known))
    return tuple(
        shown(ipaddress.ip_address(address), port)
        for (_, port), result in zip(known, found, strict=True)
        for address in result.addresses
    )


def _places_in(text: str) -> Iterator[tuple[str, int]]:
    for url in _URL.findall(text):
        try:
            parts = urlsplit(url)
            if parts.hostname:
                yield parts.hostname, parts.port or (80 if parts.scheme == "http" else 443)
        except ValueError:  # it has "${VARIABLE}" as its port, or is no URL
            continue


def _texts_of(files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        try:
            if path.stat().st_size <= _MAX_FILE_BYTES:
                yield path.read_text("utf-8", "replace")
        except OSError:  # it is not there
            continue
