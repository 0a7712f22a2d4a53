"""Makes the epochs of sessions: the claims of a session, counted, with a nonce for each. Pure.

A store may forget the last claims: a Redis replica that lags is promoted. The counter alone would then be given again.
So two epochs are compared for equality only; which claim was the later one is known from the counter as long as the
store has forgotten nothing. An epoch of an older release is a counter without a nonce.
"""

import secrets
from typing import Final

__all__ = ["count_of", "next_epoch", "nonce_of"]

_COUNT_BITS: Final = 21
"""With the 2 ** 32 numbers for the events of each, and with the nonce, all stay exact in Lua: below 2 ** 53."""
_NONCE_BITS: Final = 31


def next_epoch(epoch: int) -> int:
    """The epoch of the claim after that one. No other claim gets it, even if the store has forgotten some."""
    count = count_of(epoch) + 1 & (1 << _COUNT_BITS) - 1
    nonce = secrets.randbelow((1 << _NONCE_BITS) - 1) + 1  # 0 is that of an older release
    return nonce << _COUNT_BITS | count


def count_of(epoch: int) -> int:
    """Which claim of the session it is: the first one is 1."""
    return epoch & (1 << _COUNT_BITS) - 1


def nonce_of(epoch: int) -> int:
    """What tells it from every other epoch with that count; 0 in one of an older release."""
    return epoch >> _COUNT_BITS
