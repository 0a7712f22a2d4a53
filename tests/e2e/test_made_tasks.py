"""Slow calls become tasks, whoever wrote the server: in both eras, with progress, questions, errors and limits."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from session_store.connect import backend_for
from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import WORK, RunningGateway, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.issuer import Issuer
from tests.support.legacy_task_client import Listening, Tasks
from tests.support.mcp_clients import (
    DECLARES_TASKS,
    Legacy,
    Modern,
    error_of,
    modern_body,
    result_of,
    tool_text,
)
from tests.support.stdio_client import Typed
from tests.support.task_client import ACCEPT, TaskClient
from tests.support.task_server import RELATED
from tests.support.waiting import descendants, eventually, gone

ERAS = ("legacy", "modern")
SLOW = 0.4
AFTER_S = 0.2
ALICE, BOB = (bearer(KEYS[name]) for name in ("alice", "bob"))


@pytest.fixture(scope="module")
def gateway(ledger: Path) -> Iterator[InProcessGateway]:
    """Anonymous clients, and a server of each era, which looks for files of the tests."""
    servers = {era: server((*WORK, era), env={"LEDGER": str(ledger)}, sandbox="off") for era in ERAS}
    tasks = {"after_s": AFTER_S, "at_once": ["*/slow_*"]}
    with in_process_gateway(servers, options={"tasks": tasks}) as running:
        yield running


@pytest.fixture(scope="module")
def patient(ledger: Path) -> Iterator[InProcessGateway]:
    """The same servers for alice and bob. Calls of `work` become tasks at once, and slow ones do not."""
    servers = {era: server((*WORK, era), env={"LEDGER": str(ledger)}, sandbox="off") for era in ERAS}
    keys = {name: sha256(KEYS[name]) for name in ("alice", "bob")}
    options = {"api_keys": keys, "tasks": {"after_s": 60, "at_once": ["*/work"]}}
    with in_process_gateway(servers, options=options) as running:
        yield running


@pytest.fixture
def client(gateway: InProcessGateway, http: httpx.Client) -> TaskClient:
    return TaskClient(gateway.url, http)


def text(result: Any) -> str:
    """The text of a result, or of that of a task that is over."""
    told = result.get("result", result)["content"][0]["text"]
    assert isinstance(told, str)
    return told


def asked(client: TaskClient, task: str, earlier: Any = ()) -> Any:
    """The next open questions of a task, after those of `earlier` were answered."""
    found: dict[str, Any] = {}

    def has_come() -> bool:
        found.clear()
        found.update(client.get(task).get("inputRequests", {}))
        return bool(found) and not found.keys() & set(earlier)

    assert eventually(has_come), client.get(task)
    return found


@requirement("task.make")
@pytest.mark.parametrize("era", ERAS)
def test_a_slow_call_becomes_a_task_with_the_result_that_the_call_had_had(
    client: TaskClient, era: str, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    task = client.call(f"{era}__work", job=2, until=str(end))
    assert (task["resultType"], task["status"], task["pollIntervalMs"]) == ("task", "working", 100), task
    working = client.get(task["taskId"])
    assert (working["resultType"], working["status"]) == ("complete", "working")
    end.touch()
    done = client.until(task["taskId"], "completed")
    assert done["result"]["content"] == [{"type": "text", "text": "done 2"}]
    assert done["taskId"] == task["taskId"] and done["createdAt"] == task["createdAt"]
    assert "mcp-session-gateway/session" not in json.dumps(done), "no token of the session is stored"


@requirement("task.make")
def test_a_fast_call_and_one_without_the_extension_get_their_answer(
    patient: InProcessGateway, http: httpx.Client
) -> None:
    for era in ERAS:
        fast = TaskClient(patient.url, http, headers=ALICE).call(f"{era}__look", job=1)
        assert fast["resultType"] == "complete" and text(fast) == "done 1"
    plain, old = Modern(patient.url, http, headers=ALICE), Legacy(patient.url, http, headers=ALICE).open()
    assert tool_text(plain.tool("legacy__work", {"job": 3, "seconds": SLOW})) == "done 3"
    assert tool_text(old.tool("legacy__work", {"job": 4, "seconds": SLOW})) == "done 4"
    capabilities = result_of(plain.send("server/discover"))["capabilities"]
    assert capabilities["extensions"]["io.modelcontextprotocol/tasks"] == {}


def begun(client: TaskClient, folder: Path, tool: str, **arguments: Any) -> str:
    """The handle of the task that a call has become, whose server goes on from now on."""
    goes_on = folder / f"{tool}-goes-on"
    task = client.begin(tool, goes_on=str(goes_on), **arguments)
    goes_on.touch()
    return task


@requirement("task.make")
@pytest.mark.parametrize("era", ERAS)
def test_a_server_asks_during_its_task(client: TaskClient, era: str, tmp_path: Path) -> None:
    task = begun(client, tmp_path, f"{era}__ask")
    earlier: list[str] = []
    for number in range(2):
        questions = asked(client, task, earlier)
        ((key, question),) = questions.items()
        assert question["method"] == "elicitation/create" and question["params"]["message"] == f"question {number}"
        assert client.get(task)["inputRequests"] == questions, "a question stands until it is answered"
        client.answer(task, {"unknown": {}})
        client.answer(task, earlier, {"action": "decline"})
        assert client.get(task)["status"] == "input_required", "only answers to what is asked count"
        client.answer(task, questions, {"action": "accept", "content": {"name": f"n{number}"}})
        earlier.append(key)
    heard = json.loads(text(client.until(task, "completed")))
    assert [one["content"] for one in heard] == [{"name": "n0"}, {"name": "n1"}]
    assert len(set(earlier)) == 2, "a key is used once"


@requirement("task.make")
def test_what_is_asked_before_the_task_is_asked_by_the_call(patient: InProcessGateway, http: httpx.Client) -> None:
    client, call = Modern(patient.url, http, headers=ALICE), {"name": "legacy__ask", "arguments": {"times": 2}}
    first = result_of(client.send("tools/call", call, meta=DECLARES_TASKS))
    assert first["resultType"] == "input_required"
    back = {"requestState": first["requestState"], "inputResponses": dict.fromkeys(first["inputRequests"], ACCEPT)}
    second = result_of(client.send("tools/call", call | back, meta=DECLARES_TASKS))
    assert second["resultType"] == "input_required", second


@requirement("task.make")
@pytest.mark.parametrize("era", ERAS)
def test_a_task_is_cancelled_at_its_server(client: TaskClient, ledger: Path, era: str) -> None:
    task = client.begin(f"{era}__work", job=f"cancel {era}", seconds=30)
    assert eventually(lambda: f"began cancel {era}" in ledger.read_text())
    before = ledger.read_text().count("cancelled the client has cancelled the task")
    client.cancel(task)
    assert "the client has cancelled the task" in client.until(task, "cancelled")["statusMessage"]
    assert eventually(lambda: ledger.read_text().count("cancelled the client has cancelled the task") == before + 1)
    client.cancel(task)
    client.answer(task, {"q1": ACCEPT})
    assert client.get(task)["status"] == "cancelled", "an outcome stays"


@requirement("task.make", "life.end")
def test_the_end_of_a_session_ends_its_tasks_and_forgets_them(gateway: InProcessGateway, http: httpx.Client) -> None:
    before = set(descendants(os.getpid()))
    legacy = Legacy(gateway.url, http).open()
    client = TaskClient(gateway.url, http, headers={"MCP-Gateway-Session": legacy.session})
    over = client.begin("legacy__slow_build", job="over")
    client.until(over, "completed")
    task = client.begin("legacy__work", job="ended with its session", seconds=30)
    processes = [process for process in descendants(os.getpid()) if process not in before]
    assert processes, "the session has a server process of its own"
    assert legacy.delete().status_code == 200
    assert gone(processes)
    for handle in (task, over):
        assert error_of(client.send("tasks/get", handle))["code"] == -32602


@requirement("task.make", "life.unconfirmed")
def test_a_working_task_keeps_its_session_and_a_result_outlives_it(http: httpx.Client) -> None:
    options = {
        "tasks": {"after_s": AFTER_S},
        "session": {"unconfirmed_ttl_s": 1.0},
        "limits": {"call_timeout_s": 3.0},
    }
    with in_process_gateway({"modern": server((*WORK, "modern"))}, options=options) as gateway:
        client = TaskClient(gateway.url, http)
        task = client.begin("work", job="long", seconds=3.5)  # longer than a call may take, or an unused session
        assert text(client.until(task, "completed")) == text(client.get(task)) == "done long"


@requirement("task.rights")
def test_a_weaker_credential_of_the_same_principal_reaches_no_task_of_a_stronger_one(
    issuer: Issuer, http: httpx.Client
) -> None:
    claims = {"trust": "trust", "workspace": "team", "permissions": "may"}
    options = {
        "auth": issuer.settings(claims=claims),
        "session": {"trust": "sandboxed"},
        "tasks": {"after_s": 0.2},
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
            refused = error_of(weak.send(method, task, inputResponses={}))
            assert refused["code"] == -32602 and "Unknown task" in refused["message"], method
        assert strong.until(task, "completed")["result"]["content"][0]["text"] == "done 1"
        over = error_of(weak.send("tasks/get", task))
        assert over["code"] == -32602, "nor the result, once the task is over"
        mine = weak.begin("open__work", job=2, seconds=0.6)
        assert weak.until(mine, "completed") and strong.get(mine)["status"] == "completed"


@requirement("task.durable", "ctx.stdio-front")
def test_the_end_of_stdin_waits_for_tasks_that_outlive_it(tmp_path: Path) -> None:
    config, url = tmp_path / "mcp.json", f"sqlite:///{tmp_path}/store.db"
    options = {"store": url, "tasks": {"at_once": ["*"]}, "anonymous": True}
    config.write_text(json.dumps({"mcpServers": {"work": server((*WORK, "legacy"))}, "gateway": options}))
    client = Typed("--config", str(config), env={"MCP_GATEWAY_KEYS": "k" * 40}, child=[])
    call = modern_body("tools/call", {"name": "work", "arguments": {"seconds": 0.8}}, meta=DECLARES_TASKS)
    client.write(json.dumps(call).encode())
    assert client.read()["result"]["status"] == "working"
    assert client.end() == 0

    async def outcome() -> str:
        """That of the task, as the next gateway finds it."""
        store = backend_for(url)
        await store.open()
        (task,) = await store.tasks.page()
        await store.close()
        return task.status

    assert anyio.run(outcome) == "completed"


# -- the gateway's tasks for clients of 2025-11-25: `params.task` at servers of each era that make no tasks themselves


FIELDS = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
INVALID, UNKNOWN_METHOD, CANCELLED, TOO_OFTEN = -32602, -32601, -32016, -32018


def client_of(gateway: RunningGateway, http: httpx.Client, server: str, who: str = "alice") -> Tasks:
    """A client with a session of its own, at one server."""
    return Tasks(gateway.at(server), http, headers=bearer(KEYS[who]))


@requirement("task.asked")
@pytest.mark.parametrize("era", ERAS)
def test_a_call_that_asks_for_a_task_becomes_one(tasked: RunningGateway, http: httpx.Client, era: str) -> None:
    client = client_of(tasked, http, era)
    offered = client.handshake["capabilities"]["tasks"]
    assert offered == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    made = client.begin("work", task={"ttl": 90_000}, job="quick", seconds=0.3)
    assert made.keys() == FIELDS and (made["status"], made["ttl"]) == ("working", 90_000)
    handle = made["taskId"]
    related = {RELATED: {"taskId": handle}}
    done = {"content": [{"type": "text", "text": "done quick"}], "_meta": related}
    assert without_trace(client.ask("tasks/result", {"taskId": handle})) == done
    task = client.get(handle)
    assert (task["taskId"], task["status"]) == (handle, "completed") and task.keys() == FIELDS
    assert 90_000 <= task["ttl"] < 150_000, "from its creation"
    assert client.listed()[0] == handle, "those of other sessions follow"
    ended = client.error("tasks/cancel", {"taskId": handle})
    assert ended["code"] == INVALID and "completed already" in ended["message"]
    again = Tasks(client.client.url, http, headers=bearer(KEYS["alice"]))  # a client that has started again
    assert without_trace(again.ask("tasks/result", {"taskId": handle})) == done and handle in again.listed()


def without_trace(result: Any) -> Any:
    """A result without what the gateway says of the request."""
    return result | {"_meta": {key: value for key, value in result["_meta"].items() if key == RELATED}}


@requirement("task.asked")
@pytest.mark.parametrize("name", [*ERAS, "extension"])
def test_a_task_asks_on_the_call_for_its_result(tasked: RunningGateway, http: httpx.Client, name: str) -> None:
    client, later = (client_of(tasked, http, name) for _ in range(2))
    task = client.begin("ask", seconds=0.2)["taskId"]
    client.until(task, "input_required")
    *told, answer = later.answered(task, "Ada")  # any session of the principal: the client may have started again
    questions = [message["params"] for message in told if message["method"] == "elicitation/create"]
    assert len(questions) == (1 if name == "extension" else 2)
    assert all(question["_meta"][RELATED] == {"taskId": task} for question in questions)
    text = answer["result"]["content"][0]["text"]
    assert text == "hello Ada" if name == "extension" else [one["content"]["name"] for one in json.loads(text)]
    assert client.ask("tasks/result", {"taskId": task})["content"] == answer["result"]["content"]


@requirement("task.asked")
def test_a_task_that_was_asked_for_is_cancelled(tasked: RunningGateway, http: httpx.Client) -> None:
    client = client_of(tasked, http, "legacy")
    task = client.begin("work", seconds=60)["taskId"]
    assert client.ask("tasks/cancel", {"taskId": task})["status"] == client.get(task)["status"] == "cancelled"
    assert client.error("tasks/result", {"taskId": task})["code"] == CANCELLED
    assert client.error("tasks/cancel", {"taskId": task})["code"] == INVALID


@requirement("task.asked", "spec.letter")
def test_the_parameter_of_a_request_names_its_task(tasked: RunningGateway, http: httpx.Client) -> None:
    client = client_of(tasked, http, "legacy")
    task, other = (client.begin("work", seconds=60)["taskId"] for _ in range(2))
    misled = {"taskId": task, "_meta": {RELATED: {"taskId": other}}}
    answer = client.client.call("tasks/get", misled)
    assert answer.headers["content-type"] == "application/json", "its client polls, and waits for no events"
    assert result_of(answer)["taskId"] == task
    cancelled = client.ask("tasks/cancel", misled)
    assert cancelled["taskId"] == task and cancelled.keys() == FIELDS | {"statusMessage"}, "and no `_meta`"
    assert client.get(other)["status"] == "working"
    (page,) = (client.ask("tasks/list", {}),)
    assert all("_meta" not in one for one in page["tasks"]) and RELATED not in page.get("_meta", {})


@requirement("task.asked")
def test_what_goes_wrong_is_the_outcome(tasked: RunningGateway, http: httpx.Client) -> None:
    client = client_of(tasked, http, "legacy")
    task = client.begin("wrong")["taskId"]
    assert client.error("tasks/result", {"taskId": task})["code"] == 4711
    assert client.get(task) | {"status": "failed", "statusMessage": "there is no such thing"} == client.get(task)
    large = client.begin("large", size=1 << 20)["taskId"]
    error = client.error("tasks/result", {"taskId": large})
    assert error["code"] == -32603 and "(1048576 bytes)" in error["message"]
    before = client.listed()
    nobody = client.error("tools/call", {"name": "nobody", "task": {}})
    assert (nobody["code"], nobody["message"]) == (INVALID, "Unknown tool: nobody")
    plain = client.ask("tools/call", {"name": "work", "arguments": {"job": "plain"}, "task": None})
    assert "content" in plain, "null asks for nothing: some clients write what they leave out"
    forbidden = client.error("tools/call", {"name": "give_up", "task": {}})
    assert forbidden["code"] == UNKNOWN_METHOD and client.listed() == before
    for number in range(6):  # with the two that have failed
        client.begin("work", job=number)
    assert client.error("tools/call", {"name": "work", "task": {}})["code"] == TOO_OFTEN
    assert client.error("tasks/list", {"cursor": "forged"})["code"] == INVALID


@requirement("task.asked", "id.bound")
def test_a_task_that_was_asked_for_is_known_to_nobody_else(tasked: RunningGateway, http: httpx.Client) -> None:
    mine, other = (client_of(tasked, http, "legacy", key) for key in ("alice", "bob"))
    task = mine.begin("work", seconds=0.2)["taskId"]
    elsewhere = client_of(tasked, http, "modern")
    for each in (other, elsewhere):  # another principal, and another endpoint
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert each.error(method, {"taskId": task})["code"] == INVALID
        assert task not in each.listed()
    modern = TaskClient(mine.client.url, http, headers=bearer(KEYS["alice"]))
    assert modern.until(task, "completed")["result"]["resultType"] == "complete", "both eras read one task"
    later = client_of(tasked, http, "legacy")
    assert task in later.listed(), "what is found is listed"


@requirement("task.asked")
def test_lists_say_which_tools_are_offered_as_tasks(tasked: RunningGateway, http: httpx.Client) -> None:
    def listed(version: str) -> dict[str, Any]:
        client = Legacy(tasked.url, http, version=version, headers=bearer(KEYS["alice"])).open()
        tools = result_of(client.call("tools/list"))["tools"]
        return {tool["name"]: tool.get("execution", {}).get("taskSupport") for tool in tools}

    now = listed("2025-11-25")
    assert (now["legacy__work"], now["own__plain"], now["legacy__give_up"]) == ("optional", "optional", "forbidden")
    assert now["own__must"] == "required", "it says so itself"
    assert now["modern__work"] is None, "it is not offered"
    assert listed("2025-06-18")["legacy__work"] is None


@requirement("task.asked")
def test_earlier_clients_get_ordinary_results(tasked: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(tasked.at("legacy"), http, version="2025-06-18", headers=bearer(KEYS["alice"]))
    handshake = result_of(client.initialize())
    assert "tasks" not in handshake["capabilities"]
    answer = client.call("tools/call", {"name": "work", "arguments": {"job": "plain"}, "task": {"ttl": 60_000}})
    assert tool_text(answer) == "done plain"
    assert error_of(client.call("tasks/list"))["code"] == UNKNOWN_METHOD


@requirement("task.asked")
def test_a_client_that_listens_is_notified_of_its_task(tasked: RunningGateway, http: httpx.Client) -> None:
    client = client_of(tasked, http, "legacy")
    with Listening(client.client) as told:
        task = client.begin("steps", meta={"progressToken": "p1"}, seconds=0.1)["taskId"]
        client.until(task, "completed")
        assert eventually(lambda: len(told.of("notifications/tasks/status")) == 1)
        (status,) = told.of("notifications/tasks/status")
        assert (status["taskId"], status["status"]) == (task, "completed") and "_meta" not in status
        steps = told.of("notifications/progress")
        assert [step["progress"] for step in steps] == [1, 2, 3]
        assert {(step["progressToken"], step["_meta"][RELATED]["taskId"]) for step in steps} == {("p1", task)}


@requirement("task.make")
def test_a_task_that_the_server_makes_late_is_followed(client: TaskClient, tmp_path: Path) -> None:
    task = begun(client, tmp_path, "modern__late")
    client.answer(task, asked(client, task), {"action": "accept", "content": {"name": "late"}})
    done = client.until(task, "completed")
    assert json.loads(text(done))["content"] == {"name": "late"}
