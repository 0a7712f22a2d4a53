"""The store of the state that tools keep for a session."""

from typing import Protocol

__all__ = ["StateStore"]


class StateStore(Protocol):
    """Values by session and key. Values are compact JSON; equal values are equal bytes.

    Every operation is atomic. Every method may raise `SessionGone`, `StoreUnavailable`, and `InvalidState` for a key or
    a value beyond the limits, when nothing changes.
    """

    async def get(self, session_id: str, key: str) -> bytes | None:
        """The value; None if the key is missing."""
        ...

    async def set(self, session_id: str, key: str, value: bytes) -> None:
        """Store the value."""
        ...

    async def delete(self, session_id: str, key: str) -> bool:
        """Delete the key. True if it existed."""
        ...

    async def increment(self, session_id: str, key: str, by: int) -> int:
        """Add to an integer and return the sum. A missing key counts as 0.

        Raises:
            InvalidState: the value is no integer, or the sum does not fit 64 bits.
        """
        ...

    async def compare_and_set(self, session_id: str, key: str, expected: bytes | None, value: bytes | None) -> bool:
        """Set the key (None: delete it) if its value is `expected` (None: if it is missing). True if it was."""
        ...

    async def keys(self, session_id: str) -> list[str]:
        """All keys, sorted."""
        ...

    async def size(self, session_id: str) -> int:
        """Bytes of all keys and values."""
        ...
