"""`make chaos`: faults under a steady load, a table of what the clients saw of them, and 1 where a promise was broken.

It writes the history of each load into build/histories, and `tests.proof.histories` judges it.

The times are from the fault (of Redis: from its return; of a failover: from the master's death) to the next good answer
of each session that it hit, asked of a gateway that is well. `refused` is 503 with Retry-After: nothing was done, which
the history has to confirm; `failed` is a tool that says it could not reach its state; `reset` is a connection
that ended, or a 502. `hit` is how many sessions had to move: a third of them if a fault is run alone, and all if those
before it have left them with one gateway. Each starts a server. `slowest` is the call that took longest, those included
that the load balancer had given to a paused gateway.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import redis
from rich.console import Console
from rich.table import Table

from bench.subjects import ROOT, echo_server
from session_store.redis import keys
from tests.cluster.load import Load, LoadSession, Outcome
from tests.proof.histories import Event, journal, judge, write
from tests.support.claims_watch import watched_claims
from tests.support.compose_topology import KEYS, running_balancer
from tests.support.free_ports import free_port
from tests.support.gateway_process import UNLIMITED, RunningGateway, running_gateway, with_patience
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.sentinels import Sentinels, running_sentinels
from tests.support.tcp_relay import running_relay
from tests.support.waiting import descendants, eventually

SESSIONS: Final = 50
LEASE_S: Final = 5.0
CUT: Final = 2
APART: Final = 1
BROKEN: Final = ("hung", "wrong", "lost", "contradictions", "children")
TAKES_MS: Final = "50"
"""Between the execution of a call and its answer: faults hit calls of which nobody knows that they were executed."""

HISTORIES: Final = ROOT / "build" / "histories"


class Arena:
    """Three gateways at fixed addresses behind a load balancer, and the load on them."""

    def __init__(
        self,
        store: str,
        look: Callable[[], redis.Redis],
        log: Path,
        stack: contextlib.ExitStack,
        balancer: Callable[[Sequence[str]], contextlib.AbstractContextManager[str]] = running_balancer,
        sessions: int = SESSIONS,
    ) -> None:
        self.look = look
        self.log = log
        self._store = store
        self._stack = stack
        self._echo = echo_server()
        self.ports = [free_port() for _ in range(3)]
        # One of them is reached through a relay that can be cut, and that takes connections when nobody is behind it.
        # Another has its store behind one.
        self._internal = [free_port() for _ in range(3)]
        self.relay = stack.enter_context(running_relay(self._internal[CUT]))
        port = int(re.findall(r":(\d+)/", store)[-1])
        self.to_store = stack.enter_context(running_relay(port))
        self._apart = store.replace(f":{port}/", f":{self.to_store.port}/")
        self._advertised = [*self._internal[:CUT], self.relay.port]
        self.more_servers: dict[str, Any] = {}
        self.more_options: dict[str, Any] = {}
        """What the configurations of gateways have that start, or load theirs again, from now on."""
        self.gateways = [self._start(n) for n in range(3)]
        self.url = stack.enter_context(balancer([f"127.0.0.1:{port}" for port in self.ports]))
        self.load = Load(self.url, sessions)
        redis: Any = look().info("replication")
        copies = [copy["port"] for name, copy in redis.items() if re.fullmatch(r"slave\d+", name)]
        for each in (look().get_connection_kwargs()["port"], *copies):
            stack.enter_context(watched_claims(each, self.load.history))

    def _configuration(self, n: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The servers of a gateway, and its options."""
        servers: dict[str, Any] = {
            "echo": {"command": str(self._echo), "env": {"ECHO_LOG": str(self.log), "ECHO_TAKES": TAKES_MS}},
            "state": {"in_process": "tests.support.session_tool:server"},
        }
        options = {
            "store": self._apart if n == APART else self._store,
            "internal": f"127.0.0.1:{self._internal[n]}",
            "advertise": f"127.0.0.1:{self._advertised[n]}",
            "log_level": "warning",
            "policy": UNLIMITED,
        }
        return servers | self.more_servers, options | self.more_options

    def _start(self, n: int) -> RunningGateway:
        servers, options = self._configuration(n)
        running = running_gateway(servers, options=options, env=KEYS, must_stop=False, port=self.ports[n])
        return self._stack.enter_context(running)

    def reload(self, *, broken: bool = False) -> None:
        """Have all gateways load their files again."""
        for n, gateway in enumerate(self.gateways):
            servers, options = self._configuration(n)
            text = json.dumps({"mcpServers": servers, "gateway": with_patience(options)})
            new = gateway.config.with_suffix(".new")
            new.write_text(text[:-1] if broken else text, encoding="utf-8")
            new.replace(gateway.config)
            gateway.process.send_signal(signal.SIGHUP)

    def children(self) -> set[int]:
        """The processes of the server that no reload changes."""
        found = [each for gateway in self.gateways for each in descendants(gateway.pid)]
        running = set()
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):  # it is another server's, and has just ended
                if each.cmdline()[:1] == [str(self._echo)]:
                    running.add(each.pid)
        return running

    async def replace(self, n: int) -> None:
        """Start a gateway where another one was, as an orchestrator does."""
        self.gateways[n] = await asyncio.to_thread(self._start, n)

    async def owned_by(self, n: int) -> list[LoadSession]:
        """The load's sessions that have their processes there."""
        owned = await asyncio.to_thread(self._owned_by, n)  # calls that wait would count as time after the fault
        assert owned, "the fault would hit nobody"
        return owned

    def _owned_by(self, n: int) -> list[LoadSession]:
        name, store = self._name(n), self.look()
        return [s for s in self.load.sessions if self._owner(store, s.session_id) == name]

    async def answered_again(self, sessions: Sequence[LoadSession], n: int) -> list[float]:
        """Seconds until a gateway that is well answers for them. Past the load balancer, which may take its time."""
        async with asyncio.timeout(30):
            return list(await asyncio.gather(*(s.probe(self.gateways[n].base) for s in sessions)))

    def _owner(self, store: redis.Redis, session_id: str) -> str:
        owner: Any = store.hget(keys.of_session(session_id)[0], "owner")
        return "" if owner is None else owner.decode().strip('"')

    def _name(self, n: int) -> str:
        replicas: Any = self.look().hgetall(keys.REPLICAS)
        address = f"127.0.0.1:{self._advertised[n]}"
        live = [name.decode() for name, at in replicas.items() if at.decode() == address]
        return next((name for name in live if self.look().exists(keys.lease(name))), "")


def _left(echo: Path) -> int:
    done = subprocess.run(["pgrep", "-c", "-f", f"^{echo}"], capture_output=True, text=True, check=False)
    return int(done.stdout or 0)


# -- faults: each hits, waits until all is well again, and gives the seconds to the next good answer of those it hit


Fault = Callable[[Arena], Awaitable[list[float]]]


def killed(n: int, asked: int) -> Fault:
    async def fault(arena: Arena) -> list[float]:
        hit = await arena.owned_by(n)
        arena.gateways[n].kill()
        times = await arena.answered_again(hit, asked)
        await asyncio.sleep(2)
        await arena.replace(n)
        await asyncio.sleep(2)
        return times

    return fault


async def paused(arena: Arena) -> list[float]:
    hit = await arena.owned_by(1)
    process = arena.gateways[1].process
    process.send_signal(signal.SIGSTOP)
    ending = asyncio.get_running_loop().call_later(LEASE_S + 4, process.send_signal, signal.SIGCONT)
    times = await arena.answered_again(hit, CUT)  # the first was replaced, and is too new to doubt others
    await asyncio.sleep(max(0.0, ending.when() - asyncio.get_running_loop().time()) + 4)
    return times


async def cut_off(arena: Arena) -> list[float]:
    hit = await arena.owned_by(CUT)
    arena.relay.cut()
    times = await arena.answered_again(hit, 0)
    await asyncio.sleep(3)
    arena.relay.mend()
    await asyncio.sleep(3)
    return times


async def apart_from_the_store(arena: Arena) -> list[float]:
    hit = await arena.owned_by(APART)
    arena.to_store.cut()
    await asyncio.sleep(LEASE_S + 4)
    arena.to_store.mend()
    times = await arena.answered_again(hit, 0)
    await asyncio.sleep(4)
    return times


def killed_with(server: RunningRedis) -> Fault:
    async def fault(arena: Arena) -> list[float]:
        hit = await arena.owned_by(0)
        await asyncio.to_thread(server.stop)
        arena.gateways[0].kill()
        await asyncio.sleep(2)
        await asyncio.to_thread(server.start)
        times = await arena.answered_again(hit, CUT)
        await arena.replace(0)
        await asyncio.sleep(LEASE_S + 2)
        return times

    return fault


async def rolled(arena: Arena) -> list[float]:
    for n in range(3):
        await asyncio.to_thread(arena.gateways[n].stop)
        await arena.replace(n)
        await asyncio.sleep(2.5)  # until the load balancer has seen that it is ready
    return []


async def rolled_with_another_file(arena: Arena) -> list[float]:
    arena.more_options = {"policy": UNLIMITED | {"slow_s": 7.0}}
    await rolled(arena)
    told = "".join(gateway.stderr() for gateway in arena.gateways)
    assert "is older than that of replica" not in told, "the last one to start has the same file as the others"
    return []


def reloaded(times: int, every_s: float = 1.0) -> Fault:
    """The configuration of all gateways changes again and again; a broken file now and then."""

    async def fault(arena: Arena) -> list[float]:
        children = arena.children()
        assert len(children) >= len(arena.load.sessions)
        for n in range(times):
            extra = {"command": sys.executable, "args": ["-m", "tests.support.probe_server"], "env": {"N": str(n // 4)}}
            arena.more_servers = {"extra": extra} if n % 4 < 2 else {}
            keys = {f"operator-{n % 3}": hashlib.sha256(str(n).encode()).hexdigest()}
            arena.more_options = {"policy": UNLIMITED | {"slow_s": 5.0 + n % 2}, "admin": {"keys": keys}}
            began = time.monotonic()
            await asyncio.to_thread(arena.reload, broken=n % 7 == 6)
            await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))
        arena.more_servers = {}
        await asyncio.to_thread(arena.reload)
        await asyncio.sleep(2)
        assert arena.children() == children, "a server that does not change keeps its processes"
        for gateway in arena.gateways:
            told = gateway.stderr()
            assert "Traceback" not in told and "the configuration is not loaded, and nothing has changed" in told
        return []

    return fault


def stopped(server: RunningRedis, for_s: float) -> Fault:
    async def fault(arena: Arena) -> list[float]:
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(for_s)
        await asyncio.to_thread(server.start)
        times = await arena.answered_again(arena.load.sessions, 0)
        await asyncio.sleep(LEASE_S + 2)
        return times

    return fault


def failed_over(sentinels: Sentinels) -> Fault:
    async def fault(arena: Arena) -> list[float]:
        await asyncio.sleep(LEASE_S)
        arena.load.tell("failed over")
        sentinels.processes[sentinels.master].kill()
        await asyncio.sleep(0.5)
        times = await arena.answered_again(arena.load.sessions, 0)
        await asyncio.sleep(6)
        return [0.5 + seconds for seconds in times]

    return fault


# -- the runs


@contextlib.asynccontextmanager
async def loaded(
    store: str, look: Callable[[], redis.Redis], rows: dict[str, dict[str, Any]], sessions: int = SESSIONS
) -> AsyncIterator[Arena]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        arena = Arena(store, look, Path(folder, "calls"), stack, sessions=sessions)
        await arena.load.start()
        await asyncio.sleep(2 * LEASE_S)  # gateways that are new to each other wait longer
        try:
            yield arena
        finally:
            await arena.load.stop()
        history = judged(arena, rows[list(rows)[-1]])
        write(history, HISTORIES / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.jsonl.gz")


async def phase(arena: Arena, name: str, fault: Fault, rows: dict[str, dict[str, Any]]) -> None:
    """One fault, and its row."""
    arena.load.outcome = outcome = Outcome()
    await asyncio.sleep(1)
    times = await fault(arena)
    await asyncio.sleep(1)
    rows[name] = {"outcome": outcome, "times": times}
    for complaint in [*outcome.wrong[:3], *(f"{count} times {what}" for what, count in outcome.resets.items())]:
        Console(stderr=True).print(f"{name}: {complaint}", markup=False)


def judged(arena: Arena, row: dict[str, Any]) -> list[Event]:
    """Judge the history of a run at its end. Returns it."""
    history = [*arena.load.history, *journal(arena.log)]
    found = judge(history)
    row["contradictions"] = int(found is not None)
    if found is not None:
        Console(stderr=True).print(str(found), markup=False, soft_wrap=True)
    return history


async def chaos(only: str, sessions: int) -> dict[str, dict[str, Any]]:
    """Every fault; the rows of the table."""
    rows: dict[str, dict[str, Any]] = {}
    echo = echo_server()
    with running_redis() as server:
        faults: dict[str, Fault] = {
            "kill -9 an owner": killed(0, 1),
            "pause an owner past its lease": paused,
            "an owner cut off from the others": cut_off,
            "rolling SIGTERM of all": rolled,
            "rolling SIGTERM to another file": rolled_with_another_file,
            "a reload each second for two minutes": reloaded(120),
            "Redis stopped for 3 s": stopped(server, 3),
            "Redis stopped for 20 s": stopped(server, 20),
        }
        others: dict[str, Fault] = {  # sessions move away from a gateway that is hit
            "kill -9 behind an address that accepts": killed(CUT, 0),
            "an owner cut off from Redis": apart_from_the_store,
            "kill -9 an owner and Redis": killed_with(server),
        }
        for group in (faults, others):
            chosen = [name for name in group if only in name]
            if chosen:
                async with loaded(server.url, server.client, rows, sessions) as arena:
                    for name in chosen:
                        await phase(arena, name, group[name], rows)
    name = "Redis failover under Sentinel"
    if only in name:
        with running_sentinels() as sentinels:
            async with loaded(sentinels.url, lambda: sentinels.look(sentinels.master), rows, sessions) as arena:
                await phase(arena, name, failed_over(sentinels), rows)
    last = rows[list(rows)[-1]]
    eventually(lambda: not _left(echo))
    last["children"] = _left(echo)
    return rows


def report(rows: dict[str, dict[str, Any]]) -> int:
    """Print the table; 1 when a promise was broken."""
    columns = ("sent", "answered", "refused", "unknown", "failed", "reset", "hung", "wrong", "lost")
    table = Table("fault", *columns, "hit", "p50 s", "max s", "slowest s", box=None)
    total: Counter[str] = Counter()
    for row in rows.values():
        row.update(row["outcome"].counts)
    slow = []
    limits = dict.fromkeys(("pause an owner past its lease", "an owner cut off from the others"), 2.0)
    limits["kill -9 an owner"] = 1.0
    for name, row in rows.items():
        total.update({key: value for key, value in row.items() if isinstance(value, int)})
        times = row["times"]
        p50, most = (f"{statistics.median(times):.2f}", f"{max(times):.2f}") if times else ("", "")
        table.add_row(
            name,
            *(f"{row.get(column, 0):,}" for column in columns),
            *(f"{len(times)}", p50, most, f"{row['outcome'].slowest_s:.2f}"),
        )
        if times and max(times) > limits.get(name, 1e9):
            slow.append(name)
    console = Console(width=160)
    console.print(table)
    console.print(
        f"histories with a contradiction {total['contradictions']}, child processes left {total['children']}; "
        f"slower than the goal: {', '.join(slow) or 'none'}"
    )
    return int(any(total[key] for key in BROKEN))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only faults with this in their name")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="how many sessions the load has")
    options = parser.parse_args()
    return report(asyncio.run(chaos(options.only, options.sessions)))


if __name__ == "__main__":
    sys.exit(main())
