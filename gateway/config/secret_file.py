"""Reads operators' secrets from files, as container and service managers provide them.

The gateway's servers run as the same user, so they can read these files too, unless a sandbox hides them.
"""

from pathlib import Path
from typing import Final

__all__ = ["UnusableSecret", "others_can_read", "secret_in"]

_MOST_BYTES: Final = 64 << 10


class UnusableSecret(ValueError):
    """The file holds no secret. The message says which and why, and nothing of what it holds."""


def secret_in(file: Path, named_by: str) -> str:
    """What stands in the file, without the line's end.

    Raises:
        UnusableSecret: it cannot be read, is empty, or is no text.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UnusableSecret(f"{named_by}: {file}: {error.strerror or error}") from None
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise UnusableSecret(f"{named_by}: {file} is not UTF-8 text") from None
    if not text or len(data) > _MOST_BYTES:
        raise UnusableSecret(f"{named_by}: {file} is {'too large' if text else 'empty'}")
    return text


def others_can_read(file: Path) -> bool:
    """True if the file's group or others may read it. False if the file is inaccessible: `secret_in` reports that."""
    try:
        return bool(file.stat().st_mode & 0o044)
    except OSError:
        return False
