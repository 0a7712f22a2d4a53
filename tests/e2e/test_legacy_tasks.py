"""The experimental tasks of 2025-11-25, between a legacy client and legacy servers."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, TASKS, RunningGateway, running_gateway, server
from tests.support.legacy_task_client import Listening, Tasks
from tests.support.mcp_clients import tool_text
from tests.support.task_server import RELATED, HttpTasks, running_http_tasks
from tests.support.waiting import eventually

SERVERS = ("http", "shared", "stdio")


@pytest.fixture(scope="module")
def upstream() -> Iterator[HttpTasks]:
    with running_http_tasks("legacy") as running:
        yield running


@pytest.fixture(scope="module")
def gateway(upstream: HttpTasks) -> Iterator[RunningGateway]:
    legacy = (*TASKS, "legacy")
    servers = {
        "stdio": server(legacy),
        "shared": server(legacy, shared=True),
        "http": {"url": upstream.url},
        "plain": server(DEMO),
    }
    with running_gateway(servers) as running:
        yield running


def clients(gateway: RunningGateway, http: httpx.Client, name: str) -> list[Tasks]:
    """Clients of one server, at the address of all servers and at its own."""
    return [Tasks(gateway.url, http, f"{name}__"), Tasks(f"{gateway.base}/servers/{name}/mcp", http)]


@requirement("task.relay")
@pytest.mark.parametrize("name", SERVERS)
def test_a_legacy_task_lives_under_the_gateways_id(gateway: RunningGateway, http: httpx.Client, name: str) -> None:
    for tasks in clients(gateway, http, name):
        assert tasks.handshake["capabilities"]["tasks"]["requests"] == {"tools": {"call": {}}}
        made = tasks.begin("work")
        assert (made["status"], made["ttl"], made["x-more"]["kept"]) == ("working", 60_000, [1, None])
        assert "task/" not in made["taskId"], "the server's own id does not leave the gateway"
        result = tasks.ask("tasks/result", {"taskId": made["taskId"]})
        assert result["content"][0]["text"] == "work is done"
        assert result["_meta"][RELATED] == {"taskId": made["taskId"]}
        assert tasks.get(made["taskId"])["status"] == "completed"
        assert tasks.get(made["taskId"])["taskId"] == made["taskId"]

        working = tasks.begin("work", for_s=60)["taskId"]
        assert tasks.ask("tasks/cancel", {"taskId": working})["status"] == "cancelled"
        assert tasks.error("tasks/cancel", {"taskId": working})["message"] == "already over"
        failed = tasks.begin("fail")["taskId"]
        assert tasks.error("tasks/result", {"taskId": failed})["message"] == "it broke"
        more = [tasks.begin("work")["taskId"] for _ in range(3)]
        assert tasks.listed() == [made["taskId"], working, failed, *more]
        assert tool_text(tasks.client.tool(f"{tasks.prefix}plain")) == "plain is done"


@requirement("task.relay")
@pytest.mark.parametrize("name", SERVERS)
def test_a_task_that_asks_is_answered_while_its_result_is_awaited(
    gateway: RunningGateway, http: httpx.Client, name: str
) -> None:
    for tasks in clients(gateway, http, name):
        task = tasks.begin("ask")["taskId"]
        tasks.until(task, "input_required")
        asked, *_, answer = tasks.answered(task, "Ada")
        assert asked["params"]["_meta"][RELATED] == {"taskId": task}
        assert answer["result"]["content"][0]["text"] == "hello Ada"
        assert answer["result"]["_meta"][RELATED] == {"taskId": task}
    seen = json.loads(tool_text(tasks.client.tool("seen")))
    replied = [
        message["result"]["_meta"][RELATED]["taskId"] for message in seen if "action" in message.get("result", {})
    ]
    assert replied and all(own.startswith("task/") for own in replied), "its server gets its own id"


@requirement("task.relay", "wall.memory")
@pytest.mark.parametrize("name", SERVERS)
def test_only_its_own_session_is_told_of_a_task(gateway: RunningGateway, http: httpx.Client, name: str) -> None:
    mine, other = (Tasks(gateway.url, http, f"{name}__") for _ in range(2))
    with Listening(mine.client) as told, Listening(other.client) as others:
        task = mine.begin("work", meta={"progressToken": "p1"}, for_s=0.3)["taskId"]
        assert eventually(lambda: len(told.of("notifications/tasks/status")) == 1)
        (status,) = told.of("notifications/tasks/status")
        assert (status["taskId"], status["status"]) == (task, "completed")
        (progress,) = told.of("notifications/progress")
        assert (progress["progressToken"], progress["_meta"][RELATED]) == ("p1", {"taskId": task})
        # The other session is busy with the same server, and its own tasks are its only ones.
        own = other.begin("work")["taskId"]
        assert eventually(lambda: [s["taskId"] for s in others.of("notifications/tasks/status")] == [own])
        assert not others.of("notifications/progress")
        assert mine.listed() == [task] and other.listed() == [own]


@requirement("task.relay", "id.forged")
def test_unknown_tasks_and_methods_are_errors_of_the_protocol(gateway: RunningGateway, http: httpx.Client) -> None:
    tasks = Tasks(gateway.url, http, "stdio__")
    task = tasks.begin("work", for_s=60)["taskId"]
    elsewhere = Tasks(f"{gateway.base}/servers/stdio/mcp", http)
    for method in ("tasks/get", "tasks/result", "tasks/cancel"):
        errors = [
            tasks.error(method, {"taskId": "task/1:1"}),
            tasks.error(method, {"taskId": task[:-1] + ("A" if task[-1] != "A" else "B")}),
            elsewhere.error(method, {"taskId": task}),
        ]
        assert {(error["code"], error["message"]) for error in errors} == {(-32602, errors[0]["message"])}, method
    assert tasks.error("tasks/update", {"taskId": task})["code"] == -32601
    assert tasks.error("tasks/list", {"cursor": "nonsense"})["code"] == -32602


@requirement("task.relay")
def test_tasks_of_several_servers_are_one_list(gateway: RunningGateway, http: httpx.Client) -> None:
    tasks = Tasks(gateway.url, http)
    made = {name: [tasks.begin(f"{name}__work")["taskId"] for _ in range(3)] for name in SERVERS}
    assert sorted(tasks.listed()) == sorted(task for of_server in made.values() for task in of_server)


@requirement("task.relay")
def test_a_task_is_found_from_a_later_session_of_its_client(gateway: RunningGateway, http: httpx.Client) -> None:
    task = Tasks(gateway.url, http, "stdio__").begin("work")["taskId"]
    later = Tasks(gateway.url, http)
    assert later.until(task, "completed")
    assert later.ask("tasks/result", {"taskId": task})["content"][0]["text"] == "work is done"
