"""How many of something are held at once: names by key. Pure but for its table."""

from collections import defaultdict
from collections.abc import Sequence

__all__ = ["MemoryQuotas"]


class MemoryQuotas:
    """Quotas in this process."""

    def __init__(self) -> None:
        self._held: defaultdict[str, set[str]] = defaultdict(set)

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        held = self._held[key]
        if name not in held and len(held) >= most:
            return sorted(held)
        held.add(name)
        return []

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        held = self._held[key]
        held.difference_update(names)
        if not held:
            del self._held[key]
