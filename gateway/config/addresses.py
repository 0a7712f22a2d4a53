"""Parse and check the addresses and host names that operators write."""

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator

_ANY_NAME: Final = "*"
_MOST_CHARS: Final = 500
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]|[^\s/@\[\]]+")
_ENDPOINT: Final = re.compile(r"/(?:mcp|sse|servers/[^/]+/mcp)/?")
_NAME: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host name or address. No name but `localhost` counts: whoever owns
    `127.example.com` decides where it leads."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_of_this_machine(url: str) -> bool:
    """Return True if only this machine can reach the URL. Requests to it must not go through a proxy of the
    environment."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT. Brackets around an IPv6 address are removed."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def url_here(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a socket that listens on `host` and `port`."""
    host = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}"


def base_url(given: str) -> str:
    """Return the URL of a gateway that a person has given, without slashes and `/mcp` at its end.

    Raises:
        ValueError: no client can use the URL.
    """
    url = given.strip().rstrip("/").removesuffix("/mcp")
    fault = "give the address as https://HOST or http://HOST:PORT, without credentials"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(fault) from None
    is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    if not is_usable or len(url) > _MOST_CHARS or not url.isprintable() or " " in url:
        raise ValueError(fault)
    return url


def _checked_address(address: str) -> str:
    host, _, port = address.rpartition(":")
    if address and not (_HOST.fullmatch(host) and port.isdigit() and int(port) < 65_536):
        raise ValueError("must be HOST:PORT, without a scheme or a path, as in 10.0.0.7:9000")
    return address


def is_same_place(one: str, other: str) -> bool:
    """Return True if two sockets cannot listen at the same time on `one` and `other`, both HOST:PORT. Port 0 is never
    the same, because the kernel chooses a free port for it."""
    (host, port), (other_host, other_port) = host_and_port(one), host_and_port(other)
    is_same = host == other_host or (is_loopback(host) and is_loopback(other_host))
    return port != 0 and port == other_port and (is_same or bool({host, other_host} & {"0.0.0.0", "::"}))


def is_own_endpoint(url: str, host: str, port: int, names: Iterable[str]) -> bool:
    """Return True if a server's URL is an endpoint of the gateway itself.

    The gateway listens on `host` and `port`. `names` are the host names by which clients reach it, at this port or at
    port 80 or 443 of a proxy.
    """
    try:
        parts = urlsplit(url)
        named, at = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:  # it is no URL, or its port is no number
        return False
    if not _ENDPOINT.fullmatch(parts.path):
        return False
    if named == host or (is_loopback(named) and (is_loopback(host) or host in ("0.0.0.0", "::"))):
        return at == port
    return not is_loopback(named) and named in names and at in (80, 443, port)


def bridged_url(argv: Sequence[str]) -> str:
    """Return the URL to which a command forwards the messages of a host that speaks only stdio. Such a command is
    `stdio --url URL` of this gateway, or mcp-remote. Return an empty string for any other command."""
    if given := stdio_url(argv):
        with contextlib.suppress(ValueError):
            return f"{base_url(given)}/mcp"
    is_bridge = any(word.partition("@")[0] == "mcp-remote" for word in argv)
    return next((word for word in argv if word.startswith(("http://", "https://"))), "") if is_bridge else ""


def stdio_url(argv: Sequence[str]) -> str:
    """Return the value of `--url` in the words of a `stdio` command of this gateway, as the person wrote it; empty for
    any other command."""
    options = ((*word.partition("="), after) for word, after in pairwise((*argv, "")))
    given = [value if equals else after for name, equals, value, after in options if name == "--url"]
    return given[-1] if given and "stdio" in argv else ""


async def own_address_towards(url: str) -> str:
    """Return the address of this machine from which it connects to the hosts that a URL names. Return an empty string
    if these hosts are this machine, or cannot be resolved. Nothing is sent to them."""
    for place in urlsplit(url).netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{place}")
        with contextlib.suppress(OSError, ValueError):
            found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)
            for family, kind, _, _, address in found:
                with contextlib.suppress(OSError), socket.socket(family, kind) as asking:
                    asking.connect(address)  # finds the way, and sends nothing
                    own: str = asking.getsockname()[0]
                    return "" if is_loopback(own) else own
    return ""


ListenAddress = Annotated[str, AfterValidator(_checked_address)]
"""HOST:PORT, to listen on or for others to connect to. Empty: none."""


def host_names(given: Iterable[str]) -> tuple[str, ...]:
    """Return allowed names for the Host header, in the spelling for comparisons: host names or addresses, `*.` before a
    domain, or `*`.

    Raises:
        ValueError: a name would match nothing, because it has a scheme, a port, a path, or a `*` elsewhere.
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
