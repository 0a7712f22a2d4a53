"""Tasks of servers of both eras: their ids are the gateway's, lead to them from anywhere, or are followed."""

import contextlib
import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import DEMO, TASKS, RunningGateway, replicas, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.legacy_task_client import Tasks
from tests.support.mcp_clients import (
    DECLARES_TASKS,
    SESSION_KEY,
    Legacy,
    Modern,
    error_of,
    posted,
    result_of,
    tool_text,
    without_id,
)
from tests.support.redis_server import RunningRedis
from tests.support.task_client import TaskClient
from tests.support.task_server import EXTENSION, RELATED, running_http_tasks
from tests.support.waiting import eventually

pytestmark = requirement("task.relay")

ACCEPT = {"action": "accept", "content": {"name": "Ada"}}
SERVERS = ("http", "shared", "stdio")
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def serving(era: str) -> Iterator[InProcessGateway]:
    command = (*TASKS, era)
    with running_http_tasks(era) as upstream:
        servers = {"stdio": server(command), "shared": server(command, shared=True), "http": {"url": upstream.url}}
        options = {"tasks": {"after_s": 0.3}} if era == "legacy" else {}  # modern servers make their own
        with in_process_gateway(servers | {"plain": server(DEMO)}, options=options) as running:
            yield running


@pytest.fixture(scope="module")
def legacy() -> Iterator[InProcessGateway]:
    yield from serving("legacy")


@pytest.fixture(scope="module")
def modern() -> Iterator[InProcessGateway]:
    yield from serving("modern")


def clients(kind: Any, gateway: InProcessGateway, http: httpx.Client, name: str) -> list[Any]:
    """Clients of one server, at the address of all servers and at its own."""
    return [kind(gateway.url, http, f"{name}__"), kind(f"{gateway.base}/servers/{name}/mcp", http)]


@pytest.mark.parametrize("name", SERVERS)
def test_a_task_is_found_by_its_id_alone(modern: InProcessGateway, http: httpx.Client, name: str) -> None:
    for tasks in clients(TaskClient, modern, http, name):
        made = tasks.call("work", ttl=60_000)
        assert (made["resultType"], made["status"], made["ttlMs"]) == ("task", "working", 60_000)
        assert "task/" not in made["taskId"], "the server's own id does not leave the gateway"
        done = tasks.until(made["taskId"], "completed")
        assert done["result"]["content"][0]["text"] == "work is done"
        assert done["taskId"] == made["taskId"] and done["x-more"]["kept"] == [1, None]
        assert (done["resultType"], done["pollIntervalMs"]) == ("complete", 50)
        assert SESSION_KEY not in done.get("_meta", {}), "an id gives no session"


@pytest.mark.parametrize("name", SERVERS)
def test_a_task_asks_fails_and_is_cancelled(modern: InProcessGateway, http: httpx.Client, name: str) -> None:
    for tasks in clients(TaskClient, modern, http, name):
        task = tasks.call("ask")["taskId"]
        asked = tasks.until(task, "input_required")
        assert asked["inputRequests"]["q1"]["params"]["message"] == "who?"
        tasks.answer(task, ["other"], ACCEPT)
        tasks.answer(task, ["q1"], ACCEPT)
        assert tasks.until(task, "completed")["result"]["content"][0]["text"] == "hello Ada"

        failed = tasks.until(tasks.call("fail")["taskId"], "failed")
        assert failed["error"] == {"code": -32603, "message": "it broke"}

        task = tasks.call("work", for_s=60)["taskId"]
        tasks.cancel(task)
        assert tasks.until(task, "cancelled")


@pytest.mark.parametrize("name", SERVERS)
def test_without_the_extension_on_a_request_there_are_no_tasks(
    modern: InProcessGateway, http: httpx.Client, name: str
) -> None:
    tasks, _ = clients(TaskClient, modern, http, name)
    task = tasks.call("work")["taskId"]
    needed: Any = {"reason": "missing_capability", "requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        response = tasks.client.send(method, {"taskId": task, "inputResponses": {}})
        error = without_id(error_of(response))
        assert (response.status_code, error["code"], error["data"]) == (400, -32021, needed), method
    # A server that makes a task all the same is told that nobody wants it.
    sneaky = tasks.client.tool(f"{name}__sneak")
    error = without_id(error_of(sneaky))
    assert (error["code"], error["data"]) == (-32021, needed)
    session = {"MCP-Gateway-Session": tasks.call("plain")["_meta"][SESSION_KEY]}
    sneaky = tasks.client.tool(f"{name}__sneak", {"for_s": 60}, headers=session)
    assert error_of(sneaky)["code"] == -32021
    seen = json.loads(tool_text(tasks.client.tool(f"{name}__seen", headers=session)))
    cancelled = [message["params"] for message in seen if message.get("method") == "tasks/cancel"]
    assert EXTENSION in cancelled[-1]["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"]


def unknown(tasks: TaskClient, task: str) -> Any:
    """The answers to all requests about a task, which are the same for every task that is unknown."""
    answers = [
        tasks.client.send(method, {"taskId": task, "inputResponses": {}}, meta=DECLARES_TASKS)
        for method in ("tasks/get", "tasks/update", "tasks/cancel")
    ]
    found = {(a.status_code, json.dumps(without_id(error_of(a)))) for a in answers}
    assert len(found) == 1
    return found.pop()


@requirement("id.forged", "id.bound")
def test_whoever_may_not_have_a_task_learns_nothing_of_it(tasked: RunningGateway, http: httpx.Client) -> None:
    alice, bob = (TaskClient(tasked.url, http, "extension__", headers=bearer(KEYS[who])) for who in ("alice", "bob"))
    made = alice.call("work", for_s=60)
    task = made["taskId"]
    assert alice.get(task)["status"] == "working"
    forged = unknown(alice, task[:-1] + ("A" if task[-1] != "A" else "B"))
    assert json.loads(forged[1])["code"] == -32602
    assert unknown(bob, task) == forged, "another principal"
    assert unknown(alice, "task/1:1") == forged, "the server's own id, or anything else"
    elsewhere = TaskClient(tasked.at("extension"), http, headers=alice.client.headers)
    assert unknown(elsewhere, task) == forged, "another endpoint"
    assert alice.get(task)["status"] == "working", "and the task goes on"


def until_completed(stream: Iterator[dict[str, Any]], tasks: int) -> Iterator[dict[str, Any]]:
    """Yield the notifications until so many tasks are completed."""
    while tasks:
        message = next(stream)
        tasks -= message["params"]["status"] == "completed"
        yield message


@pytest.mark.parametrize("name", SERVERS)
def test_a_client_is_notified_of_the_tasks_that_it_names(
    modern: InProcessGateway, http: httpx.Client, name: str
) -> None:
    for tasks in clients(TaskClient, modern, http, name):
        first, second, other = (tasks.call("ask")["taskId"] for _ in range(3))
        for task in (first, second, other):
            tasks.until(task, "input_required")
        with tasks.listening(first, "forged", second) as stream:
            acknowledged = next(stream)
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
            assert acknowledged["params"]["notifications"] == {"taskIds": [first, second]}
            assert acknowledged["params"]["_meta"][SUBSCRIPTION] == 1
            for task in (other, second, first):
                tasks.answer(task, ["q1"], ACCEPT)
            told = list(until_completed(stream, 2))
        assert {message["method"] for message in told} == {"notifications/tasks"}
        assert {message["params"]["_meta"][SUBSCRIPTION] for message in told} == {1}
        states = [(message["params"]["taskId"], message["params"]["status"]) for message in told]
        for task in (first, second):
            *before, working, completed = (status for about, status in states if about == task)
            # The server may tell of the question after it has answered `tasks/get` with it.
            assert (working, completed) == ("working", "completed") and before in ([], ["input_required"])
        whole = next(message["params"] for message in told if message["params"]["status"] == "completed")
        assert whole["result"]["content"][0]["text"] == "hello Ada" and whole["x-more"]["kept"] == [1, None]
        got = tasks.get(whole["taskId"])
        differs = {"_meta": 0, "lastUpdatedAt": 0, "createdAt": 0}
        assert {**got, **differs} == {**whole, "resultType": "complete", **differs}


def test_who_takes_no_tasks_is_notified_of_none(modern: InProcessGateway, http: httpx.Client) -> None:
    tasks, _ = clients(TaskClient, modern, http, "http")
    task = tasks.call("work")["taskId"]
    refused = tasks.client.send("subscriptions/listen", {"notifications": {"taskIds": [task]}})
    error = without_id(error_of(refused))
    assert (refused.status_code, error["code"]) == (400, -32021)
    assert error["data"]["requiredCapabilities"] == {"extensions": {EXTENSION: {}}}
    wrong = tasks.client.send("subscriptions/listen", {"notifications": {"taskIds": {}}}, meta=DECLARES_TASKS)
    assert (wrong.status_code, error_of(wrong)["code"]) == (400, -32602)


@requirement("id.forged")
def test_a_task_of_an_ended_session_or_of_a_hidden_server_is_unknown(tmp_path: Path, http: httpx.Client) -> None:
    free = server((*TASKS, "modern"))
    options = {"store": f"sqlite:///{tmp_path}/sessions.db"}
    with in_process_gateway({"one": free, "two": free}, options=options) as gateway:
        tasks = TaskClient(gateway.url, http, "one__")
        made, kept = tasks.call("work", for_s=60), tasks.call("work", for_s=60)
        forged = unknown(tasks, made["taskId"][:-4] + "AAAA")
        ended = http.delete(gateway.url, headers={"Mcp-Session-Id": made["_meta"][SESSION_KEY]})
        assert ended.status_code == 200, ended.text
        assert unknown(tasks, made["taskId"]) == forged
        assert tasks.get(kept["taskId"])["status"] == "working"
    paid = {"one": server((*TASKS, "modern"), permissions=["paid"]), "two": free}
    with in_process_gateway(paid, options=options) as gateway:
        assert unknown(TaskClient(gateway.url, http), kept["taskId"]) == forged


@requirement("rep.any")
def test_a_task_is_reached_through_every_replica(redis_server: RunningRedis, http: httpx.Client) -> None:
    with running_http_tasks("modern") as upstream, contextlib.ExitStack() as stack:
        servers = {"stdio": server((*TASKS, "modern")), "http": {"url": upstream.url}}
        gateways = stack.enter_context(replicas(redis_server.url, servers, 3))
        for name in servers:
            one, two, three = (TaskClient(gateway.url, http, f"{name}__") for gateway in gateways)
            task = one.call("ask")["taskId"]
            two.until(task, "input_required")
            three.answer(task, ["q1"], ACCEPT)
            assert two.until(task, "completed")["result"]["content"][0]["text"] == "hello Ada"
        # The server behind a URL goes on when the gateway that relayed its task is killed.
        task = one.call("ask")["taskId"]
        gateways[0].kill()
        two.until(task, "input_required")
        three.answer(task, ["q1"], ACCEPT)
        assert two.until(task, "completed")


# -- the experimental tasks of 2025-11-25: relayed to clients of their era, and followed for clients of another


@pytest.mark.parametrize("name", SERVERS)
def test_a_legacy_task_lives_under_the_gateways_id(legacy: InProcessGateway, http: httpx.Client, name: str) -> None:
    for tasks in clients(Tasks, legacy, http, name):
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
    legacy: InProcessGateway, http: httpx.Client, name: str
) -> None:
    for tasks in clients(Tasks, legacy, http, name):
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


@requirement("proc.isolated")
@pytest.mark.parametrize("name", SERVERS)
def test_no_client_tells_a_server_of_what_another_session_was_asked(
    legacy: InProcessGateway, http: httpx.Client, name: str
) -> None:
    tasks, forged = Tasks(legacy.url, http, f"{name}__"), f"forged-{name}"
    told = {
        "notifications/progress": {"progressToken": forged, "progress": 1},
        "notifications/tasks/status": {"taskId": forged, "status": "failed"},
    }
    for method, params in told.items():
        assert tasks.client.notify(method, params).status_code == 202
    seen = [
        message["method"]
        for message in json.loads(tool_text(tasks.client.tool(f"{name}__seen")))
        if forged in str(message)
    ]
    assert seen == ([] if name == "shared" else [*told]), "what concerns its own session alone is its own affair"


def test_a_task_is_found_from_a_later_session_of_its_client(legacy: InProcessGateway, http: httpx.Client) -> None:
    task = Tasks(legacy.url, http, "stdio__").begin("work")["taskId"]
    later = Tasks(legacy.url, http)
    assert later.until(task, "completed")
    assert later.ask("tasks/result", {"taskId": task})["content"][0]["text"] == "work is done"


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
    legacy: InProcessGateway, http: httpx.Client, name: str
) -> None:
    plain = Modern(legacy.url, http)
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


def seen_by(client: Any, name: str) -> list[Any]:
    found: list[Any] = json.loads(tool_text(client.tool(f"{name}__seen")))
    return found


@requirement("spec.bridge")
@pytest.mark.parametrize("name", SERVERS)
def test_a_call_that_is_cancelled_cancels_the_task(
    legacy: InProcessGateway, modern: InProcessGateway, http: httpx.Client, name: str
) -> None:
    old = Legacy(modern.url, http).open()
    token = result_of(Modern(legacy.url, http).tool(f"{name}__plain"))["_meta"][SESSION_KEY]
    new = Modern(legacy.url, http, headers={"MCP-Gateway-Session": token})
    call: Any = {"name": f"{name}__must", "arguments": {"for_s": 60}}
    request = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": call}

    def times(*methods: str) -> list[int]:
        """How often the servers of the two sessions have seen one of these methods."""
        return [sum(message.get("method") in methods for message in seen_by(each, name)) for each in (old, new)]

    follow, cancels = times("tasks/get", "tasks/result"), times("tasks/cancel")
    with posted(old.url, request, old.request_headers()), new.leaving(f"{name}__must", call["arguments"]):
        assert eventually(lambda: all(map(operator.gt, times("tasks/get", "tasks/result"), follow))), "both are tasks"
    old.notify("notifications/cancelled", {"requestId": 77})
    assert eventually(lambda: all(map(operator.gt, times("tasks/cancel"), cancels)))
