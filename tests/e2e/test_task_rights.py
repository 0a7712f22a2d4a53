"""Who may ask for a task, and what the rates count, however the task was made."""

from typing import Any

import httpx

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import WORK, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.issuer import Issuer
from tests.support.legacy_task_client import Tasks
from tests.support.mcp_clients import messages
from tests.support.task_client import TaskClient

BURST = 12


def served(client: Tasks, method: str, params: Any) -> int:
    """How many of more requests than the session may send are answered. The others are refused."""
    statuses = [client.client.call(method, params).status_code for _ in range(BURST + 3)]
    assert sorted(set(statuses)) == [200, 429]
    return statuses.count(200)


@requirement("task.asked", "pol.limits")
def test_each_request_counts_once_and_before_a_task_is_made(http: httpx.Client) -> None:
    rate = {"session_rate": {"burst": BURST, "per_s": 0.01}}
    options = {"policy": rate, "admin": {"keys": {"olga": sha256("olga")}}}
    with in_process_gateway({"work": server((*WORK, "legacy"))}, options=options) as gateway:
        plain, asked, results, waits = (Tasks(gateway.url, http) for _ in range(4))
        call: Any = {"name": "work", "arguments": {"job": "one"}}
        most = served(plain, "tools/call", call)
        assert served(asked, "tools/call", call | {"task": {}}) == most
        metrics = http.get(f"{gateway.base}/metrics", headers=bearer("olga")).text.splitlines()
        made = next(line for line in metrics if line.startswith('mcp_gateway_tasks_total{event="made"} '))
        assert float(made.split()[1]) == most, "what is refused has no task"
        task = results.begin("work", job="three")["taskId"]
        assert served(results, "tasks/result", {"taskId": task}) == most - 1
        long = waits.begin("work", job="long", seconds=2.5)["taskId"]
        done = waits.ask("tasks/result", {"taskId": long})
        assert done["content"][0]["text"] == "done long"
        assert served(waits, "tools/call", call) == most - 2, "the wait is one call"


@requirement("task.rights")
def test_a_weaker_credential_of_the_same_principal_reaches_no_task_of_a_stronger_one(
    issuer: Issuer, http: httpx.Client
) -> None:
    claims = {"trust": "trust", "workspace": "team", "permissions": "may"}
    options = {
        "auth": issuer.settings(claims=claims),
        "session": {"trust": "sandboxed"},
        "tasks": {"after_s": 0.2, "poll_ms": 150},
    }
    servers = {
        "guarded": server((*WORK, "legacy"), permissions=["notes.write"], direct_only=True),
        "open": server((*WORK, "modern")),
    }
    with in_process_gateway(servers, options=options) as gateway:
        token = issuer.token("ada", trust="direct", team="red", may=["notes.write"])
        strong, weak = (TaskClient(gateway.url, http, headers=bearer(each)) for each in (token, issuer.token("ada")))
        task = strong.begin("guarded__work", job=1, seconds=1.5)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            refused = messages(weak.send(method, task, inputResponses={}))[-1]["error"]
            assert refused["code"] == -32602 and "Unknown task" in refused["message"], method
        assert strong.until(task, "completed")["result"]["content"][0]["text"] == "done 1"
        over = messages(weak.send("tasks/get", task))[-1]["error"]
        assert over["code"] == -32602, "nor the result, once the task is over"
        mine = weak.begin("open__work", job=2, seconds=0.6)
        assert weak.until(mine, "completed") and strong.get(mine)["status"] == "completed"
