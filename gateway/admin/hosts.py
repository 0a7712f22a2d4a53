"""By which names operators reach the gateway: a web page that points its own name at it must not reach the console in
a visitor's browser (DNS rebinding). Pure.

Addresses and `localhost` always pass, because nobody else can point them anywhere.
"""

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

__all__ = ["HostNotAllowed", "OperatorHosts"]

_MOST_CHARS: Final = 261
"""A host name and a port."""

_MORE: Final = frozenset("@/?#\\")


class HostNotAllowed(Exception):
    """The Host header has a name that is not allowed. The text says what to do."""

    def __init__(self) -> None:
        super().__init__(
            "The Host header does not name this gateway. Use an address or localhost, or add the host name to "
            "gateway.admin.allowed_hosts."
        )


class OperatorHosts:
    """`names` are in the spelling of `gateway.config.addresses.host_names`: `*.` before a domain stands for all names
    below it, `*` for any."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = frozenset(names) | {"localhost"}
        self._domains = tuple(name[1:] for name in names if name.startswith("*."))

    def check(self, host: str) -> None:
        """Raises `HostNotAllowed`. `host`: the Host header."""
        name = _hostname(host)
        if "*" in self._names or name in self._names or name.endswith(self._domains) or _is_address(name):
            return
        raise HostNotAllowed


def _hostname(host: str) -> str:
    # A browser sends a name and a port. Of a URL with more the name would be read as well.
    if len(host) > _MOST_CHARS or not _MORE.isdisjoint(host):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
