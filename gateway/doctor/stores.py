"""Checks of the session store: it can be opened, it answers, what its backend reports, and the replicas in it."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from gateway.cluster.envelope import Envelopes
from gateway.cluster.reachability import why_not_found
from gateway.config.secrets import key_ring, peer_tls
from gateway.config.settings import ConfigurationError, Settings
from gateway.doctor.findings import Finding, failure, ok, warning
from session_store import Backend, StoreError
from session_store.connect import shown
from session_store.ports.backend import Observation

__all__ = ["check_replicas", "check_store"]

_REACH: Final = "check that the store runs, and that this machine reaches it with that name, port and password"
_ALLOW: Final = "allow the gateway's Redis user +info and the commands that docs/deploying.md lists"
_DO = "set its gateway.advertise to a HOST:PORT at which the other gateways, and this machine, reach it"


async def check_store(url: str, backend: Backend) -> AsyncIterator[Finding]:
    """Open the store, and yield a finding for each observation of its backend. `url` is for display."""
    try:
        await backend.open()
        await backend.ping()
    except StoreError as error:
        yield failure("store", f"{shown(url)}: {error}", _REACH)
        return
    try:
        for observation in await backend.inspect():
            yield _finding(observation)
    except StoreError as error:
        yield failure("store", f"{shown(url)}: {error}", _ALLOW)
    finally:
        await backend.close()


def _finding(seen: Observation) -> Finding:
    match seen.state:
        case "ok":
            return ok(seen.subject, seen.text)
        case "warning":
            return warning(seen.subject, seen.text, seen.advice)
        case "error":
            return failure(seen.subject, seen.text, seen.advice)


async def check_replicas(settings: Settings, backend: Backend) -> AsyncIterator[Finding]:
    """Send a request to each live gateway. No finding if there is none, or if the store or the keys are unusable: other
    checks report that."""
    if not backend.is_shared:
        return
    with suppress(StoreError, ConfigurationError):
        envelopes = Envelopes(key_ring(settings.gateway.store), tls=peer_tls(settings.gateway.peer_tls))
        await backend.open()
        try:
            live = await backend.directory.replicas()
        finally:
            await backend.close()
        for name, address in live.items():
            why = (
                await why_not_found(address, name, envelopes)
                if address
                else "it reports that other gateways cannot reach it"
            )
            if why:
                yield failure(
                    "replicas", f"{name} is running but cannot be reached at {address or 'any address'}: {why}", _DO
                )
            else:
                yield ok("replicas", f"{name} answers at {address}")
