"""`python -m tests.simulation.run`: whole gateways on a simulated network and clock, hit by the faults of many seeds.

Each seed is a process, forked when the gateways have started and the sessions are open. The same seed does the same.
"""

import argparse
import asyncio
import contextlib
import ctypes
import gc
import hashlib
import os
import pickle
import random
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from tests.simulation.network import SimulatedLoop
from tests.simulation.virtual_time import install

_QUIET_S: Final = 12.0
"""So long that replicas may take others for dead: two leases."""

_SAME_ADDRESSES: Final = 0x0040000  # ADDR_NO_RANDOMIZE (personality(2))
_SETTLED_S: Final = 3.0
_SERVED_S: Final = 30.0
_TRACED: Final = 60
_real_time, _cpu_time = time.perf_counter, time.process_time
_MOST_CPU_S: Final = 60.0


class Ran(NamedTuple):
    """What a seed has done. `found`: the shortest contradiction; empty if there is none."""

    seed: int
    digest: str
    found: str
    trace: str
    calls: int
    cpu_s: float


def _ran(loop: SimulatedLoop, world: Any, seed: int, given: argparse.Namespace) -> Ran:
    """Run one seed from the world as it is."""
    from tests.simulation import mutants

    began = _cpu_time()
    loop.random.seed(seed)
    random.seed(seed)
    if given.mutant:
        mutants.apply(given.mutant)
    found = loop.run_until_complete(_run(world))
    world.log += [f"{loop.now:12.6f} WRONG {complaint}" for complaint in world.load.outcome.wrong]
    lines = sorted([*map(str, world.history), *world.log], key=_at)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    calls = sum(event.what == "asked" for event in world.history)
    trace = "\n".join(lines) if given.whole else _trace(world, found) if found else ""
    return Ran(seed, digest, str(found or ""), trace, calls, _cpu_time() - began)


async def _run(world: Any) -> Any:
    from tests.proof.histories import Contradiction, judge
    from tests.simulation.faults import strike

    load = world.load
    await strike(world)
    await asyncio.sleep(_SETTLED_S)
    unserved: list[Any] = []
    for session in load.sessions:
        try:
            async with asyncio.timeout(_SERVED_S):
                await session.probe(load.url)
        except TimeoutError:
            unserved.append(session)
    await load.stop()
    found = judge(world.history)
    if found is None and unserved:
        last = [event for event in world.history if event.session == unserved[0].session_id][-4:]
        return Contradiction(f"a session is not served {_SERVED_S:g} s after all faults have ended", last)
    return found


def _trace(world: Any, found: Any) -> str:
    """Faults, warnings, and the events of the session that is concerned, around the contradiction."""
    sessions = {event.session for event in found.events if event.session}
    calls = {event.call for event in world.history if event.session in sessions}
    first, last = found.events[0].at - 1.0, found.events[-1].at + 0.1
    told = [line for line in world.log if " FAULT " in line or " WRONG " in line or first <= _at(line) <= last]
    told += [
        str(event)
        for event in world.history
        if first <= event.at <= last
        and (event.session in sessions or event.call in calls or event.what == "failed over")
    ]
    return "\n".join(sorted(told, key=_at)[-_TRACED:])


def _at(line: str) -> float:
    with contextlib.suppress(ValueError, IndexError):
        return float(line.split()[0])
    return 0.0


def _forked(loop: SimulatedLoop, world: Any, seed: int, given: argparse.Namespace) -> tuple[int, int]:
    """Start a process for one seed. Returns its id and what it writes its result to."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writes)
        return pid, reads
    os.close(reads)
    signal.setitimer(signal.ITIMER_PROF, _MOST_CPU_S)  # its signal ends the process
    try:
        ran = _ran(loop, world, seed, given)
    except BaseException as error:
        import traceback

        ran = Ran(seed, "", f"the simulation failed: {error!r}", "".join(traceback.format_exception(error)), 0, 0.0)
    with os.fdopen(writes, "wb") as pipe:
        pickle.dump(tuple(ran), pipe)
    _save_coverage()
    os._exit(0)


def _save_coverage() -> None:
    if "coverage" in sys.modules:
        from coverage import Coverage

        if (current := Coverage.current()) is not None:
            current.stop()
            current.save()


def _each(loop: SimulatedLoop, world: Any, seeds: Sequence[int], given: argparse.Namespace) -> Iterator[Ran]:
    """Run seeds side by side. Yields each when it is done, in the order of the seeds."""
    running: dict[int, tuple[int, int, bytearray]] = {}
    waiting, done = [*reversed(seeds)], dict[int, Ran]()
    try:
        for seed in seeds:
            while seed not in done:
                while waiting and len(running) < given.jobs:
                    begun = waiting.pop()
                    pid, reads = _forked(loop, world, begun, given)
                    running[reads] = (begun, pid, bytearray())
                for reads in select.select([*running], [], [])[0]:
                    begun, pid, data = running[reads]
                    if piece := os.read(reads, 1 << 20):
                        data += piece
                        continue
                    del running[reads]
                    os.close(reads)
                    os.waitpid(pid, 0)
                    died = (begun, "", f"the simulation died, or took {_MOST_CPU_S:g} s of CPU", "", 0, 0.0)
                    done[begun] = Ran(*(pickle.loads(data) if data else died))
            yield done.pop(seed)
    finally:
        for reads, (_, pid, _) in running.items():
            os.kill(pid, signal.SIGKILL)
            os.close(reads)
            os.waitpid(pid, 0)


def begin() -> tuple[SimulatedLoop, Any]:
    """A world at work, in which nothing has failed yet."""
    loop = SimulatedLoop()
    install(loop)
    random.seed(0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # no gateway watches this loop
    gc.disable()  # destructors would run at any time
    from tests.simulation.world import World

    async def begun() -> World:
        world = await World.begun(loop, _QUIET_S)
        await world.load.start(at_once=2)
        await asyncio.sleep(1.0)
        return world

    world = loop.run_until_complete(begun())
    gc.freeze()
    return loop, world


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--mutant", default="", help="a rule of the product to leave out (tests/simulation/mutants.py)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--digests", action="store_true", help="print what each seed did, as a digest")
    parser.add_argument("--whole", action="store_true", help="print all that each seed did")
    parser.add_argument("--until-found", action="store_true", help="stop at the first contradiction")
    given = parser.parse_args(arguments)
    began = _real_time()
    loop, world = begin()
    started_s, calls, found, cpu_s = _real_time() - began, 0, 0, 0.0
    began = _real_time()
    seeds = range(given.first, given.first + given.seeds)
    ran = 0
    for each in _each(loop, world, seeds, given):
        ran, calls, cpu_s = ran + 1, calls + each.calls, cpu_s + each.cpu_s
        if given.digests:
            print(each.seed, each.digest)
        if given.whole:
            print(each.trace)
        if each.found:
            found += 1
            print(f"seed {each.seed}: {each.found}\n\n{each.trace}\n", flush=True)
            if given.until_found:
                break
    took_s = _real_time() - began
    print(
        f"{ran} seeds, {calls:,} calls, {found} with a contradiction; started in {started_s:.1f} s, then "
        f"{took_s:.1f} s: {ran / took_s:.2f} seeds/s, {cpu_s / ran:.2f} s of CPU each"
    )
    return int(found > 0)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets follows from hashes and from addresses.
        ctypes.CDLL(None).personality(_SAME_ADDRESSES)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
