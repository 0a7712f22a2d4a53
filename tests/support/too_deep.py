"""JSON that no Python reads: it is nested deeper than the memory of a stack allows."""

from typing import Final

TOO_DEEP_LEVELS: Final = 400_000
"""Python 3.11 reads 1,000 levels, 3.13 reads 10,000, and 3.14 what fits on the stack: 260,000 on 8 MiB."""

TOO_DEEP: Final = b"[" * TOO_DEEP_LEVELS + b"]" * TOO_DEEP_LEVELS
