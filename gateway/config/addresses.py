"""Addresses and host names, as operators write them."""

import ipaddress
import re
from collections.abc import Iterable
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator

__all__ = [
    "HostNames",
    "ListenAddress",
    "host_and_port",
    "host_names",
    "is_loopback",
    "is_of_this_machine",
]

_ANY_NAME: Final = "*"
_NAME: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


def is_loopback(host: str) -> bool:
    """True if only this machine can reach that address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_of_this_machine(url: str) -> bool:
    """True if only this machine can reach that URL: no proxy of the environment is to be asked for it."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of HOST:PORT. An IPv6 address may stand in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _checked_address(address: str) -> str:
    host, _, port = address.rpartition(":")
    if address and not (host and port.isdigit() and int(port) < 65_536):
        raise ValueError("must be HOST:PORT")
    return address


ListenAddress = Annotated[str, AfterValidator(_checked_address)]
"""HOST:PORT to listen on or to be reached at. Empty: none."""


def host_names(given: Iterable[str]) -> tuple[str, ...]:
    """Names that requests may ask for: a host name or address, `*.` before a domain, or `*`. In the compared spelling.

    Raises:
        ValueError: one of them would match nothing: it holds a scheme, a port, a path, or a `*` elsewhere.
    """
    return tuple(map(_host_name, given))


def _host_name(given: str) -> str:
    try:
        return str(ipaddress.ip_address(given.strip("[]")))
    except ValueError:
        name = given.lower()
    if name == _ANY_NAME or _NAME.fullmatch(name):
        return name
    raise ValueError(
        f"{given!r} is not a host name: give it without scheme, port and path, as in mcp.example.com; *.example.com "
        "means all names below a domain, and * any name"
    )


HostNames = Annotated[tuple[str, ...], AfterValidator(host_names)]
