"""Failovers that forget: a Redis replica that has not seen the last claims is promoted, under load, and three gateways
go on. `python -m tests.cluster.failovers --times 20` prints what was found, and fails if an epoch was given twice, a
session has two processes or none, a client was not told, or a call was executed twice."""

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console

from session_store.redis import keys
from tests.cluster.test_replicas import KEYS, LEASE_S, SERVERS
from tests.support.free_ports import free_port
from tests.support.gateway_process import UNLIMITED, RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy, messages, restarted, tool_text
from tests.support.sentinels import Sentinels, running_sentinels
from tests.support.tcp_relay import running_relay
from tests.support.waiting import descendants, eventually

__all__ = ["Findings", "failovers"]

SESSIONS: Final = 4


@dataclass
class Findings:
    """What a run has found. `settled_s`: how long after the promotion each session had one process."""

    failovers: int = 0
    forgotten: int = 0
    claims: int = 0
    epochs_twice: int = 0
    not_one_process: int = 0
    not_told: int = 0
    calls: int = 0
    executed_twice: int = 0
    settled_s: list[float] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether every failover has forgotten claims, and nothing that was promised is broken."""
        broken = self.epochs_twice + self.not_one_process + self.not_told + self.executed_twice
        return not broken and self.forgotten == self.failovers * SESSIONS and max(self.settled_s) < LEASE_S + 2


class Arena:
    """Three gateways on one store with sentinels. What peers see of the first can be made to refuse connections."""

    def __init__(self, sentinels: Sentinels, folder: Path, stack: contextlib.ExitStack) -> None:
        self.sentinels = sentinels
        self.folder = folder
        self.inside, self.outside = free_port(), free_port()
        self._relay = contextlib.ExitStack()
        stack.callback(self._relay.close)
        self.find_again()
        first = {"internal": f"127.0.0.1:{self.inside}", "advertise": f"127.0.0.1:{self.outside}"}
        self.gateways = [stack.enter_context(self._gateway(more)) for more in (first, {}, {})]
        self.epochs: dict[str, set[tuple[str, int]]] = {}

    def _gateway(self, more: dict[str, str]) -> contextlib.AbstractContextManager[RunningGateway]:
        options = {"store": self.sentinels.url, "policy": UNLIMITED, **more}
        return running_gateway(SERVERS, options=options, env=KEYS, must_stop=False)

    def refuse(self) -> None:
        """Let the first gateway's address refuse connections."""
        self._relay.close()

    def find_again(self) -> None:
        """Let the first gateway's address lead to it."""
        self._relay.enter_context(running_relay(self.inside, self.outside))

    def owner(self, session: Legacy) -> tuple[str, int]:
        """Owner and epoch in the present master, which are remembered."""
        record: Any = self.sentinels.look(self.sentinels.master)
        owner, epoch = record.hmget(keys.of_session(session_id(session))[0], "owner", "epoch")
        found = owner.decode(), int(epoch)
        self.epochs.setdefault(session_id(session), set()).add(found)
        return found

    def processes(self, session: Legacy) -> int:
        """How many processes the session has, on all gateways."""
        return sum(self.processes_at(gateway, session) for gateway in self.gateways)

    def processes_at(self, gateway: RunningGateway, session: Legacy) -> int:
        """How many processes the session has on that gateway."""
        name, count = session_id(session), 0
        for process in descendants(gateway.pid):
            with contextlib.suppress(Exception):  # it may end meanwhile
                count += process.environ().get("MCP_SESSION_ID") == name
        return count

    def at(self, n: int, session: Legacy) -> Legacy:
        """The same client, at that gateway."""
        other = Legacy(f"{self.gateways[n].base}/servers/probe/mcp", session.http)
        other.session = session.session
        return other


def session_id(session: Legacy) -> str:
    """The id in a client's token."""
    return str(session.session).rpartition(".")[0]


def answered(client: Legacy, within_s: float = 30.0) -> httpx.Response:
    """The first result of a tool: refusals are tried again."""
    until = time.monotonic() + within_s
    while True:
        with contextlib.suppress(httpx.HTTPError):
            answer = client.tool("pid")
            if answer.status_code == 200 and "result" in messages(answer)[-1]:
                return answer
        assert time.monotonic() < until, "no good answer"
        time.sleep(0.05)


class Load:
    """Sessions whose calls leave a note each: of a call that may not be repeated."""

    def __init__(self, arena: Arena, http: httpx.Client) -> None:
        self.calls = 0
        self._arena = arena
        self._sessions = [Legacy(f"{g.base}/servers/probe/mcp", http).open() for g in arena.gateways for _ in "ab"]
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(s, n)) for n, s in enumerate(self._sessions)]

    def _work(self, session: Legacy, n: int) -> None:
        done = 0
        while not self._stopped.wait(0.1):
            done += 1
            self.calls += 1
            with contextlib.suppress(httpx.HTTPError):
                other = self._arena.at((n + done) % 3, session)
                other.tool("sleep", {"seconds": 0.02, "note": str(self._arena.folder / f"{n}-{done}")})

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Call inside the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join(60)

    def twice(self) -> int:
        """How many calls were executed more than once."""
        return sum(note.read_text().count("called") > 1 for note in self._arena.folder.iterdir())


def fail_over_once(arena: Arena, http: httpx.Client, findings: Findings) -> None:
    """Claims that no copy of the store sees, and the failover that forgets them."""
    sentinels = arena.sentinels
    ready = f"{arena.gateways[0].base}/readyz"
    assert eventually(lambda: httpx.get(ready).status_code == 200, 20), "it finds itself again"
    sessions = [Legacy(f"{arena.gateways[0].base}/servers/probe/mcp", http).open() for _ in range(SESSIONS)]
    first = [tool_text(answered(session)) for session in sessions]
    sentinels.in_step()
    before = [arena.owner(session) for session in sessions]
    sentinels.lag()
    arena.refuse()
    taken = [tool_text(answered(arena.at(1, session))) for session in sessions]
    assert not {*taken} & {*first}
    claimed = [arena.owner(session) for session in sessions]
    arena.find_again()
    assert all(now != was for now, was in zip(claimed, before, strict=True)), "all were claimed"
    assert eventually(lambda: all(arena.processes(s) == 1 for s in sessions), LEASE_S), "the earlier owner was told"
    sentinels.fail_over()
    began = time.monotonic()
    found = [arena.owner(session) for session in sessions]
    findings.failovers += 1
    findings.forgotten += sum(now == was for now, was in zip(found, before, strict=True))
    for session in sessions:
        answer = answered(arena.at(2, session))
        findings.not_told += restarted(answer) != {"reason": "takeover"}
    if not eventually(lambda: all(arena.processes(s) == 1 for s in sessions), LEASE_S + 5):
        for session in sessions:
            counts = [arena.processes_at(gateway, session) for gateway in arena.gateways]
            findings.not_one_process += sum(counts) != 1
            sys.stderr.write(f"{session_id(session)}: processes {counts}, owner {arena.owner(session)}\n")
            for n, gateway in enumerate(arena.gateways):
                told = [line for line in gateway.stderr().splitlines() if session_id(session)[:8] in line]
                sys.stderr.writelines(f"  {n}: {line}\n" for line in told)
    findings.settled_s.append(time.monotonic() - began)
    arena.refuse()  # the next claims: none of them may get an epoch that was given
    for session in sessions:
        answered(arena.at(2, session))
        arena.owner(session)
        given = Counter(epoch for _, epoch in arena.epochs[session_id(session)])
        findings.claims += len(given)
        findings.epochs_twice += sum(count > 1 for count in given.values())
    arena.find_again()
    sentinels.restore()


def failovers(times: int) -> Findings:
    """So many failovers, each of which has forgotten the last claims."""
    findings = Findings()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sentinels = stack.enter_context(running_sentinels())
        http = stack.enter_context(httpx.Client(timeout=30, limits=httpx.Limits(max_keepalive_connections=0)))
        arena = Arena(sentinels, folder, stack)
        load = Load(arena, http)
        with load.working():
            for _ in range(times):
                fail_over_once(arena, http, findings)
        findings.calls, findings.executed_twice = load.calls, load.twice()
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="failovers")
    findings = failovers(parser.parse_args().times)
    Console().print(findings)
    return int(not findings.is_good)


if __name__ == "__main__":
    sys.exit(main())
