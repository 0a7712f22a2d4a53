"""Check the session store: that it opens and answers, what its backend reports, and that the replicas in it answer."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from gateway.cluster.envelope import Envelopes
from gateway.cluster.own_reachability import why_not_found
from gateway.config.secrets import key_ring, peer_tls
from gateway.config.settings import ConfigurationError, Settings
from gateway.doctor.findings import Finding, failure, ok
from session_store import Backend, StoreError
from session_store.connect import shown
from session_store.ports.errors import StoreMissing

_REACH: Final = "check that the store runs, and that this machine reaches it with that name, port and password"
_ALLOW: Final = "allow the gateway's Redis user +info and the commands that docs/deploying.md lists"
_DO = "set its gateway.advertise to a HOST:PORT at which the other gateways, and this machine, reach it"


async def check_store(url: str, backend: Backend) -> AsyncIterator[Finding]:
    """Open the store, and yield what its backend observes. `url` is only for display."""
    try:
        await backend.open()
        await backend.ping()
    except StoreMissing:
        yield ok("store", f"{shown(url)}: there is no such file yet: the gateway creates it when it starts")
        return
    except StoreError as error:
        yield failure("store", f"{shown(url)}: {error}", _REACH)
        return
    try:
        for one in await backend.inspect():
            yield Finding(check=one.subject, state=one.state, what=one.text, do=one.advice)
    except StoreError as error:
        yield failure("store", f"{shown(url)}: {error}", _ALLOW)
    finally:
        await backend.close()


async def check_replicas(settings: Settings, backend: Backend) -> AsyncIterator[Finding]:
    """Send a request to each live gateway on the store. Yield nothing if there is none, or if store or keys cannot be
    used: other checks report that."""
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
            why = "it reports that other gateways cannot reach it"
            if address:
                why = await why_not_found(address, name, envelopes)
            if why:
                what = f"{name} is running but cannot be reached at {address or 'any address'}: {why}"
                yield failure("replicas", what, _DO)
            else:
                yield ok("replicas", f"{name} answers at {address}")
