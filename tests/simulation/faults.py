"""What happens to the hosts of a simulated world, drawn from the random numbers of its seed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import permutations
from typing import Final

from tests.simulation.store import HOST as STORE
from tests.simulation.world import Replica, World

WITHIN_S: Final = 8.0
"""Faults begin in the first seconds of a run."""

_LASTS_S: Final = (0.3, 1.0, 1.4, 1.8, 2.5, 4.0, 6.0, 8.0)
_CUT_S: Final = (*_LASTS_S, 24.0)
"""Of cuts between replicas. The longest is longer than a call may take."""

_OUTAGE_S: Final = (0.3, 1.0, 1.8, 2.5)
_LAGS_S: Final = (0.05, 0.3, 1.0, 2.0)
_SLOW_S: Final = (0.02, 0.2, 0.8)
_JUMPS_S: Final = (-3_600.0, -6.0, 6.0, 3_600.0)

Fault = Callable[[World, Replica], Awaitable[str]]


async def _lasting(world: World, choice: tuple[float, ...] = _LASTS_S) -> float:
    lasts_s = world.loop.random.choice(choice)
    await asyncio.sleep(lasts_s)
    return lasts_s


async def killed(world: World, replica: Replica) -> str:
    """Kill a replica, and start another one."""
    replica.kill()
    lasts_s = await _lasting(world)
    world.replace()
    return f"killed, replaced after {lasts_s} s"


async def lost(world: World, replica: Replica) -> str:
    """Lose a machine: it does not refuse connections either."""
    ways = [*_ways(world, replica)]
    for way in ways:
        world.network.cut(*way)
    replica.kill()
    lasts_s = await _lasting(world)
    world.replace()
    return f"lost its machine, replaced after {lasts_s} s"


async def paused(world: World, replica: Replica) -> str:
    """Stop a process for a while."""
    world.loop.pause(replica.host)
    lasts_s = await _lasting(world)
    world.loop.go_on(replica.host)
    return f"paused for {lasts_s} s"


async def drained(world: World, replica: Replica) -> str:
    """Restart a replica as a rollout does: the new one is there before the old one ends."""
    world.replace()
    await asyncio.sleep(world.loop.random.choice((0.1, 1.0, 3.0)))
    replica.drain()
    return "drained"


async def cut_off(world: World, replica: Replica) -> str:
    """Cut a replica off from all others, but not from the store."""
    return await _cut(world, [way for way in _ways(world, replica) if STORE not in way], "the others", _CUT_S)


async def cut_in_two(world: World, replica: Replica) -> str:
    """Cut a replica off from one other."""
    other = world.loop.random.choice([each for each in world.replicas if each is not replica])
    both = [(replica.host, other.host), (other.host, replica.host)]
    return await _cut(world, both[: world.loop.random.choice((1, 2, 2))], other.host, _CUT_S)


async def apart(world: World, replica: Replica) -> str:
    """Cut a replica off from the store, but not from the others."""
    return await _cut(world, [(replica.host, STORE), (STORE, replica.host)], "the store")


async def alone(world: World, replica: Replica) -> str:
    """Cut a replica off from everything but its clients."""
    return await _cut(world, [*_ways(world, replica)], "everything")


async def slow(world: World, replica: Replica) -> str:
    """Slow down all that goes to a replica and comes from it."""
    ways, delay_s = [*_ways(world, replica)], world.loop.random.choice(_SLOW_S)
    world.network.slow.update(dict.fromkeys(ways, delay_s))
    lasts_s = await _lasting(world)
    for way in ways:
        world.network.slow.pop(way, None)
    return f"slow by {delay_s} s for {lasts_s} s"


async def reset(world: World, replica: Replica) -> str:
    """End all connections of a replica to others, with what is on its way."""
    for a, b in {tuple(sorted(way)) for way in _ways(world, replica)}:
        world.network.reset(a, b)
    return "lost its connections"


async def repeated(world: World, replica: Replica) -> str:
    """Let a quarter of what a replica and the others write to each other arrive twice."""
    return await _spoil(world, replica, 2, "arrived twice")


async def swallowed(world: World, replica: Replica) -> str:
    """Lose a quarter of what a replica and the others write to each other, without a word to either."""
    return await _spoil(world, replica, 0, "were lost")


async def outage(world: World, replica: Replica) -> str:
    """Let the store answer nobody for a while."""
    world.loop.pause(STORE)
    lasts_s = await _lasting(world, _OUTAGE_S)
    world.loop.go_on(STORE)
    return f"store away for {lasts_s} s"


async def failed_over(world: World, replica: Replica) -> str:
    """Promote a copy of the store that has not got the last writes."""
    world.store.lag()
    lasts_s = await _lasting(world, _LAGS_S)
    world.store.fail_over()
    return f"store failed over, {lasts_s} s forgotten"


async def reloaded(world: World, replica: Replica) -> str:
    """Give the replicas another configuration, one after the other, and new ones from the beginning."""
    world.slow_s += 1.0
    for each in [replica, *(each for each in world.replicas if each is not replica)]:
        if each.is_ready:
            each.reload()
            await asyncio.sleep(world.loop.random.choice(_LAGS_S))
    return f"and the others have configuration {world.slow_s:g}"


async def jumped(world: World, replica: Replica) -> str:
    """Set a replica's wall clock forward or back."""
    by_s = world.loop.random.choice(_JUMPS_S)
    world.loop.offsets[replica.host] = world.loop.offsets.get(replica.host, 0.0) + by_s
    return f"its clock was set by {by_s} s"


FAULTS: Final[Mapping[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        *(killed, lost, paused, drained, cut_off, cut_in_two, apart, alone, slow, reset, outage, failed_over),
        *(repeated, swallowed, reloaded, jumped),
    )
}


def _ways(world: World, replica: Replica) -> Iterator[tuple[str, str]]:
    """All ways from and to a replica but those of its clients."""
    hosts = [STORE, *(each.host for each in world.replicas)]
    return ((a, b) for a, b in permutations(hosts, 2) if replica.host in (a, b))


async def _spoil(world: World, replica: Replica, times: int, what: str) -> str:
    """Spoil the ways between replicas. The store trusts its connections, as all do whose protocol is not sealed."""
    ways = [way for way in _ways(world, replica) if STORE not in way]
    world.network.spoilt.update(dict.fromkeys(ways, times))
    lasts_s = await _lasting(world)
    for way in ways:
        world.network.spoilt.pop(way, None)
    return f"writes of channels {what} for {lasts_s} s"


async def _cut(world: World, ways: list[tuple[str, str]], whom: str, choice: tuple[float, ...] = _LASTS_S) -> str:
    for way in ways:
        world.network.cut(*way)
    lasts_s = await _lasting(world, choice)
    for way in ways:
        world.network.mend(*way)
    return f"cut off from {whom} for {lasts_s} s ({len(ways)} ways)"


async def strike(world: World, kinds: tuple[str, ...] = tuple(FAULTS)) -> None:
    """Let one to three faults hit, and wait until they are over. One replica at least is never hit by two."""
    random, loop = world.loop.random, world.loop
    begins = sorted(random.random() * WITHIN_S for _ in range(random.choice((1, 1, 2, 2, 3))))

    async def one(begin_s: float) -> None:
        await asyncio.sleep(begin_s)
        kind = random.choice(kinds)
        serving = [replica for replica in world.replicas if replica.is_ready and not loop.is_down(replica.host)]
        if len(serving) < 2 and kind in ("killed", "lost", "drained", "paused"):
            return
        replica = random.choice(serving)
        world.log.append(f"{loop.now:12.6f} {replica.host} FAULT {kind} begins")
        how = await FAULTS[kind](world, replica)
        world.log.append(f"{loop.now:12.6f} {replica.host} FAULT {how}")

    await asyncio.gather(*map(one, begins))
