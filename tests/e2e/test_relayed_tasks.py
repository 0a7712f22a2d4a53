"""Tasks of modern servers for modern clients: their ids are the gateway's, and lead to them from anywhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import TASKS, RunningGateway, replicas, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import DECLARES_TASKS, error_of, tool_text, without_id
from tests.support.redis_server import RunningRedis
from tests.support.task_client import TaskClient
from tests.support.task_server import EXTENSION, HttpTasks, running_http_tasks
from tests.support.waiting import gone

pytestmark = requirement("task.relay")

ACCEPT = {"action": "accept", "content": {"name": "Ada"}}
SERVERS = ("http", "shared", "stdio")
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
SESSION_KEY = "io.github.mcp-session-gateway/session"


@pytest.fixture(scope="module")
def upstream() -> Iterator[HttpTasks]:
    with running_http_tasks("modern") as running:
        yield running


@pytest.fixture(scope="module")
def gateway(upstream: HttpTasks) -> Iterator[InProcessGateway]:
    modern = (*TASKS, "modern")
    servers = {
        "stdio": server(modern),
        "shared": server(modern, shared=True),
        "lazy": server(modern, idle_stop_s=0.3),
        "http": {"url": upstream.url},
    }
    with in_process_gateway(servers, options={"session": {"unconfirmed_ttl_s": 1.0}}) as running:
        yield running


def clients(gateway: InProcessGateway, http: httpx.Client, name: str) -> list[TaskClient]:
    """Clients of one server, at the address of all servers and at its own."""
    return [TaskClient(gateway.url, http, f"{name}__"), TaskClient(f"{gateway.base}/servers/{name}/mcp", http)]


@pytest.mark.parametrize("name", SERVERS)
def test_a_task_is_found_by_its_id_alone(gateway: InProcessGateway, http: httpx.Client, name: str) -> None:
    for tasks in clients(gateway, http, name):
        made = tasks.call("work", ttl=60_000)
        assert (made["resultType"], made["status"], made["ttlMs"]) == ("task", "working", 60_000)
        assert "task/" not in made["taskId"], "the server's own id does not leave the gateway"
        done = tasks.until(made["taskId"], "completed")
        assert done["result"]["content"][0]["text"] == "work is done"
        assert done["taskId"] == made["taskId"] and done["x-more"]["kept"] == [1, None]
        assert (done["resultType"], done["pollIntervalMs"]) == ("complete", 50)
        assert SESSION_KEY not in done.get("_meta", {}), "an id gives no session"


@pytest.mark.parametrize("name", SERVERS)
def test_a_task_asks_fails_and_is_cancelled(gateway: InProcessGateway, http: httpx.Client, name: str) -> None:
    for tasks in clients(gateway, http, name):
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


@requirement("ext.relay")
def test_a_server_is_asked_for_a_task_by_its_own_id(
    gateway: InProcessGateway, http: httpx.Client, upstream: HttpTasks
) -> None:
    (tasks, _) = clients(gateway, http, "http")
    task = tasks.call("work")["taskId"]
    tasks.until(task, "completed")
    own = next(reversed(upstream.server.tasks))
    assert [m["params"]["taskId"] for m in upstream.server.seen if m.get("method") == "tasks/get"][-1] == own
    named = [headers["mcp-name"] for headers in upstream.headers if headers.get("mcp-method") == "tasks/get"]
    assert named[-1] == own


@pytest.mark.parametrize("name", SERVERS)
def test_without_the_extension_on_a_request_there_are_no_tasks(
    gateway: InProcessGateway, http: httpx.Client, name: str
) -> None:
    tasks, _ = clients(gateway, http, name)
    task = tasks.call("work")["taskId"]
    needed: Any = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
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


@pytest.mark.parametrize("name", SERVERS)
def test_a_client_is_notified_of_the_tasks_that_it_names(
    gateway: InProcessGateway, http: httpx.Client, name: str
) -> None:
    for tasks in clients(gateway, http, name):
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
            told = [next(stream) for _ in range(4)]
        assert {message["method"] for message in told} == {"notifications/tasks"}
        assert {message["params"]["_meta"][SUBSCRIPTION] for message in told} == {1}
        states = [(message["params"]["taskId"], message["params"]["status"]) for message in told]
        for task in (first, second):
            assert [status for about, status in states if about == task] == ["working", "completed"]
        whole = next(message["params"] for message in told if message["params"]["status"] == "completed")
        assert whole["result"]["content"][0]["text"] == "hello Ada" and whole["x-more"]["kept"] == [1, None]
        got = tasks.get(whole["taskId"])
        differs = {"_meta": 0, "lastUpdatedAt": 0, "createdAt": 0}
        assert {**got, **differs} == {**whole, "resultType": "complete", **differs}


def test_one_stream_notifies_of_tasks_of_several_servers_and_of_lists(
    gateway: InProcessGateway, http: httpx.Client
) -> None:
    begun = [TaskClient(gateway.url, http, f"{name}__").call("work", for_s=1)["taskId"] for name in SERVERS]
    with TaskClient(gateway.url, http).listening(*begun, toolsListChanged=True) as stream:
        honoured = next(stream)["params"]["notifications"]
        assert honoured["taskIds"] == begun and honoured["toolsListChanged"] is True
        assert {next(stream)["params"]["taskId"] for _ in begun} == {*begun}


def test_who_takes_no_tasks_is_notified_of_none(gateway: InProcessGateway, http: httpx.Client) -> None:
    tasks, _ = clients(gateway, http, "http")
    task = tasks.call("work")["taskId"]
    refused = tasks.client.send("subscriptions/listen", {"notifications": {"taskIds": [task]}})
    error = without_id(error_of(refused))
    assert (refused.status_code, error["code"]) == (400, -32021)
    assert error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    wrong = tasks.client.send("subscriptions/listen", {"notifications": {"taskIds": {}}}, meta=DECLARES_TASKS)
    assert (wrong.status_code, error_of(wrong)["code"]) == (400, -32602)


@requirement("life.unconfirmed")
def test_a_task_keeps_its_session_and_its_process_until_it_is_over(
    gateway: InProcessGateway, http: httpx.Client
) -> None:
    """No other request comes for its session, whose server is stopped when it is idle."""
    tasks, _ = clients(gateway, http, "lazy")
    made = tasks.call("work", for_s=3)
    process = psutil.Process(made["x-more"]["pid"])
    assert not gone([process], within_s=2.8)
    tasks.until(made["taskId"], "completed")
    assert gone([process])


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
def test_a_task_is_reached_through_every_replica(
    redis_server: RunningRedis, http: httpx.Client, upstream: HttpTasks
) -> None:
    servers = {"stdio": server((*TASKS, "modern")), "http": {"url": upstream.url}}
    with replicas(redis_server.url, servers, 3) as gateways:
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
