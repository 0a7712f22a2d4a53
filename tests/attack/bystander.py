"""What honest clients feel while others attack, by one attack after the other and by all of them at once.

`make attack` prints it, and fails when the honest p99 under all of them is more than three times what it is in quiet
times. These are measured before and after, on the same machine; the better of the two counts. A machine that does
other things fails for that reason alone.
"""

import contextlib
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from tests.attack.attackers import KEY, KINDS, attacking
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import PROBE, SIGNED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, messages
from tests.support.redis_server import running_redis
from tests.support.waiting import eventually
from tests.support.wire import ask, call_body, rpc

_MOST: Final = 3.0
"""How many times its quiet p99 a bystander's may be."""
_HONEST: Final = 8
_ANSWER_WITHIN_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Felt:
    """What the honest clients felt in a while, in milliseconds."""

    calls: int
    failed: int
    p50: float
    p99: float
    worst: float


@dataclass(slots=True, kw_only=True)
class Place:
    """A gateway, and honest clients: sessions of several principals that call a tool at a steady pace."""

    gateway: RunningGateway
    per_s: float
    _told: dict[int, list[tuple[float, float, bool]]] = field(default_factory=dict)
    """By client: when a call was due, how long it took, how it went."""
    _over: threading.Event = field(default_factory=threading.Event)

    def feel(self, kinds: Collection[str], seconds: float, scale: float = 1.0) -> tuple[Felt, Counter[str]]:
        """What is felt under these attacks, once they are under way, and how often what was done."""
        with attacking(self.gateway.port, kinds, scale) if kinds else contextlib.nullcontext(Counter[str]()) as done:
            time.sleep(1.0)
            begin = time.monotonic()
            time.sleep(seconds)
            found = self._felt(begin, time.monotonic())
        return found, done

    def _felt(self, begin: float, end: float) -> Felt:
        """What was due in that time. Waits until all of it is over."""
        eventually(lambda: all(told[-1][0] >= end for told in self._told.values()), _ANSWER_WITHIN_S + 5)
        found = [(took * 1000, good) for told in self._told.values() for due, took, good in told if begin <= due < end]
        times = sorted(took for took, _ in found)
        return Felt(
            calls=len(found),
            failed=sum(not good for _, good in found),
            p50=times[len(times) // 2],
            p99=times[int(len(times) * 0.99)],
            worst=times[-1],
        )

    def call(self, number: int, key: str) -> None:
        """Be one honest client. The time of a call is counted from when it was due, not from when it could be sent: who
        waits for an answer before the next question would not notice that everything stood still."""
        transport = httpx.HTTPTransport(local_address="127.0.5.1")
        with httpx.Client(transport=transport, timeout=_ANSWER_WITHIN_S) as http:
            session = Legacy(f"{self.gateway.base}/servers/calm/mcp", http, headers=bearer(key)).open()
            session.tool("pid")  # its server is there before anything is measured
            every = _HONEST / self.per_s
            due = time.monotonic() + every * number / _HONEST
            while not self._over.wait(max(0.0, due - time.monotonic())):
                good = False
                with contextlib.suppress(httpx.HTTPError, IndexError):
                    good = "result" in messages(session.tool("pid"))[-1]
                self._told.setdefault(number, []).append((due, time.monotonic() - due, good))
                due += every

    @contextlib.contextmanager
    def serving(self, keys: Sequence[str]) -> Iterator[None]:
        """A client for each key, until the end of the block."""
        clients = [threading.Thread(target=self.call, args=each) for each in enumerate(keys)]
        gc.freeze()
        gc.disable()  # its pauses here would look like the gateway's
        try:
            for client in clients:
                client.start()
            assert eventually(lambda: len(self._told) == len(keys)), "the honest clients could not begin"
            yield
        finally:
            self._over.set()
            for client in clients:
                client.join(_ANSWER_WITHIN_S)
            gc.enable()
            gc.unfreeze()


@contextlib.contextmanager
def running_place(*, per_s: float = 50.0) -> Iterator[Place]:
    """On Redis, with the defaults, as it would be served to strangers: peers are counted by their address."""
    keys = [f"honest-key-{number}" for number in range(_HONEST)]
    named = {"mallory": KEY, **{f"honest-{number}": key for number, key in enumerate(keys)}}
    options: dict[str, Any] = {
        "api_keys": {name: sha256(key) for name, key in named.items()},
        "auth": {"proxies": {"networks": ["192.0.2.1/32"], "subject_header": "X-User"}},
        "log_level": "warning",
    }
    # What the attacked server itself needs is not the gateway's doing: it gives way, as the attackers do. A sandbox
    # opens nothing of Python for `nice`.
    servers = {"calm": server(PROBE), "tool": server(("nice", "-n", "10", *PROBE), shared=True, sandbox="off")}
    with (
        running_redis() as redis,
        running_gateway(servers, options={**options, "store": redis.url}, env=SIGNED, must_stop=False) as gateway,
    ):
        place = Place(gateway=gateway, per_s=per_s)
        ask(gateway.port, rpc(call_body("pid"), bearer(KEY), "/servers/tool/mcp"), within_s=60)  # it has started
        with place.serving(keys):
            yield place


def experiment(console: Console) -> bool:
    """Print it, and say whether the bystanders were served."""
    console.print(
        f"\n[bold]A bystander under attack[/]: {_HONEST} sessions of {_HONEST} principals, 50 calls a second together, "
        f"on one gateway with Redis; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before. "
        "The attackers, and the server they call, have lower priority.",
        highlight=False,
    )
    table = Table("under", "p50 ms", "p99 ms", "worst ms", "calls", "failed", "what was done")
    with running_place() as place:

        def row(name: str, kinds: Collection[str], seconds: float) -> Felt:
            felt, done = place.feel(kinds, seconds)
            times = (f"{felt.p50:.1f}", f"{felt.p99:.1f}", f"{felt.worst:.1f}", str(felt.calls), str(felt.failed))
            table.add_row(name, *times, ", ".join(f"{count} {what}" for what, count in sorted(done.items())))
            return felt

        quiet = row("nothing, before", (), 6.0)
        for kind, words in KINDS.items():
            row(words, [kind], 4.0)
        together = row("all of these at once", list(KINDS), 12.0)
        time.sleep(3.0)
        after = row("nothing, after", (), 6.0)
    console.print(table)
    # The quieter of the two: what else this machine does can make the outcome worse, never better.
    times = together.p99 / min(quiet.p99, after.p99)
    held = times <= _MOST and not together.failed
    console.print(
        f"Under all at once the bystanders' p99 is {times:.1f} times its quiet one (at most {_MOST:.0f}), "
        f"{together.failed} of {together.calls} calls failed: {'held' if held else '[bold red]OPEN[/]'}.",
        highlight=False,
    )
    return held
