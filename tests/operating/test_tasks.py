"""Operators find and cancel tasks on whatever replica they ask, by REST, command line and console."""

import json
from typing import Any

import httpx

from tests.operating.conftest import OPERATOR, Cli
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


def test_the_page_of_a_session_lists_its_tasks_and_only_a_page_of_the_console_cancels_one(
    pair: tuple[RunningGateway, RunningGateway], ops: httpx.Client, http: httpx.Client
) -> None:
    here, there = pair
    client = TaskClient(f"{here.base}/servers/probe/mcp", http)
    handle = client.begin("sleep", seconds=60.0)
    row = ops.get(f"{there.base}/admin/api/tasks/{handle}").json()
    assert f'/admin/tasks/{row["task"]}"' in ops.get(f"{there.base}/admin/sessions/{row['session']}").text
    signed = http.post(f"{there.base}/admin/sign-in", data={"key": OPERATOR})
    cookie = {"Cookie": signed.headers["set-cookie"].partition(";")[0]}
    form = f"{there.base}/admin/tasks/{row['task']}/cancel"
    for strange in ({"Sec-Fetch-Site": "same-site", "Origin": "https://elsewhere.example"}, {"Origin": "null"}):
        assert http.post(form, headers=cookie | strange).status_code == 403, strange
        delete = http.delete(f"{there.base}/admin/api/tasks/{row['task']}", headers=cookie | strange)
        assert delete.status_code == 401, strange
    assert http.post(form).status_code == 403, "nobody has signed in"
    assert http.get(form, headers=cookie).status_code in (404, 405), "no link cancels"
    assert client.get(handle)["status"] == "working"
    own = {"Sec-Fetch-Site": "same-origin", "Origin": there.base}
    assert http.post(form, headers=cookie | own).status_code == 303
    client.until(handle, "cancelled")
    assert http.post(form, headers=cookie | own).status_code == 409, "it is over"
