"""Make this replica a member of its cluster: listen for peers, advertise its address, renew its lease."""

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from time import monotonic
from typing import Final

from gateway.cluster.own_reachability import Reachability
from gateway.cluster.ownership import BEAT, Cluster
from gateway.cluster.peer_listener import PeerListener
from gateway.cluster.requests_to_peers import PeerRequests
from gateway.config.addresses import host_and_port, is_loopback, own_address_towards
from gateway.config.settings import ConfigurationError
from session_store import Bus, StoreUnavailable

BEAT_S: Final = 1.0
_LATE_S: Final = 0.25
"""Seconds without an answer of the store, after which the peers are asked to claim no session of this replica."""

_AWAY_S: Final = 0.5


class LeaseRenewal:
    """Renew this replica's lease periodically. `ask_to_hold` gets the peers' addresses by name, and asks them to claim
    no session of this replica for a while. It returns True if all have agreed."""

    def __init__(self, cluster: Cluster, bus: Bus, ask_to_hold: Callable[[Mapping[str, str]], Awaitable[bool]]) -> None:
        self._cluster = cluster
        self._bus = bus
        self._ask_to_hold = ask_to_hold

    async def keep_renewing(self) -> None:
        """Renew the lease until cancelled: periodically, and at once when a peer asks for it. Each renewal closes the
        sessions that other replicas have claimed."""
        while True:
            # The store may be unreachable when the gateway starts. A replica without a lease soon owns nothing.
            with contextlib.suppress(StoreUnavailable):
                await self._renew_on_request()
            await self.renew()
            await asyncio.sleep(_AWAY_S)

    async def _renew_on_request(self) -> None:
        """Renew the lease until cancelled: periodically, and at once when a peer asks for it. Raises
        `StoreUnavailable`: the bus, by which peers ask, cannot be subscribed."""
        asked = asyncio.Event()
        async with self._bus.subscribed(BEAT + self._cluster.replica, lambda _: asked.set()):
            while True:
                is_away = not await self.renew()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AWAY_S if is_away else BEAT_S):
                        await asked.wait()
                asked.clear()

    async def renew(self) -> bool:
        """Renew the lease, and return True. While the store does not answer, ask the peers to claim no session of this
        replica. Return False if the renewal has failed."""
        beating = asyncio.ensure_future(self._cluster.beat())
        try:
            while not (await asyncio.wait((beating,), timeout=_LATE_S))[0]:
                await self._have_them_hold()
            await beating
            await self._cluster.log_refusing()
        except Exception as error:
            self._cluster.lease.not_renewed()
            await self._have_them_hold()
            if not isinstance(error, StoreUnavailable):
                raise
            return False
        finally:
            beating.cancel()
        return True

    async def _have_them_hold(self) -> None:
        began, peers = monotonic(), self._cluster.lease.peers
        if peers is not None and all(peers.values()) and await self._ask_to_hold(peers):
            self._cluster.lease.peers_agreed(began)


@dataclass(eq=False, repr=False)
class Membership:
    """Join the cluster and keep the membership alive.

    If the operator has set neither address and the store is on another machine, peers may be on other machines too. In
    that case, listen on the address from which this machine reaches the store.
    """

    cluster: Cluster
    _: KW_ONLY
    listener: PeerListener
    peers: PeerRequests
    lease_renewal: LeaseRenewal
    reachability: Reachability
    listen: str
    """The HOST:PORT to listen on for peers."""
    advertise: str
    """The address at which peers reach this replica; if empty, the one to listen on."""
    store: str
    """The URL of the shared store; empty if the operator has set `listen`."""

    @contextlib.asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Accept the requests of peers inside the block, and advertise this replica's address to them.

        Raises:
            ConfigurationError: the address cannot be bound, or peers on other machines could not reach it.
        """
        host, port = host_and_port(self.listen)
        if host in ("0.0.0.0", "::") and not self.advertise:
            raise ConfigurationError(
                f"gateway.host is {host}: set gateway.advertise (or MCP_GATEWAY_ADVERTISE) to the HOST:PORT at which "
                "the other gateways on this store reach this one"
            )
        if is_loopback(host) and self.store and not self.advertise:
            found = await own_address_towards(self.store)
            if found and ipaddress.ip_address(found.partition("%")[0]).is_global:
                raise ConfigurationError(
                    f"this machine reaches the store from {found}, a public address, where a gateway does "
                    "not listen by default: set gateway.advertise (or MCP_GATEWAY_ADVERTISE) to the HOST:PORT at which "
                    "the other gateways on the store reach this one, or 127.0.0.1:PORT if they are all on this machine"
                )
            host = found or host
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self.peers.close)
            try:
                bound = await stack.enter_async_context(self.listener.listening(host, port))
            except OSError as error:
                raise ConfigurationError(self._not_heard(f"{host}:{port}", error)) from None
            self.cluster.advertise(self.advertise or f"{f'[{host}]' if ':' in host else host}:{bound}")
            await self.reachability.check()
            with contextlib.suppress(StoreUnavailable):
                await self.cluster.beat()
            yield

    def _not_heard(self, place: str, error: OSError) -> str:
        # asyncio's own texts for an errno are longer. Host names that are not found have negative numbers.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        what = f"cannot listen on {place}: {reason}"
        if self.listen == self.advertise:
            return (
                f"gateway.advertise: {what}: give a free port at an address of this machine; if others reach this "
                "gateway by another address, set gateway.internal to the HOST:PORT to listen on"
            )
        return f"gateway.internal: {what}: give a free port at an address of this machine"
