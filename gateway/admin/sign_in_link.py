"""A link that signs one browser in, once: for the person who has started a gateway at a terminal. No I/O.

The link is a credential. It is 256 random bits that stand in memory only, it dies when it is used and after
`VALID_S`, and it is shown on the terminal only, never logged. Beside it is a key, for the commands of the same person
(`gateway.admin.local_gateways`).
"""

import hmac
import secrets
from collections.abc import Callable
from time import monotonic
from typing import Final

__all__ = ["OPERATOR", "VALID_S", "SignInLink"]

OPERATOR: Final = "local"
"""The operator's name of whoever has used the link, or its key."""

VALID_S: Final = 600.0
_BYTES: Final = 32


class SignInLink:
    """`token` is the last part of the link. `proof` marks the sign-ins of this link: they end with this process. `key`
    is an operator's key that no configuration has."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until = clock() + VALID_S
        self._is_used = False
        self.token = secrets.token_urlsafe(_BYTES)
        self.proof = secrets.token_urlsafe(_BYTES)
        self.key = secrets.token_urlsafe(_BYTES)

    def opens_with(self, token: str) -> bool:
        """True if the link is still good, and this is its token. It stays good."""
        is_right = hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
        return is_right and not self._is_used and self._clock() < self._until

    def take(self, token: str) -> bool:
        """As `opens_with`, and use the link up. Of several that try at once, one is let in."""
        is_open = self.opens_with(token)
        self._is_used = self._is_used or is_open
        return is_open
