"""What honest clients feel while others attack, by one attack after the other and by all of them at once.

`python -m tests.attack.bystander` prints it; 1 when the honest p99 under all of them is more than three times what it
is in quiet times. Quiet times are measured before and after, with the attackers' process there and idle, on the same
machine; the better of the two counts. A machine that does other things fails for that reason alone.
"""

import argparse
import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table

from tests.attack.attackers import KINDS, Attackers, running_attackers
from tests.attack.honest import Felt, Honest, Lane, running_honest
from tests.support.credentials import sha256
from tests.support.gateway_process import RunningGateway, running_gateway, server
from tests.support.redis_server import running_redis

__all__ = ["MOST", "Measured", "Place", "experiment", "measured", "running_place"]

MOST: Final = 3.0
"""How many times its quiet p99 a bystander's may be."""

_HONEST: Final = 8
_SERVER: Final = (sys.executable, str(Path(__file__).with_name("live") / "server.py"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A gateway, honest clients, and attackers who wait."""

    gateway: RunningGateway
    honest: Honest
    attackers: Attackers


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A while under some attacks: what was felt, what was done, and the processors' part of it."""

    felt: Felt
    done: dict[str, int]
    gateway_cpu: float
    attackers_cpu: float


@contextlib.contextmanager
def running_place(*, per_s: float = 50.0, scale: float = 1.0) -> Iterator[Place]:
    """On Redis, with the defaults, as it would be served to strangers: peers are counted by their address."""
    names = ["mallory", *(f"honest-{n}" for n in range(_HONEST))]
    keys = {name: f"{name}-key-0123456789" for name in names}
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        options: dict[str, Any] = {
            "store": redis.url,
            "api_keys": {name: sha256(key) for name, key in keys.items()},
            "auth": {"proxies": {"networks": ["192.0.2.1/32"], "subject_header": "X-User"}},
            "log_level": "warning",
        }
        # What the attacked server itself needs is not the gateway's doing: it gives way, as the attackers do.
        servers = {"calm": server(_SERVER), "tool": server(("nice", "-n", "10", *_SERVER), shared=True)}
        env = {"MCP_GATEWAY_KEYS": "k" * 40}
        gateway = stack.enter_context(running_gateway(servers, options=options, env=env, must_stop=False))
        attackers = stack.enter_context(running_attackers(gateway.port, scale))
        lane = Lane(name="direct", port=gateway.port, keys=tuple(keys[name] for name in names[1:]), per_s=per_s)
        honest = stack.enter_context(running_honest([lane]))
        yield Place(gateway=gateway, honest=honest, attackers=attackers)


def measured(place: Place, kinds: list[str], seconds: float, settle_s: float = 1.0) -> Measured:
    """Under these attacks, once they are under way; nothing at all for no kinds."""
    if kinds:
        place.attackers.start(kinds)
    time.sleep(settle_s)
    gateway = psutil.Process(place.gateway.pid)
    begin, cpu, own = time.monotonic(), _cpu_s(gateway), place.attackers.cpu_s()
    time.sleep(seconds)
    took = time.monotonic() - begin
    cpu, own = _cpu_s(gateway) - cpu, place.attackers.cpu_s() - own
    felt = place.honest.felt("direct", begin, begin + took)
    done = place.attackers.stop() if kinds else {}
    return Measured(felt=felt, done=done, gateway_cpu=cpu / took, attackers_cpu=own / took)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def experiment(console: Console, *, quiet_s: float = 6.0, alone_s: float = 4.0, together_s: float = 12.0) -> bool:
    """Print it, and say whether the bystanders were served."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    console.print(
        f"\n[bold]A bystander under attack[/]: {_HONEST} sessions of {_HONEST} principals, 50 calls a second together, "
        f"on one gateway with Redis; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before, {soft} files. "
        "The attackers, and the server they call, have lower priority; both are there in quiet times too.",
        highlight=False,
    )
    table = Table(
        "under", "p50 ms", "p99 ms", "worst ms", "calls", "failed", "gateway CPU", "attackers' CPU", "what was done"
    )

    def row(name: str, found: Measured) -> None:
        felt = found.felt
        done = ", ".join(f"{count} {what}" for what, count in sorted(found.done.items()))
        times = (f"{felt.p50:.1f}", f"{felt.p99:.1f}", f"{felt.worst:.1f}", str(felt.calls), str(felt.failed))
        table.add_row(name, *times, f"{found.gateway_cpu:.0%}", f"{found.attackers_cpu:.0%}", done)

    with running_place() as place:
        quiet = measured(place, [], quiet_s, settle_s=2.0)
        row("nothing, before", quiet)
        for kind, words in KINDS.items():
            row(words, measured(place, [kind], alone_s))
        together = measured(place, list(KINDS), together_s, settle_s=2.0)
        row("all of these at once", together)
        after = measured(place, [], quiet_s, settle_s=4.0)
        row("nothing, after", after)
    console.print(table)
    # The quieter of the two: what else this machine does can make the outcome worse, never better.
    times = together.felt.p99 / min(quiet.felt.p99, after.felt.p99)
    held = times <= MOST and not together.felt.failed
    console.print(
        f"Under all at once the bystanders' p99 is {times:.1f} times its quiet one (at most {MOST:.0f}), "
        f"{together.felt.failed} of {together.felt.calls} calls failed: {'held' if held else '[bold red]OPEN[/]'}.",
        highlight=False,
    )
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="how long all of them go on")
    return int(not experiment(Console(width=200), together_s=parser.parse_args().seconds))


if __name__ == "__main__":
    sys.exit(main())
