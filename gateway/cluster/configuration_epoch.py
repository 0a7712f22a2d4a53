"""Compare this replica's configuration with those of the other replicas (docs/adr/0044-configuration-epoch.md).

The store numbers the configurations of its replicas in the order in which they came: the configuration epochs. A
replica with an earlier one than another replica serves its own sessions, and claims none.
"""

import logging
from typing import Final

from session_store import Directory

logger = logging.getLogger(__name__)

_HOLD_S: Final = 60.0
"""Seconds for which a configuration counts as held after its last replica has died: an orchestrator may start it again.
Until then, replicas with an earlier one claim no session."""


class ConfigurationEpoch:
    """The number of this replica's configuration, and the newest number that any replica holds. `holders`: the replicas
    that hold the newest. A replica whose configuration has no file takes no part: its number is 0."""

    def __init__(self, directory: Directory, replica: str) -> None:
        self._directory = directory
        self._replica = replica
        self._digest = ""
        self._is_edited = False
        self._was_outdated = False
        self.own = 0
        self.newest = 0
        self.holders: tuple[str, ...] = ()

    @property
    def is_outdated(self) -> bool:
        """Return True if another replica has a newer configuration, as of the last renewal."""
        return self.own < self.newest

    def use(self, digest: str) -> None:
        """Set the digest of the configuration that this replica serves from now on; empty: it has no file. The first
        one is no edit."""
        self._is_edited = self._is_edited or (self.own > 0 and digest != self._digest)
        self._digest = digest

    async def renew(self, *, holds: bool) -> None:
        """Read from the store which configuration is the newest. With `holds`, record that this replica has its own;
        without, that it holds none, because it may claim no session: so it must hold no other replica back.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        digest = self._digest
        if not digest:
            return
        found = await self._directory.hold_configuration(
            *(self._replica, digest), number=self.own, is_edited=self._is_edited, hold_s=_HOLD_S if holds else 0.0
        )
        if digest != self._digest:  # edited meanwhile: the next renewal records that
            return
        self._is_edited = self._is_edited and not holds
        if holds or found.own <= found.newest:  # else it is a number that nobody has been given yet
            self.own = found.own
        self.newest, self.holders = found.newest, found.holders
        if self.is_outdated and not self._was_outdated:
            logger.warning(
                "the configuration file of this replica (epoch %d) is older than that of replica %s (epoch %d). This "
                "replica goes on with its sessions, and claims no others until it has the newer file",
                *(self.own, self.holders[0], self.newest),
            )
        if self._was_outdated and not self.is_outdated:
            logger.info("no replica has a newer configuration file than this one any more (epoch %d)", self.own)
        self._was_outdated = self.is_outdated
