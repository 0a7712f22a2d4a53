"""Operators find and cancel tasks on whatever replica they ask, by REST, command line and console."""

import json
from typing import Any

import httpx

from tests.operating.conftest import Cli
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway
from tests.support.task_client import TaskClient
from tests.support.waiting import eventually

pytestmark = requirement("task.operators")


def outcomes(ops: httpx.Client, gateway: RunningGateway, task: str) -> list[str]:
    """What the audit trail says of a task, newest first."""
    events = ops.get(f"{gateway.base}/admin/api/events", params={"limit": 1_000}).json()
    return [one["outcome"] for one in events if one["event"] == "task" and one["reason"].startswith(task)]


def test_a_task_is_found_and_cancelled_from_another_replica(
    pair: tuple[RunningGateway, RunningGateway], ops: httpx.Client, http: httpx.Client, cli: Cli
) -> None:
    here, there = pair
    client = TaskClient(f"{here.base}/servers/probe/mcp", http)
    handle, other = client.begin("sleep", seconds=60.0), client.begin("sleep", seconds=60.0)
    listed: list[Any] = ops.get(f"{there.base}/admin/api/tasks", params={"status": "working"}).json()["tasks"]
    assert [(row["server"], row["tool"], row["runs"]) for row in listed[:2]] == [("probe", "sleep", 1)] * 2
    newest = listed[0]["task"]
    shown = json.loads(cli("tasks", "show", newest, "--json", url=there.base).stdout)
    assert shown["status"] == "working" and shown["session"] == listed[0]["session"]
    named = json.loads(cli("tasks", "show", other, "--json", url=there.base).stdout)
    assert named["task"] == newest, "the client's own id names the task"
    [found] = json.loads(cli("tasks", "list", "--find", other, "--json", url=there.base).stdout)["tasks"]
    assert found["task"] == newest
    assert newest in ops.get(f"{there.base}/admin/tasks/{newest}").text
    assert f'/admin/tasks/{newest}"' in ops.get(f"{there.base}/admin/sessions/{listed[0]['session']}").text

    assert cli("tasks", "cancel", newest, url=there.base).stdout == f"cancelled {newest}\n"
    done = client.until(other, "cancelled")
    assert "the operator olga cancelled the task" in done["statusMessage"]
    assert client.get(handle)["status"] == "working", "the other one goes on"
    again = ops.delete(f"{there.base}/admin/api/tasks/{newest}")
    assert again.status_code == 409 and "over already: cancelled" in again.json()["detail"]
    assert ops.delete(f"{here.base}/admin/api/tasks/{listed[1]['task']}").json() == {"cancelled": listed[1]["task"]}
    client.until(handle, "cancelled")

    assert eventually(lambda: outcomes(ops, here, newest) == ["cancelled", "made"]), (
        "newest first; replicas write their events each second"
    )
    table = cli("tasks", "list", "--find", "sleep", "--status", "cancelled", url=here.base).stdout
    assert newest in table and "olga" in table


def test_operators_see_that_the_tool_of_a_completed_task_has_failed(
    pair: tuple[RunningGateway, RunningGateway], ops: httpx.Client, http: httpx.Client, cli: Cli
) -> None:
    here, there = pair
    client = TaskClient(f"{here.base}/servers/probe/mcp", http)
    handle = client.begin("fail", seconds=1.0)
    done = client.until(handle, "completed")
    assert done["result"]["isError"] and done["statusMessage"] == "the tool has reported an error"
    row = ops.get(f"{there.base}/admin/api/tasks/{handle}").json()
    assert (row["status"], row["tool_error"], row["error_code"]) == ("completed", True, 0)
    for status in ("tool_error", "tool error"):  # as REST has it, and as the table prints it
        shown = cli("tasks", "list", "--status", status, url=there.base).stdout
        assert row["task"] in shown and "tool error" in shown
    for page in (f"tasks/{row['task']}", "tasks?status=tool_error"):
        assert ">tool error</" in ops.get(f"{there.base}/admin/{page}").text, page
    assert 'mcp_gateway_tasks_total{event="tool error"} 1' in ops.get(f"{here.base}/metrics").text
    assert eventually(lambda: ["tool error", "made"] == outcomes(ops, here, row["task"]))
