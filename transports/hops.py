"""Name the gateways that a request has passed, so that one which comes back is noticed (RFC 9110 §7.6.3, Via)."""

import re
from contextvars import ContextVar
from typing import Final

MOST: Final = 16
"""The most gateways that a request may pass."""

PASSED: Final[ContextVar[tuple[str, ...]]] = ContextVar("gateways that a request has passed", default=())
"""The names of these gateways. Requests to servers that are made for the request repeat them. They grant nothing."""

_NAME: Final = re.compile(r"(?<![\w.-])gateway-[0-9a-f]{16}(?![\w.-])")


def gateway_name(digits: str) -> str:
    """Return the name of a gateway in `Via`, made of 16 hexadecimal digits."""
    return f"gateway-{digits}"


def gateways_in(via: str) -> tuple[str, ...]:
    """Return the names of gateways in the header. Names of other proxies are left out: no server is told of them."""
    return tuple(_NAME.findall(via))


def via_of(name: str) -> str:
    """Return the header for a request of that gateway."""
    return ", ".join(f"1.1 {each}" for each in (*PASSED.get(), name))
