"""Check that other replicas reach this one at the address that it advertises, and that all have the same keys.

A replica that its peers cannot reach must own no session: they would take its sessions over while it serves clients. So
each replica sends itself a request at its advertised address, as a peer would: periodically, and after a peer has
claimed a session from it. A replica whose keys differ from its peers' keys must own no session either, because peers
could not send it requests. So it contacts some peers before it is ready for the first time.
"""

import asyncio
import contextlib
import logging
import random
from typing import Final

from gateway.cluster.forwarded_request_envelope import GREETING, Envelopes, SharedFacts
from gateway.cluster.ownership import Cluster
from session_store import StoreUnavailable
from transports.peer_channel import (
    PeerConnectionLost,
    PeerOtherKeys,
    PeerRefused,
    PeerReplaced,
    PeerTimedOut,
    PeerUnproven,
    open_channel,
)

logger = logging.getLogger(__name__)

EVERY_S: Final = 10.0
AGAIN_S: Final = 1.0
"""Seconds until the next check after a failure: networks come up a moment after the process."""

_PATIENCE_S: Final = 3.0
_NO_ANSWER: Final = "no answer from that address"
_ASKED: Final = 3
"""Number of peers whose keys are compared with this replica's at the same time. More than one, because a peer that has
just died does not answer."""

_LOG_EVERY: Final = 60


async def why_not_found(address: str, replica: str, envelopes: Envelopes) -> str:
    """Return the reason why `replica` does not answer at `address`, for operators; empty if it answers."""
    try:
        return await _greeted(address, replica, envelopes)
    except PeerUnproven as unproven:
        return unproven.why


async def _greeted(address: str, replica: str, envelopes: Envelopes) -> str:
    """Greet a replica at `address`. Return the reason why it does not answer, for operators; empty if it answers.
    Raises `PeerUnproven`: the process at `address` has not proved that it is `replica`."""
    channel = None  # a new one: an open connection does not show that new ones are accepted
    try:
        async with asyncio.timeout(_PATIENCE_S):
            channel = await open_channel(address, replica, envelopes.peer_keys, envelopes.tls)
            greeting = channel.ask(SharedFacts(path=GREETING, session="").packed(), envelopes.facts(None), b"")
            kind, _ = await greeting.next()
    except PeerUnproven:
        raise
    except PeerReplaced:
        return "another gateway process answers at that address"
    except PeerRefused:
        return "connection refused"
    except (PeerTimedOut, PeerConnectionLost, TimeoutError):
        return _NO_ANSWER
    finally:
        if channel is not None:
            channel.close()
    return "" if kind == b"h" else "the clock of the gateway at that address differs"


class Reachability:
    """Check that other replicas reach this one and have the same keys, and set `cluster.is_reachable`."""

    def __init__(self, cluster: Cluster, envelopes: Envelopes) -> None:
        self._cluster = cluster
        self._envelopes = envelopes
        self._has_timed_out = False
        self._has_checked_keys = False
        self._failed = 0

    async def check(self) -> None:
        """Check once if other replicas reach this one and have the same keys. Mark this replica as reachable or not,
        and publish a change. At a first timeout while it is marked as reachable, leave the mark and have the check
        repeated soon: the machine may only be busy."""
        cluster = self._cluster
        why = await why_not_found(cluster.address, cluster.replica, self._envelopes)
        is_first_timeout = why == _NO_ANSWER and not self._has_timed_out
        self._has_timed_out = why == _NO_ANSWER
        if is_first_timeout and cluster.is_reachable:
            cluster.doubted.set()
            return
        if why and self._failed % _LOG_EVERY == 0:
            logger.error(
                "other gateways cannot reach this one at %s (gateway.advertise): %s. It is not ready and accepts no "
                "session until they can. Set gateway.advertise to an address of this process%s",
                cluster.address,
                why,
                ". Behind a port mapping, gateway.internal is the address to listen on",
            )
        is_usable = not why and (self._has_checked_keys or await self._has_keys_of_others())
        if is_usable and self._failed:
            logger.info("other gateways can reach this one at %s now", cluster.address)
        self._failed = 0 if is_usable else self._failed + 1
        if cluster.is_reachable != is_usable:
            cluster.set_reachable(is_usable)
            with contextlib.suppress(StoreUnavailable):
                await cluster.beat()  # publishes it at once

    async def _has_keys_of_others(self) -> bool:
        """Ask some other replicas if they have the keys of this one. Return False, and log the name of the replica, if
        one has other keys. Else return True, also if none answers."""
        try:
            others = await self._cluster.reachable_peers()
        except StoreUnavailable:
            return True
        asked = random.sample(others, min(len(others), _ASKED))
        found = await asyncio.gather(*(self._has_other_keys(name, address) for name, address in asked))
        for (name, address), has_others in zip(asked, found, strict=True):
            if has_others:
                if self._failed % _LOG_EVERY == 0:
                    logger.error(
                        "replica %s at %s has other keys than this gateway, which is not ready and accepts no session. "
                        "Give all gateways on this store the same MCP_GATEWAY_KEYS",
                        *(name, address),
                    )
                return False
        self._has_checked_keys = not asked or False in found
        return True

    async def _has_other_keys(self, name: str, address: str) -> bool | None:
        """Return True if the named replica has other keys than this one, False if it has the same keys, None if it does
        not answer."""
        try:
            return None if await _greeted(address, name, self._envelopes) else False
        except PeerOtherKeys:
            return True
        except PeerUnproven:
            return None

    async def keep_checking(self) -> None:
        """Repeat the check until cancelled: periodically, and soon after a peer has claimed a session from this
        replica."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S if self._cluster.is_reachable else AGAIN_S):
                    await self._cluster.doubted.wait()
                    await asyncio.sleep(AGAIN_S / 4)  # one check per interval, however many sessions were taken over
            self._cluster.doubted.clear()
            await self.check()
