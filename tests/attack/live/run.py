"""Tries every attack at every door, and notes what the others felt meanwhile."""

import importlib
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.attack.honest import Felt
from tests.attack.live.doors import Door
from tests.attack.live.rows import ATTACKS, Attack, Outcome
from tests.attack.live.world import World, running_world

__all__ = ["Tried", "all_attacks", "live_rows", "tried"]

_LOOKS_AT_LEAST_S: Final = 0.5
"""What others feel of an attack that is over at once may come after it."""

_MODULES: Final = ("framing", "exhaustion", "authority", "policy", "operators")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One attack: what became of it at each door, and what others felt there."""

    attack: Attack
    outcomes: dict[str, Outcome]
    felt: dict[str, Felt]

    @property
    def is_open(self) -> bool:
        return not all(outcome.held for outcome in self.outcomes.values()) or self.stalled

    @property
    def stalled(self) -> bool:
        """Whether others waited too long, or got no answer."""
        if self.attack.stalls_s == math.inf:
            return False
        return any(felt.worst > self.attack.stalls_s * 1000 or felt.failed for felt in self.felt.values())


def all_attacks() -> list[Attack]:
    """Those of all modules."""
    for name in _MODULES:
        importlib.import_module(f"tests.attack.live.{name}")
    return sorted(ATTACKS, key=lambda attack: attack.item)


def tried(world: World, attack: Attack, doors: Iterable[str]) -> Tried:
    """At those of the doors that it is meant for."""
    outcomes, felt = {}, {}
    for name in doors:
        if name not in attack.doors or name not in world.doors:
            continue
        begin = time.monotonic()
        outcomes[name] = _outcome(world, attack, world.doors[name])
        if name in world.quiet:
            felt[name] = world.honest.felt(name, begin, max(time.monotonic(), begin + _LOOKS_AT_LEAST_S))
    return Tried(attack=attack, outcomes=outcomes, felt=felt)


def _outcome(world: World, attack: Attack, door: Door) -> Outcome:
    try:
        return attack.work(world, door)
    except Exception as error:  # an attack that cannot be tried proves nothing
        return Outcome(came_back=f"not tried: {type(error).__name__}: {error}"[:160], held=False)


def live_rows(only: str = "") -> Iterator[tuple[World, Tried]]:
    """One after the other."""
    with running_world() as world:
        for attack in all_attacks():
            if only in attack.name or only == str(attack.item):
                yield world, tried(world, attack, ("direct", "nginx", "nginx+ws", "haproxy"))
