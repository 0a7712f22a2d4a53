"""What is done with tasks counts in `policy.session_rate`: each request once, and before anything is made for it."""

from pathlib import Path
from typing import Any

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import WORK, RunningGateway, running_gateway, server
from tests.support.legacy_task_client import Tasks

BURST = 12


def served(client: Tasks, method: str, params: Any) -> int:
    """How many of more requests than the session may send are answered. The others are refused."""
    statuses = [client.client.call(method, params).status_code for _ in range(BURST + 3)]
    assert sorted(set(statuses)) == [200, 429]
    return statuses.count(200)


def made(gateway: RunningGateway) -> int:
    """What the metric says."""
    line = next(line for line in gateway.stderr().splitlines() if "operators are served at" in line)
    text = httpx.get(f"{line[line.index('http://') :].partition('/admin')[0]}/metrics").text
    label = 'mcp_gateway_tasks_total{event="made"} '
    return int(float(next((line for line in text.splitlines() if line.startswith(label)), f"{label}0").split()[1]))


@requirement("task.asked", "task.tools", "pol.limits")
def test_each_request_counts_once_and_before_a_task_is_made(tmp_path: Path, http: httpx.Client) -> None:
    rate = {"session_rate": {"burst": BURST, "per_s": 0.01}}
    options = {"tasks": {"tools": True}, "policy": rate, "admin": {"listen": "127.0.0.1:0"}}
    env = {"LEDGER": str(tmp_path / "ledger")}
    with running_gateway({"work": server((*WORK, "legacy"), env=env)}, options=options) as gateway:
        plain, asked, started, results = (Tasks(gateway.url, http) for _ in range(4))
        call: Any = {"name": "work", "arguments": {"job": "one"}}
        most = served(plain, "tools/call", call)
        assert served(asked, "tools/call", call | {"task": {}}) == most
        assert made(gateway) == most, "what is refused has no task"
        start = {"name": "start_task", "arguments": {"tool": "work", "arguments": {"job": "two"}}}
        assert served(started, "tools/call", start) == most, "one request, not two"
        task = results.begin("work", job="three")["taskId"]
        assert served(results, "tasks/result", {"taskId": task}) == most - 1
