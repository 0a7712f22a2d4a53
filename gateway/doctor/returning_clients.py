"""Report clients that open sessions and return to none, or share one, from the store or a running gateway."""

from collections.abc import AsyncIterator
from contextlib import suppress
from time import time
from typing import Final

import httpx2
import msgspec

from gateway.config.addresses import is_of_this_machine
from gateway.doctor.findings import Finding, ok, warning
from gateway.sessions.client_return_tracking import ADVICE, ClientWarning
from session_store import Backend, StoreError

_LOOKED_BACK_S: Final = 86_400.0
_EVENTS: Final = 2_000
_TIMEOUT_S: Final = 10.0
_WHERE: Final = "give --admin-url the URL at which operators reach the gateway (gateway.admin.listen, if it is set)"
_ALL_RETURN: Final = "no client is known to share a session, or to open sessions without returning to them"


async def check_clients(backend: Backend) -> AsyncIterator[Finding]:
    """Report the clients about which gateways have warned in the last day, from the audit trail in an open store. Yield
    nothing if the store keeps no trail, or if it cannot be read."""
    if not backend.is_durable:
        return
    with suppress(StoreError):
        events = await backend.audit.recent(_EVENTS)
        since = time() - _LOOKED_BACK_S
        reasons = list(dict.fromkeys(event.reason for event in events if event.event == "warned" and event.at > since))
        for reason in reasons:
            what, _, line = reason.rpartition(ADVICE)
            yield warning("clients", what, f"have it send {line} (docs/clients.md)")
        if not reasons:
            yield ok("clients", _ALL_RETURN)


async def check_clients_at(url: str, key: str) -> AsyncIterator[Finding]:
    """Ask a running gateway which clients return to no session or share one. `key` is an operator's key."""
    base = url.rstrip("/").removesuffix("/mcp")
    try:
        headers, trust_env = {"Authorization": f"Bearer {key}"}, not is_of_this_machine(base)
        async with httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT_S, trust_env=trust_env) as http:
            answer = await http.get(f"{base}/admin/api/warnings")
    except httpx2.HTTPError as error:
        what = f"{base} cannot be asked for its clients: {error or type(error).__name__}"
        yield warning("clients", what, _WHERE)
        return
    if answer.status_code == 401:
        do = "set MCP_GATEWAY_ADMIN_KEY to a key whose digest is in gateway.admin.keys"
        yield warning("clients", f"{base} does not accept the operator's key", do)
        return
    if answer.status_code != 200:
        yield warning("clients", f"{base} answers {answer.status_code} when asked for its clients", _WHERE)
        return
    clients = msgspec.json.decode(answer.content, type=list[ClientWarning])
    for client in clients:
        yield warning("clients", client.what, f"have it send {client.line} (docs/clients.md)")
    if not clients:
        yield ok("clients", _ALL_RETURN)
