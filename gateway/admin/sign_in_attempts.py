"""Wrong keys of operators: after some from one network the next wrong one is not looked into, each time for longer.

A right key is never refused: an address may be that of many (a NAT, a proxy, a host of agents). What keeps keys from
being guessed is their length; what is bounded here is the audit trail and the log. No I/O.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

from cachetools import TTLCache

__all__ = ["SignInAttempts", "TooManyAttempts"]

FREE: Final = 10
"""Wrong keys before anybody has to wait: a script with an old key, or a person with the wrong one in the clipboard."""

LONGEST_S: Final = 60.0
"""A person who mistypes a key is told soon that it is wrong."""

_FORGOTTEN_S: Final = 900.0
_HELD: Final = 4_096


class TooManyAttempts(Exception):
    """Too many wrong keys came from that network. Another wrong one is told this for `wait_s` more seconds."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong keys came from your address: try again in {wait_s:.0f} s")
        self.wait_s = wait_s


class SignInAttempts:
    """Counts them by network, on this replica."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._wrong: TTLCache[str, tuple[int, float]] = TTLCache(_HELD, _FORGOTTEN_S, timer=clock)

    def check(self, network: str) -> None:
        """Raises `TooManyAttempts`."""
        _, until = self._wrong.get(network, (0, 0.0))
        if (wait := until - self._clock()) > 0:
            raise TooManyAttempts(max(1.0, wait))

    def wrong(self, network: str) -> None:
        """Count one more wrong key."""
        count = self._wrong.get(network, (0, 0.0))[0] + 1
        wait = min(LONGEST_S, 2.0 ** min(count - FREE, 16)) if count >= FREE else 0.0
        self._wrong[network] = (count, self._clock() + wait)
