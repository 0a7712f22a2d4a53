"""The experimental tasks of 2025-11-25: relayed to clients of their era, and followed for clients of another."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, TASKS, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.legacy_task_client import Listening, Tasks
from tests.support.mcp_clients import (
    DECLARES_TASKS,
    SESSION_KEY,
    Legacy,
    Modern,
    error_of,
    result_of,
    tool_text,
)
from tests.support.task_server import RELATED, running_http_tasks
from tests.support.waiting import eventually

pytestmark = requirement("task.relay")

SERVERS = ("http", "shared", "stdio")


def serving(era: str) -> Iterator[InProcessGateway]:
    command = (*TASKS, era)
    with running_http_tasks(era) as upstream:
        servers = {"stdio": server(command), "shared": server(command, shared=True), "http": {"url": upstream.url}}
        with in_process_gateway(servers | {"plain": server(DEMO)}, options={"tasks": {"after_s": 0.3}}) as running:
            yield running


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    yield from serving("legacy")


@pytest.fixture(scope="module")
def modern() -> Iterator[InProcessGateway]:
    yield from serving("modern")


def clients(gateway: InProcessGateway, http: httpx.Client, name: str) -> list[Tasks]:
    """Clients of one server, at the address of all servers and at its own."""
    return [Tasks(gateway.url, http, f"{name}__"), Tasks(f"{gateway.base}/servers/{name}/mcp", http)]


@pytest.mark.parametrize("name", SERVERS)
def test_a_legacy_task_lives_under_the_gateways_id(gateway: InProcessGateway, http: httpx.Client, name: str) -> None:
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


@pytest.mark.parametrize("name", SERVERS)
def test_a_task_that_asks_is_answered_while_its_result_is_awaited(
    gateway: InProcessGateway, http: httpx.Client, name: str
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


@requirement("wall.memory")
@pytest.mark.parametrize("name", SERVERS)
def test_only_its_own_session_is_told_of_a_task(gateway: InProcessGateway, http: httpx.Client, name: str) -> None:
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


@requirement("id.forged")
def test_unknown_tasks_and_methods_are_errors_of_the_protocol(gateway: InProcessGateway, http: httpx.Client) -> None:
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


def test_tasks_of_several_servers_are_one_list(gateway: InProcessGateway, http: httpx.Client) -> None:
    tasks = Tasks(gateway.url, http)
    made = {name: [tasks.begin(f"{name}__work")["taskId"] for _ in range(3)] for name in SERVERS}
    assert sorted(tasks.listed()) == sorted(task for of_server in made.values() for task in of_server)


def test_a_task_is_found_from_a_later_session_of_its_client(gateway: InProcessGateway, http: httpx.Client) -> None:
    task = Tasks(gateway.url, http, "stdio__").begin("work")["taskId"]
    later = Tasks(gateway.url, http)
    assert later.until(task, "completed")
    assert later.ask("tasks/result", {"taskId": task})["content"][0]["text"] == "work is done"


def seen_by(client: Any, name: str) -> list[Any]:
    found: list[Any] = json.loads(tool_text(client.tool(f"{name}__seen")))
    return found


def asked_and_answered(client: Legacy, tool: str, **more: Any) -> list[Any]:
    """The messages of a tool call, whose questions are answered."""
    seen = list[Any]()
    with client.streaming("tools/call", {"name": tool, "arguments": {}, **more}) as coming:
        for message in coming:
            seen.append(message)
            if message.get("method") == "elicitation/create":
                client.reply(message, result={"action": "accept", "content": {"name": "Ada"}})
    return seen


@requirement("spec.bridge")
@pytest.mark.parametrize("name", SERVERS)
def test_a_legacy_client_gets_the_outcome_of_a_modern_servers_task(
    modern: InProcessGateway, http: httpx.Client, name: str
) -> None:
    client = Legacy(modern.url, http).open(capabilities={"elicitation": {}})
    for tool in ("work", "must"):
        result = result_of(client.tool(f"{name}__{tool}"))
        assert result == {"content": [{"type": "text", "text": f"{tool} is done"}]}, "and nothing of the task"
    failed = error_of(client.tool(f"{name}__fail"))
    assert (failed["code"], failed["message"]) == (-32603, "it broke")
    *notes, answer = asked_and_answered(client, f"{name}__ask", _meta={"progressToken": "p"})
    assert answer["result"]["content"][0]["text"] == "hello Ada"
    told = [note["params"] for note in notes if note["method"] == "notifications/progress"]
    assert all(note["progressToken"] == "p" for note in told)
    assert [note["progress"] for note in told] == [*range(1, len(told) + 1)]
    assert "asking" in [note["message"] for note in told]


@requirement("spec.bridge")
@pytest.mark.parametrize("name", SERVERS)
def test_a_modern_client_gets_the_result_of_a_tool_that_is_a_task_only(
    gateway: InProcessGateway, http: httpx.Client, name: str
) -> None:
    plain = Modern(gateway.url, http)
    result = result_of(plain.tool(f"{name}__must"))
    assert result["content"] == [{"type": "text", "text": "must is done"}]
    assert result["resultType"] == "complete" and "task" not in result
    assert "io.modelcontextprotocol/related-task" not in result.get("_meta", {})
    # A client that takes tasks gets one of the gateway's.
    made = result_of(plain.tool(f"{name}__must", {"for_s": 1}, meta=DECLARES_TASKS))
    assert made["resultType"] == "task"

    def got() -> Any:
        return result_of(plain.send("tasks/get", {"taskId": made["taskId"]}, meta=DECLARES_TASKS))

    assert eventually(lambda: got()["status"] == "completed")
    assert got()["result"]["content"][0]["text"] == "must is done"


@requirement("spec.bridge")
@pytest.mark.parametrize("name", SERVERS)
def test_a_call_that_is_cancelled_cancels_the_task(
    gateway: InProcessGateway, modern: InProcessGateway, http: httpx.Client, name: str
) -> None:
    old = Legacy(modern.url, http).open()
    token = result_of(Modern(gateway.url, http).tool(f"{name}__plain"))["_meta"][SESSION_KEY]
    new = Modern(gateway.url, http, headers={"MCP-Gateway-Session": token})
    with httpx.Client(timeout=1.0) as impatient:
        same = Legacy(old.url, impatient)
        same.session, same._ids = old.session, itertools.count(77)
        for client in (same, Modern(new.url, impatient, headers=new.headers)):
            with pytest.raises(httpx.ReadTimeout):
                client.tool(f"{name}__must", {"for_s": 60})
    old.notify("notifications/cancelled", {"requestId": 77})
    for each in (old, new):
        assert eventually(lambda each=each: any(m.get("method") == "tasks/cancel" for m in seen_by(each, name)))  # type: ignore[misc]  # of this round
