"""What was looked at, how it is, and what to do."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "bad", "doubtful", "good"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`state` is good, doubtful (it works, until it does not) or bad (it does not). `do` is empty for what is good."""

    check: str
    state: Literal["good", "doubtful", "bad"]
    what: str
    do: str = ""


def good(check: str, what: str) -> Finding:
    """As it should be."""
    return Finding(check=check, state="good", what=what)


def doubtful(check: str, what: str, do: str) -> Finding:
    """It works, until it does not."""
    return Finding(check=check, state="doubtful", what=what, do=do)


def bad(check: str, what: str, do: str) -> Finding:
    """It does not work."""
    return Finding(check=check, state="bad", what=what, do=do)
