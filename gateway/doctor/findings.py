"""Define the result of a check: what was checked, its state, and the advice."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a check of the doctor: what was found, how bad it is, and what to do about it."""

    check: str
    """What was checked, such as `store`."""
    state: Literal["ok", "warning", "error"]
    """A `warning` works now, but fails under load or after a restart."""
    what: str
    """What was found."""
    do: str = ""
    """What to do about it; empty for `ok`."""


def ok(check: str, what: str) -> Finding:
    return Finding(check=check, state="ok", what=what)


def warning(check: str, what: str, do: str) -> Finding:
    return Finding(check=check, state="warning", what=what, do=do)


def failure(check: str, what: str, do: str) -> Finding:
    """Return a finding with the state `error`."""
    return Finding(check=check, state="error", what=what, do=do)
