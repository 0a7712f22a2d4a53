"""Checks of the gateways that run on this machine, for whoever names none."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import httpx2

from gateway.admin.local_gateways import local_gateways
from gateway.doctor.clients import check_clients_at
from gateway.doctor.findings import Finding, ok, warning
from gateway.doctor.front_door import check_outside

__all__ = ["check_running"]

_DEFAULT: Final = "http://127.0.0.1:8080/mcp"
_TIMEOUT_S: Final = 2.0
_NONE: Final = "no gateway of yours was started at a terminal here, and none answers at {url}: --url checks another one"


async def check_running(token: str, key: str, url: str = _DEFAULT) -> AsyncIterator[Finding]:
    """Check each gateway that this user has started at a terminal, or else the one at the default address. That none
    runs is no fault. `token` and `key` as for `check_everything`; a gateway that was started here has a key itself."""
    here = local_gateways()
    for one in here:
        yield ok("gateway", f"{one.endpoint} is served by process {one.pid}")
        async for finding in _seen(one.endpoint, token, one.url, one.key):
            yield finding
    if here:
        return
    if not await _is_gateway(url):
        yield ok("gateway", _NONE.format(url=url))
        return
    yield ok("gateway", f"{url} is served")
    async for finding in _seen(url, token, url, key):
        yield finding


async def _seen(endpoint: str, token: str, operators: str, key: str) -> AsyncIterator[Finding]:
    async for finding in check_outside(endpoint, token):
        if finding.state == "error" and "requires a credential" in finding.what:  # nobody has asked for this gateway
            finding = warning(finding.check, f"{finding.what}, so nothing more was checked", finding.do)
        yield finding
    if key:
        async for finding in check_clients_at(operators, key):
            yield replace(finding, what=f"{operators}: {finding.what}")


async def _is_gateway(url: str) -> bool:
    """Whether a gateway answers there, and no other program."""
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as http:
            found = (await http.get(f"{url.removesuffix('/mcp')}/readyz")).json()
    except (httpx2.HTTPError, ValueError):
        return False
    return isinstance(found, dict) and {"ready", "draining"} <= found.keys()
