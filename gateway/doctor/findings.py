"""Define the result of a check: what was checked, its state, and the advice."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a check. `state`: `ok`, `warning` (works now, but fails under load or after a restart) or `error`.
    `what`: what was found. `do`: the advice, empty for `ok`."""

    check: str
    state: Literal["ok", "warning", "error"]
    what: str
    do: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(check=check, state="ok", what=what)


def warning(check: str, what: str, do: str) -> Finding:
    return Finding(check=check, state="warning", what=what, do=do)


def failure(check: str, what: str, do: str) -> Finding:
    """Return a finding with the state `error`."""
    return Finding(check=check, state="error", what=what, do=do)
