"""Define the store of the state that tools keep for a session, with its limits and errors. Pure."""

from typing import Final, Protocol

MAX_KEY_BYTES: Final = 256
MAX_VALUE_BYTES: Final = 64 << 10
"""The most bytes of one value, as compact JSON."""
MAX_STATE_BYTES: Final = 1 << 20
"""The most bytes of all keys and values of a session together."""
MAX_INTEGER: Final = (1 << 63) - 1


class InvalidState(ValueError):
    """An operation on the state cannot be done, and nothing changed. The message says which key and why."""


def check_key(key: str) -> bytes:
    """Check a key of the state, and return it in UTF-8, as it is counted and stored.

    Raises:
        InvalidState: the key is empty, too long, or not text.
    """
    if not isinstance(key, str) or not key:
        raise InvalidState("a state key must be text and not empty")
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise InvalidState("a state key contains a lone surrogate, which is not valid text") from None
    if len(encoded) > MAX_KEY_BYTES:
        raise InvalidState(f"the state key is {len(encoded)} bytes, more than {MAX_KEY_BYTES}: {key[:32]!r}…")
    return encoded


def check_value(key: str, value: bytes) -> bytes:
    """Check the size of a value, and return the value. Raises `InvalidState` above `MAX_VALUE_BYTES`."""
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidState(f"the value of {key!r} is {len(value)} bytes of JSON, more than {MAX_VALUE_BYTES}")
    return value


def check_total(key: str, size: int) -> None:
    """Raise `InvalidState` if the state of a session would be larger than `MAX_STATE_BYTES`. `size`: the bytes that it
    would have after a change of `key`, which the message names."""
    if size > MAX_STATE_BYTES:
        raise InvalidState(f"with {key!r} the session's state would be {size} bytes, more than {MAX_STATE_BYTES}")


def incremented(key: str, present: bytes | None, by: int) -> int:
    """Add `by` to the integer in `present`, and return the sum. None (a missing key) counts as 0.

    Raises:
        InvalidState: the value is not an integer, or the result does not fit 64 bits.
    """
    try:
        number = 0 if present is None else int(present)
    except ValueError:
        raise not_an_integer(key) from None
    if present is not None and str(number).encode() != present:
        raise not_an_integer(key)
    if not -MAX_INTEGER - 1 <= number + by <= MAX_INTEGER:
        raise out_of_range(key)
    return number + by


def out_of_range(key: str) -> InvalidState:
    """Return the error for an increment whose result does not fit 64 bits."""
    return InvalidState(f"{key!r} would exceed the range of 64-bit integers")


def not_an_integer(key: str) -> InvalidState:
    """Return the error for an increment of a value that is not an integer."""
    return InvalidState(f"the value of {key!r} is not an integer and cannot be incremented")


class StateStore(Protocol):
    """Store values by session and key. Values are compact JSON; equal values are equal bytes.

    Every operation is atomic. Every method may raise `SessionGone`, `StoreUnavailable`, and `InvalidState` for a key or
    a value beyond the limits. After `InvalidState`, nothing has changed.
    """

    async def get(self, session_id: str, key: str) -> bytes | None:
        """Return the value of the key; None if the key is missing."""

    async def set(self, session_id: str, key: str, value: bytes) -> None:
        """Store the value under the key. An earlier value is replaced."""

    async def delete(self, session_id: str, key: str) -> bool:
        """Delete the key. Return True if it existed."""

    async def increment(self, session_id: str, key: str, by: int) -> int:
        """Add `by` to the integer under the key, and return the sum. A missing key counts as 0.

        Raises:
            InvalidState: the value is no integer, or the sum does not fit 64 bits.
        """

    async def compare_and_set(self, session_id: str, key: str, expected: bytes | None, value: bytes | None) -> bool:
        """If the key's value is `expected` (None: the key is missing), set it to `value` (None: delete the key) and
        return True. Otherwise return False."""

    async def keys(self, session_id: str) -> list[str]:
        """Return all keys of the session's state, sorted."""

    async def size(self, session_id: str) -> int:
        """Return the bytes of all keys and values together."""
