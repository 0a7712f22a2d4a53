"""`start_task`, `task_status` and `task_result`: any model starts a call, goes on, and fetches the result later.

And what counts, and who may ask, for tasks however they are made.
"""

from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import WORK, RunningGateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.issuer import Issuer
from tests.support.legacy_task_client import Tasks
from tests.support.mcp_clients import Legacy, Modern, messages
from tests.support.task_client import TaskClient

TOOLS = {"start_task", "task_status", "task_result"}
ERAS = ("legacy", "modern")


class Model:
    """A model behind a modern client that knows nothing of tasks."""

    def __init__(self, gateway: RunningGateway, http: httpx.Client, name: str = "alice") -> None:
        self.client = Modern(gateway.url, http, headers=bearer(KEYS[name]))

    def tool(self, name: str, **arguments: Any) -> Any:
        return messages(self.client.tool(name, arguments))[-1]["result"]

    def start(self, tool: str, **arguments: Any) -> str:
        started = self.tool("start_task", tool=tool, arguments=arguments)
        assert not started.get("isError"), started
        return str(started["structuredContent"]["task"])


@pytest.fixture
def model(tasked: RunningGateway, http: httpx.Client) -> Model:
    return Model(tasked, http)


@requirement("task.tools")
def test_the_tools_stand_behind_those_of_the_servers_in_both_eras(model: Model) -> None:
    legacy = Legacy(model.client.url, model.client.http, headers=bearer(KEYS["alice"])).open()
    for answer in (model.client.send("tools/list"), legacy.call("tools/list")):
        listed = [tool["name"] for tool in messages(answer)[-1]["result"]["tools"]]
        assert set(listed[-3:]) == TOOLS and "legacy__slow_build" in listed and len(listed) == len(set(listed))


@requirement("task.tools")
@pytest.mark.parametrize("era", ERAS)
def test_a_started_call_is_fetched_later(model: Model, era: str) -> None:
    task = model.start(f"{era}__slow_build", job=era, seconds=0.6)
    status = model.tool("task_status", task=task)
    assert status["structuredContent"] == {"task": task, "status": "working"}
    early = model.tool("task_result", task=task, wait_s=0)
    assert early["structuredContent"]["status"] == "working"
    done = model.tool("task_result", task=task, wait_s=20)
    assert done["content"][0]["text"] == f"done {era}" and done["resultType"] == "complete"
    assert model.tool("task_result", task=task)["content"] == done["content"], "it stays"
    assert model.tool("task_status", task=task)["structuredContent"]["status"] == "completed"


@requirement("task.tools")
def test_what_cannot_be_started_is_told_at_once(model: Model) -> None:
    for tool, why in [
        ("nowhere__at_all", "nknown tool"),
        ("start_task", "itself a tool of tasks"),
        ("", "nknown tool"),
    ]:
        refused = model.tool("start_task", tool=tool)
        assert refused["isError"] and why in refused["content"][0]["text"], refused
    refused = model.tool("start_task", tool="legacy__nothing")
    assert refused["content"][0]["text"] == "Unknown tool: legacy__nothing", "under the name that the model used"
    assert model.tool("task_status")["isError"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"args": {}}, "no argument 'args'. It has: arguments, tool"),
        ({"arguments": "job"}, "arguments.arguments must be an object"),
        ({"tool": "demo__recall", "arguments": {}}, "key"),
    ]
    for more, why in wrong * 4:  # which use up no task of the session
        refused = model.tool("start_task", **({"tool": "legacy__slow_build"} | more))
        assert refused["isError"] and why in refused["content"][0]["text"], refused
    assert "no argument 'wait'" in model.tool("task_result", task="x", wait=1)["content"][0]["text"]


@requirement("task.tools", "task.relay")
def test_a_task_is_its_principals(model: Model, tasked: RunningGateway, http: httpx.Client) -> None:
    task = model.start("legacy__slow_build", job="private", seconds=0.0)
    assert model.tool("task_result", task=task)["content"][0]["text"] == "done private"
    bob = Model(tasked, http, "bob")
    for name in ("task_status", "task_result"):
        for text in (task, task[:-1] + ("A" if task[-1] != "A" else "B"), "x"):
            foreign = bob.tool(name, task=text)
            assert foreign["isError"] and "Unknown task" in foreign["content"][0]["text"], foreign


@requirement("task.tools")
@pytest.mark.parametrize("era", ERAS)
def test_a_question_that_nobody_can_be_asked_is_refused(model: Model, era: str) -> None:
    task = model.start(f"{era}__ask")
    told = model.tool("task_result", task=task, wait_s=20)
    assert "elicitation" in str(told), told


@requirement("task.tools", "task.make")
def test_there_are_not_more_tasks_than_a_session_may_have(tasked: RunningGateway, http: httpx.Client) -> None:
    model = Model(tasked, http, "bob")
    for number in range(8):
        model.start("legacy__slow_build", job=str(number), seconds=0.0)
    assert "Too many tasks" in model.tool("start_task", tool="legacy__slow_build")["content"][0]["text"]


BURST = 12


def served(client: Tasks, method: str, params: Any) -> int:
    """How many of more requests than the session may send are answered. The others are refused."""
    statuses = [client.client.call(method, params).status_code for _ in range(BURST + 3)]
    assert sorted(set(statuses)) == [200, 429]
    return statuses.count(200)


@requirement("task.asked", "task.tools", "pol.limits")
def test_each_request_counts_once_and_before_a_task_is_made(http: httpx.Client) -> None:
    rate = {"session_rate": {"burst": BURST, "per_s": 0.01}}
    options = {"tasks": {"tools": True}, "policy": rate, "admin": {"keys": {"olga": sha256("olga")}}}
    with in_process_gateway({"work": server((*WORK, "legacy"))}, options=options) as gateway:
        plain, asked, started, results, waits = (Tasks(gateway.url, http) for _ in range(5))
        call: Any = {"name": "work", "arguments": {"job": "one"}}
        most = served(plain, "tools/call", call)
        assert served(asked, "tools/call", call | {"task": {}}) == most
        metrics = http.get(f"{gateway.base}/metrics", headers=bearer("olga")).text.splitlines()
        made = next(line for line in metrics if line.startswith('mcp_gateway_tasks_total{event="made"} '))
        assert float(made.split()[1]) == most, "what is refused has no task"
        start = {"name": "start_task", "arguments": {"tool": "work", "arguments": {"job": "two"}}}
        assert served(started, "tools/call", start) == most, "one request, not two"
        task = results.begin("work", job="three")["taskId"]
        assert served(results, "tasks/result", {"taskId": task}) == most - 1
        long = {"tool": "work", "arguments": {"job": "long", "seconds": 2.5}}
        begun = waits.ask("tools/call", {"name": "start_task", "arguments": long})["structuredContent"]["task"]
        wait = {"name": "task_result", "arguments": {"task": begun, "wait_s": 20}}  # looks ten times
        done = waits.ask("tools/call", wait)
        assert done["content"][0]["text"] == "done long" and "resultType" not in done
        assert served(waits, "tools/call", call) == most - 2, "the wait is one call"


@requirement("task.rights")
def test_a_weaker_credential_of_the_same_principal_reaches_no_task_of_a_stronger_one(
    issuer: Issuer, http: httpx.Client
) -> None:
    claims = {"trust": "trust", "workspace": "team", "permissions": "may"}
    options = {
        "auth": issuer.settings(claims=claims),
        "session": {"trust": "sandboxed"},
        "tasks": {"after_s": 0.2, "poll_ms": 150, "tools": True},
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
        told = messages(weak.client.tool("task_result", {"task": task, "wait_s": 0}))[-1]["result"]
        assert told["isError"] and "Unknown task" in told["content"][0]["text"]
        mine = weak.begin("open__work", job=2, seconds=0.6)
        assert weak.until(mine, "completed") and strong.get(mine)["status"] == "completed"
