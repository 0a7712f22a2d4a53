"""Whether the session store answers: said once when it does not, and once when it does again."""

import logging

from session_store import Backend, StoreUnavailable
from session_store.connect import shown

__all__ = ["StoreWatch"]

logger = logging.getLogger(__name__)


class StoreWatch:
    """What is known of the store at `url`. `fault` says why it does not answer; empty: it does."""

    def __init__(self, backend: Backend, url: str) -> None:
        self._backend = backend
        self._url = shown(url)
        self.fault = ""

    async def look(self) -> None:
        """Ask the store whether it answers."""
        try:
            await self._backend.ping()
            self.answers()
        except StoreUnavailable as error:
            self.is_away(error)

    def answers(self) -> None:
        """It has answered."""
        if self.fault:
            logger.info("the session store %s answers again", self._url)
        self.fault = ""

    def is_away(self, error: StoreUnavailable) -> None:
        """It has not."""
        if not self.fault:
            logger.warning(
                "the session store %s does not answer: %s; clients are told to try again (503) until it does",
                self._url,
                error,
            )
        self.fault = str(error)
