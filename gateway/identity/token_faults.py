"""Why an access token is not accepted. A gateway without issuers loads this alone, not what verifies tokens."""

from collections.abc import Collection, Sequence

__all__ = ["InsufficientScope", "InvalidToken"]


class InvalidToken(Exception):
    """The token is invalid. The message says why, and may be sent to the client."""


class InsufficientScope(InvalidToken):
    """The token is valid but lacks scopes. `needed`: the scopes that it must have."""

    def __init__(self, needed: Sequence[str], missing: Collection[str]) -> None:
        super().__init__(f"it lacks the scope {' '.join(sorted(missing))}")
        self.needed = " ".join(needed)
