"""What a run of `make conformance` comes to."""

from dataclasses import dataclass

__all__ = ["Result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`expected`: what does not pass, and why that is right, a line each. `found`: what is not as expected."""

    summary: str
    expected: tuple[str, ...]
    found: tuple[str, ...]
    output: str
