"""Record in the header `Via` which gateways a request has passed, to detect loops (RFC 9110 §7.6.3)."""

import re
from contextvars import ContextVar
from typing import Final

MOST: Final = 16
"""The most gateways that a request may pass."""

PASSED: Final[ContextVar[tuple[str, ...]]] = ContextVar("gateways that a request has passed", default=())
"""The names of the gateways that the present request has passed. Requests to servers on its behalf repeat these names.
The names grant nothing."""

_NAME: Final = re.compile(r"(?<![\w.-])gateway-[0-9a-f]{16}(?![\w.-])")


def gateway_name(digits: str) -> str:
    """Return the name of a gateway in `Via` headers, made from 16 hexadecimal digits."""
    return f"gateway-{digits}"


def gateways_in(via: str) -> tuple[str, ...]:
    """Return the names of gateways in a `Via` header. Leave out other proxies, about which servers must not learn."""
    return tuple(_NAME.findall(via))


def via_of(name: str) -> str:
    """Return the `Via` header for a request that the gateway `name` sends: the gateways passed so far, then this
    one."""
    return ", ".join(f"1.1 {each}" for each in (*PASSED.get(), name))
