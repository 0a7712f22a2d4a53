"""Kills gateways, or restarts them one after another, under load behind a shipped load balancer; 1 if a promise broke.

`python -m tests.cluster.kills --balancer nginx --times 10`. A promise: each call gets a status line (`bare` counts
connections that were closed without one), an error is one of JSON-RPC (`foreign` counts others), and no call is
executed twice. `cut` is a response that ended in its middle: its gateway was killed while it answered.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from tests.cluster.chaos import Arena
from tests.support.compose_topology import BALANCERS
from tests.support.redis_server import running_redis

__all__ = ["BROKEN", "figures"]

BROKEN: Final = ("bare", "foreign", "twice", "hung", "wrong", "lost")
_SEEN_S: Final = 2.5
"""Until a load balancer has seen that a gateway is ready."""


async def figures(balancer: str, times: int, *, rolling: bool = False) -> Counter[str]:
    """What became of the calls while that many gateways were killed, or stopped in order (`rolling`), and replaced."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = stack.enter_context(running_redis())
        log = Path(folder, "calls")
        arena = Arena(server.url, server.client, log, stack, BALANCERS[balancer])
        await arena.load.start()
        try:
            for n in range(times):
                await asyncio.sleep(_SEEN_S)
                gateway = arena.gateways[n % 3]
                if rolling:
                    await asyncio.to_thread(gateway.stop)
                else:
                    gateway.kill()
                    await asyncio.sleep(1)
                await arena.replace(n % 3)
            await asyncio.sleep(1)
        finally:
            await arena.load.stop()
        executed = Counter((await asyncio.to_thread(log.read_text)).split())
    outcome = arena.load.outcome
    found = outcome.counts
    for what, count in outcome.resets.items():
        kind = "foreign" if what[:1].isdigit() else "cut" if "complete" in what else "bare"
        found[kind] += count
    found["twice"] = sum(count > 1 for count in executed.values())
    for complaint in [*outcome.wrong[:3], *(f"{count} times {what}" for what, count in outcome.resets.items())]:
        sys.stderr.write(f"{complaint}\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--balancer", choices=BALANCERS, default="haproxy")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--rolling", action="store_true", help="SIGTERM, one gateway after another, not kill -9")
    options = parser.parse_args()
    found = asyncio.run(figures(options.balancer, options.times, rolling=options.rolling))
    sys.stdout.write(", ".join(f"{name} {count:,}" for name, count in found.items()) + "\n")
    return int(any(found[name] for name in BROKEN))


if __name__ == "__main__":
    sys.exit(main())
