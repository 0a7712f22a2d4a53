"""Makes this replica a member of its cluster: listens for peers, advertises the address, renews the lease."""

import contextlib
import ipaddress
import os
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from gateway.cluster.beats import Beats
from gateway.cluster.forwarded import PeerListener
from gateway.cluster.ownership import Cluster
from gateway.cluster.peer_requests import PeerRequests
from gateway.cluster.reachability import Reachability
from gateway.config.addresses import host_and_port, is_loopback, own_address_towards
from gateway.config.settings import ConfigurationError
from session_store import StoreUnavailable

__all__ = ["Membership"]


class Membership:
    """Joins the cluster and keeps the membership alive.

    `listen` is the HOST:PORT to listen at for peers; `advertise` is the address peers reach it by, if that is another.
    `store` is the URL of the store that they share, empty if `listen` was chosen by the operator: where neither was and
    the store is on another machine, peers may be too, and this replica listens on the address that the store sees.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        listener: PeerListener,
        peers: PeerRequests,
        beats: Beats,
        reachability: Reachability,
        listen: str,
        advertise: str,
        store: str,
    ) -> None:
        self._cluster = cluster
        self._listener = listener
        self._peers = peers
        self._beats = beats
        self._reachability = reachability
        self._listen = listen
        self._advertise = advertise
        self._store = store

    @contextlib.asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Accept the requests of peers inside the block, and advertise the address to them.

        Raises:
            ConfigurationError: the address cannot be bound, or peers could not reach it.
        """
        host, port = host_and_port(self._listen)
        if host in ("0.0.0.0", "::") and not self._advertise:
            raise ConfigurationError(
                f"gateway.host is {host}: set gateway.advertise (or MCP_GATEWAY_ADVERTISE) to the HOST:PORT the "
                "other gateways on this store reach this one"
            )
        if is_loopback(host) and self._store and not self._advertise:
            found = await own_address_towards(self._store)
            if found and ipaddress.ip_address(found.partition("%")[0]).is_global:
                raise ConfigurationError(
                    f"this machine reaches the store from {found}, an address of the Internet, where a gateway does "
                    "not listen unasked: set gateway.advertise (or MCP_GATEWAY_ADVERTISE) to the HOST:PORT at which "
                    "the other gateways on the store reach this one, or 127.0.0.1:PORT if they are all on this machine"
                )
            host = found or host
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._peers.close)
            try:
                bound = await stack.enter_async_context(self._listener.listening(host, port))
            except OSError as error:
                raise ConfigurationError(self._not_heard(f"{host}:{port}", error)) from None
            self._cluster.advertise(self._advertise or f"{f'[{host}]' if ':' in host else host}:{bound}")
            await self._reachability.check()
            with contextlib.suppress(StoreUnavailable):
                await self._cluster.beat()
            yield

    def _not_heard(self, place: str, error: OSError) -> str:
        # asyncio's own words for a number are longer. Names that are not found have negative numbers.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        what = f"cannot listen on {place}: {reason}"
        if self._listen == self._advertise:
            return (
                f"gateway.advertise: {what}: give a free port at an address of this machine; if others reach this "
                "gateway by another address, set gateway.internal to the HOST:PORT to listen on"
            )
        return f"gateway.internal: {what}: give a free port at an address of this machine"

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        """The coroutines that have to run during the membership: lease renewal, and the check that peers reach this
        replica."""
        return [self._beats.live(), self._reachability.keep_checking()]
