"""What an attack is and what became of it. Knows no gateway and no proxy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.attack.live.doors import Door
    from tests.attack.live.world import World

__all__ = ["ATTACKS", "DOORS", "Attack", "Outcome", "attack", "held", "judged"]

DOORS: Final = ("direct", "nginx", "haproxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came back, in a few words, and whether the gateway held."""

    came_back: str
    held: bool


Work = Callable[["World", "Door"], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """`item` is its number in the list of what was found; `sent` says what is sent. `stalls_s`: nobody else may wait
    longer meanwhile, nor be refused; infinite where the attack is on what serves everybody."""

    item: int
    name: str
    sent: str
    work: Work
    doors: tuple[str, ...] = DOORS
    stalls_s: float = 1.0


ATTACKS: Final[list[Attack]] = []


def attack(item: int, sent: str, *, doors: tuple[str, ...] = DOORS, stalls_s: float = 1.0) -> Callable[[Work], Work]:
    """The function that follows is an attack. Its name is the function's."""

    def register(work: Work) -> Work:
        name = str(getattr(work, "__name__", work)).replace("_", " ")
        ATTACKS.append(Attack(item=item, name=name, sent=sent, work=work, doors=doors, stalls_s=stalls_s))
        return work

    return register


def held(came_back: object) -> Outcome:
    """It came to nothing."""
    return Outcome(came_back=str(came_back), held=True)


def judged(came_back: object, is_held: bool) -> Outcome:
    """Whichever it was."""
    return Outcome(came_back=str(came_back), held=is_held)
