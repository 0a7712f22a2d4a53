"""`start_task`, `task_status` and `task_result`: any model starts a call, goes on, and fetches the result later."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import DEMO, WORK, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, messages

TOOLS = {"start_task", "task_status", "task_result"}
ERAS = ("legacy", "modern")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    ledger = {"LEDGER": str(tmp_path_factory.mktemp("ledger") / "ledger")}
    options = {
        "tasks": {"tools": True, "max_per_session": 8},
        "policy": {"check_arguments": True},
        "api_keys": {"alice": sha256("alice"), "bob": sha256("bob")},
    }
    servers = {era: server((*WORK, era), env=ledger) for era in ERAS} | {"demo": server(DEMO)}
    with running_gateway(servers, options=options) as running:
        yield running


class Model:
    """A model behind a modern client that knows nothing of tasks."""

    def __init__(self, gateway: RunningGateway, http: httpx.Client, name: str = "alice") -> None:
        self.client = Modern(gateway.url, http, headers=bearer(name))

    def tool(self, name: str, **arguments: Any) -> Any:
        return messages(self.client.tool(name, arguments))[-1]["result"]

    def start(self, tool: str, **arguments: Any) -> str:
        started = self.tool("start_task", tool=tool, arguments=arguments)
        assert not started.get("isError"), started
        return str(started["structuredContent"]["task"])


@pytest.fixture
def model(gateway: RunningGateway, http: httpx.Client) -> Model:
    return Model(gateway, http)


@requirement("task.tools")
def test_the_tools_stand_behind_those_of_the_servers(model: Model) -> None:
    listed = [tool["name"] for tool in messages(model.client.send("tools/list"))[-1]["result"]["tools"]]
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
@pytest.mark.parametrize("era", ERAS)
def test_a_legacy_client_has_the_tools_too(gateway: RunningGateway, http: httpx.Client, era: str) -> None:
    client = Legacy(gateway.url, http, headers=bearer("alice")).open()
    listed = [tool["name"] for tool in messages(client.call("tools/list"))[-1]["result"]["tools"]]
    assert set(listed[-3:]) == TOOLS
    arguments = {"tool": f"{era}__slow_build", "arguments": {"job": era, "seconds": 0.4}}
    task = messages(client.tool("start_task", arguments))[-1]["result"]["structuredContent"]["task"]
    done = messages(client.tool("task_result", {"task": task, "wait_s": 20}))[-1]["result"]
    assert done["content"][0]["text"] == f"done {era}" and "resultType" not in done


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
def test_a_task_is_its_principals(model: Model, gateway: RunningGateway, http: httpx.Client) -> None:
    task = model.start("legacy__slow_build", job="private", seconds=0.0)
    assert model.tool("task_result", task=task)["content"][0]["text"] == "done private"
    bob = Model(gateway, http, "bob")
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
def test_there_are_not_more_tasks_than_a_session_may_have(gateway: RunningGateway, http: httpx.Client) -> None:
    model = Model(gateway, http, "bob")
    for number in range(8):
        model.start("legacy__slow_build", job=str(number), seconds=0.0)
    assert "Too many tasks" in model.tool("start_task", tool="legacy__slow_build")["content"][0]["text"]


@requirement("task.tools", "pol.limits")
def test_a_wait_for_a_result_counts_as_one_call(tmp_path: Path, http: httpx.Client) -> None:
    options = {
        "tasks": {"tools": True},
        "policy": {"session_rate": {"burst": 5, "per_s": 0.01}},
        "api_keys": {"alice": sha256("alice")},
    }
    ledger = {"LEDGER": str(tmp_path / "ledger")}
    with running_gateway({"legacy": server((*WORK, "legacy"), env=ledger)}, options=options) as gateway:
        model = Model(gateway, http)
        task = model.start("slow_build", job="long", seconds=2.5)
        done = model.tool("task_result", task=task, wait_s=20)  # looks ten times
        assert not done.get("isError") and done["content"][0]["text"] == "done long"
