"""More sessions than there is memory for: what clients and operators are told, and that nothing is killed."""

import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.e2e.test_processes import servers_of
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import PROBE, UNLIMITED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, messages, restarted, tool_text
from tests.support.waiting import eventually

KEY: Final = "operator-key-of-the-memory-tests"
SERVERS: Final = ("files", "notes", "search")
_HOLDS: Final = "import runpy, sys; held = b'x' * (24 << 20); runpy.run_path(sys.argv[1], run_name='__main__')"
HOARD: Final = (PROBE[0], "-c", _HOLDS, *PROBE[1:])
"""The probe server, three times as large."""
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


def served(client: Legacy, name: str) -> httpx.Response:
    """The answer to a call of a server's tool, once there is memory for its process."""
    answer = client.tool(f"{name}__pid")

    def is_served() -> bool:
        nonlocal answer
        answer = answer if answer.status_code == 200 else client.tool(f"{name}__pid")
        return answer.status_code == 200

    assert eventually(is_served)
    return answer


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


def running(limit_mb: int, entries: Mapping[str, Any] | None = None) -> AbstractContextManager[RunningGateway]:
    options = {"limits": {"total_memory_mb": limit_mb}, "policy": UNLIMITED, "admin": {"keys": {"olga": sha256(KEY)}}}
    return running_gateway(entries or {name: server(PROBE) for name in SERVERS}, options=options)


@requirement("ops.memory")
def test_more_sessions_than_memory_are_refused_clearly_and_nothing_is_killed(http: httpx.Client) -> None:
    with running(400) as gateway:
        measured(gateway)
        crowd = Crowd()
        crowd.open(gateway, http, 20)
        assert crowd.served and crowd.refused
        for answer in crowd.refused:
            error = messages(answer)[0]["error"]
            assert (answer.status_code, answer.headers["retry-after"], error["code"]) == (503, "30", -32012)
            assert error["data"]["reason"] == "out_of_memory" and "nothing was executed" in error["message"]
            assert not re.search(r"\d+ of|MiB", error["message"]), "how much others use is not for clients"
        for client, processes in crowd.served.items():
            assert [tool_text(client.tool(f"{name}__pid")) for name in SERVERS] == processes, "they are as they were"
        assert not _CRASHED.search(metrics(gateway))
        now = memory_of(gateway)
        assert now["memory_limit_bytes"] == 400 << 20
        assert now["memory_bytes"] < 1.05 * now["memory_limit_bytes"], "what runs already may have grown a little"
        log = gateway.stderr()
        assert log.count("memory is short: ") == log.count("no process of server ") == 1
        assert log.index("memory is short: ") < log.index("no process of server ")
        with httpx.Client(headers=bearer(KEY)) as ops:
            page = ops.get(f"{gateway.base}/admin/api/sessions", params={"sort": "memory"}).json()
            rows = [
                row
                for row in page["sessions"]
                if sum(one["memory_bytes"] > 0 for one in row["processes"]) == len(SERVERS)
            ]
            assert len(rows) == len(crowd.served), "those that were refused lack a server"
            for row in rows:
                assert row["memory_bytes"] == sum(one["memory_bytes"] for one in row["processes"]) > 3 * 5 << 20
            assert page["totals"]["memory_bytes"] >= len(rows) * rows[-1]["memory_bytes"]
            [replica] = ops.get(f"{gateway.base}/admin/api/replicas").json()
            assert replica["memory_short"] and replica["most_memory"] == 400 << 20
            assert sorted(replica["server_memory"]) == [*SERVERS]
            assert "Memory is short" in ops.get(f"{gateway.base}/admin").text
            assert "most memory" in ops.get(f"{gateway.base}/admin/sessions").text
        for client in crowd.served:
            client.delete()
        assert served(Legacy(gateway.url, http).open(), "files"), "sessions have ended"


@requirement("ops.memory", "proc.warm")
def test_while_memory_is_short_what_nobody_uses_ends_and_the_client_is_told_as_ever(http: httpx.Client) -> None:
    entries = {name: server(PROBE, idle_stop_s=60.0) for name in SERVERS[:2]} | {SERVERS[2]: server(PROBE, warm=1)}
    # What fills the memory has no idle time. On a slow machine, processes that have one end as fast as new ones start.
    with running(400, entries | {"hoard": server(HOARD)}) as gateway:
        measured(gateway)
        client = Legacy(gateway.url, http).open()
        before = [tool_text(client.tool(f"{name}__pid")) for name in SERVERS]

        def ahead() -> list[int]:
            sessions = {pid: env.get("MCP_SESSION_ID", "") for pid, env in servers_of(gateway).items()}
            return [pid for pid, own in sessions.items() if own and not client.session.startswith(f"{own}.")]

        assert eventually(lambda: len(ahead()) == 1)
        [spare] = ahead()
        assert eventually(lambda: Legacy(gateway.at("hoard"), http).initialize().status_code == 503)
        # A tenth of its idle time has passed long before the rest of it.
        assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in before[:2]), within_s=30)
        assert os.path.exists(f"/proc/{before[2]}"), "it has no idle time: what it remembers is not given up"
        assert eventually(lambda: not os.path.exists(f"/proc/{spare}")), "no session at that endpoint has taken it"
        again = [served(client, name) for name in SERVERS]
        assert [restarted(answer) for answer in again] == [{"reason": "idle_stop"}] * 2 + [None]
