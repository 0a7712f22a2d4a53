"""Opens a channel to each peer that calls are forwarded to, and keeps it."""

import asyncio
import contextlib
import functools
import secrets
from typing import Final, NamedTuple

from gateway.cluster.envelope import Envelopes
from transports.peer_channel import PeerChannel
from transports.replica_wire import PeerConnectionLost, PeerConnectionPool, PeerTimedOut
from transports.tasks import Tasks, TasksClosed

__all__ = ["Channels", "Peer"]

_WITHOUT_S: Final = 10.0
"""How long a peer that refuses channels, because its version is older, is not asked for one again."""


class Peer(NamedTuple):
    """Another replica, and the HOST:PORT of its listener."""

    replica: str
    address: str


class Channels:
    """The channels to peers, one for each."""

    def __init__(self, pool: PeerConnectionPool, envelopes: Envelopes) -> None:
        self._pool = pool
        self._envelopes = envelopes
        self._channels: dict[str, PeerChannel] = {}
        self._without: dict[Peer, float] = {}
        self._opening = Tasks("channels to peers")

    def ready(self, replica: str) -> PeerChannel | None:
        """The channel to a peer, if it is open, takes one more call, and the peer was heard of a moment ago."""
        channel = self._channels.get(replica)
        return channel if channel is not None and channel.has_room and channel.is_heard else None

    async def open(self, peer: Peer) -> PeerChannel | None:
        """The channel to a peer. None: there is none, for a reason that a connection shows.

        Raises:
            PeerRefused, PeerTimedOut: as `PeerConnectionPool.open`.
        """
        channel = self._channels.get(peer.replica)
        if channel is not None and channel.is_open:
            with contextlib.suppress(PeerConnectionLost):
                if not channel.is_heard:
                    await channel.hear()
                return channel if channel.has_room else None
        if asyncio.get_running_loop().time() - self._without.get(peer, -_WITHOUT_S) < _WITHOUT_S:
            return None
        try:
            channel = await self._opening.share(peer, functools.partial(self._open, peer))
        except TasksClosed:
            return None
        return channel if channel is not None and channel.has_room else None  # many may have waited for it

    async def _open(self, peer: Peer) -> PeerChannel | None:
        self._channels = {known: channel for known, channel in self._channels.items() if channel.is_open}
        connection = await self._pool.open(peer.address, peer.replica)
        own = secrets.token_urlsafe(16)
        connection.ask(self._envelopes.opening(peer.replica, own), b"")
        try:
            kind, payload = await connection.next()
        except PeerTimedOut:
            connection.close()
            raise
        except PeerConnectionLost:
            return None
        if kind != b"e" or not payload:
            connection.close()
            self._without[peer] = asyncio.get_running_loop().time()
            return None
        transport = connection.hand_over()
        if transport is None:
            return None
        name = own + payload.decode("ascii", "replace")
        seal = functools.partial(self._envelopes.seal_record, name)
        channel = self._channels[peer.replica] = PeerChannel(transport, name, seal)
        return channel

    def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            channel.close()
