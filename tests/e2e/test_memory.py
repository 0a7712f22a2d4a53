"""More sessions than there is memory for: what clients and operators are told, and that nothing is killed."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import httpx

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import PROBE, UNLIMITED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, messages, tool_text
from tests.support.waiting import eventually

KEY: Final = "operator-key-of-the-memory-tests"
SERVERS: Final = ("files", "notes", "search")
_MEMORY: Final = re.compile(r'^mcp_gateway_(\w*memory_\w+?)(?:\{server="(\w+)"\})? (\S+)$', re.MULTILINE)
_CRASHED: Final = re.compile(r'server_restarts_total\{reason="crash",server="\w+"\} [^0]')


def metrics(gateway: RunningGateway) -> str:
    return httpx.get(f"{gateway.base}/metrics", headers=bearer(KEY)).text


def memory_of(gateway: RunningGateway) -> dict[str, float]:
    """The metrics of memory, by name or by server."""
    return {server or name: float(value) for name, server, value in _MEMORY.findall(metrics(gateway))}


def measured(gateway: RunningGateway) -> dict[str, float]:
    """The metrics of memory, once each server's first process has been read: until then it counts as a larger one."""
    assert eventually(lambda: 0 < max(memory_of(gateway)[name] for name in SERVERS) < 48 << 20)
    return memory_of(gateway)


@dataclass
class Crowd:
    """Sessions that were opened at once: those that can call each server, each with its processes, and refusals."""

    served: dict[Legacy, list[str]] = field(default_factory=dict)
    refused: list[httpx.Response] = field(default_factory=list)

    def open(self, gateway: RunningGateway, http: httpx.Client, number: int, *, at_once: int = 8) -> None:
        """Open as many sessions, and call a tool of each server in each."""
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda _: self._open(Legacy(gateway.url, http)), range(number)))

    def _open(self, client: Legacy) -> None:
        answer = client.initialize()
        if answer.status_code == 200:
            client.notify("notifications/initialized")
            answers = [client.tool(f"{name}__pid") for name in SERVERS]
            answer = next((one for one in answers if one.status_code != 200), answer)
        if answer.status_code == 200:
            self.served[client] = [tool_text(one) for one in answers]
        else:
            self.refused.append(answer)


def running(limit_mb: int) -> RunningGateway:
    options = {"limits": {"total_memory_mb": limit_mb}, "policy": UNLIMITED, "admin": {"keys": {"olga": sha256(KEY)}}}
    return running_gateway({name: server(PROBE) for name in SERVERS}, options=options)


@requirement("ops.memory")
def test_more_sessions_than_memory_are_refused_clearly_and_nothing_is_killed(http: httpx.Client) -> None:
    with running(300) as gateway:
        measured(gateway)
        crowd = Crowd()
        crowd.open(gateway, http, 16)
        assert crowd.served and crowd.refused
        for answer in crowd.refused:
            error = messages(answer)[0]["error"]
            assert (answer.status_code, answer.headers["retry-after"], error["code"]) == (503, "30", -32012)
            assert (
                error["data"]["reason"] == "memory" and "was not started, and nothing was executed" in error["message"]
            )
            assert re.search(r"needs about \d+ MiB of memory, and \d+ of 300 MiB are left", error["message"])
        for client, processes in crowd.served.items():
            assert [tool_text(client.tool(f"{name}__pid")) for name in SERVERS] == processes, "they are as they were"
        assert not _CRASHED.search(metrics(gateway))
        now = memory_of(gateway)
        assert now["memory_bytes"] <= now["memory_limit_bytes"] == 300 << 20
        log = gateway.stderr()
        assert log.count("memory is short: ") == log.count("no process of server ") == 1
        assert log.index("memory is short: ") < log.index("no process of server ")
        next(iter(crowd.served)).delete()
        assert eventually(lambda: Legacy(gateway.url, http).initialize().status_code == 200), "one has ended"
