"""Checks that this machine reaches every live gateway of a store at its advertised address."""

from collections.abc import AsyncIterator
from contextlib import suppress

from gateway.cluster.envelope import Envelopes
from gateway.cluster.reachability import why_not_found
from gateway.config.keyring import key_ring
from gateway.config.peer_tls import peer_tls
from gateway.config.settings import ConfigurationError, Settings
from gateway.doctor.findings import Finding, failure, ok
from session_store import Backend, StoreError

__all__ = ["check_replicas"]

_DO = "set its gateway.advertise to a HOST:PORT at which the other gateways, and this machine, reach it"


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
