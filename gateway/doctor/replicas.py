"""Whether the gateways that are live on a store are found at the addresses they give, from this machine."""

from collections.abc import AsyncIterator
from contextlib import suppress

from gateway.cluster.envelope import Envelopes
from gateway.cluster.reachability import why_not_found
from gateway.config.keyring import key_ring
from gateway.config.settings import ConfigurationError, Settings
from gateway.doctor.findings import Finding, bad, good
from session_store import Backend, StoreError

__all__ = ["check_replicas"]

_DO = "set gateway.advertise there to a HOST:PORT that leads to it from the other gateways; the doctor looks from here"


async def check_replicas(settings: Settings, backend: Backend) -> AsyncIterator[Finding]:
    """Ask each who it is; nothing where there are none, or where a store or keys cannot be used, which others say."""
    if not backend.is_shared:
        return
    with suppress(StoreError, ConfigurationError):
        envelopes = Envelopes(key_ring(settings.gateway.store))
        await backend.open()
        try:
            live = await backend.directory.replicas()
        finally:
            await backend.close()
        for name, address in live.items():
            why = await why_not_found(address, name, envelopes) if address else "it says itself that nobody finds it"
            if why:
                yield bad("replicas", f"{name} is live and does not answer at {address or 'any address'}: {why}", _DO)
            else:
                yield good("replicas", f"{name} answers at {address}")
