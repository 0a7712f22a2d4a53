"""Slow calls become tasks, whoever wrote the server: in both eras, with progress, questions, errors and limits."""

import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from gateway import Gateway, Settings, create_app
from session_store import KeyRing, Task
from session_store.connect import backend_for
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import WORK, server
from tests.support.http_bytes import connected, listener_of, post
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.issuer import Issuer
from tests.support.legacy_task_client import Tasks
from tests.support.mcp_clients import (
    DECLARES_TASKS,
    Legacy,
    Modern,
    error_of,
    modern_body,
    modern_headers,
    result_of,
    tool_text,
    without_id,
)
from tests.support.stdio_client import Typed
from tests.support.task_client import ACCEPT, TaskClient
from tests.support.waiting import descendants, eventually, gone

ERAS = ("legacy", "modern")
SLOW = 0.4
AFTER_S = 0.2
ALICE, BOB = (bearer(letter * 40) for letter in "ab")
KEYS = {"alice": sha256("a" * 40), "bob": sha256("b" * 40)}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    path.touch()
    return path


@pytest.fixture(scope="module")
def gateway(ledger: Path) -> Iterator[InProcessGateway]:
    """Anonymous clients, and a server of each era, which looks for files of the tests."""
    servers = {era: server((*WORK, era), env={"LEDGER": str(ledger)}, sandbox="off") for era in ERAS}
    tasks = {
        "after_s": AFTER_S,
        "at_once": ["*/slow_*"],
        "result_bytes": 4_096,
        "poll_ms": 150,
        "max_per_session": 3,
    }
    options = {"tasks": tasks, "session": {"unconfirmed_ttl_s": 1.0}, "limits": {"call_timeout_s": 1.5}}
    with in_process_gateway(servers, options=options) as running:
        yield running


@pytest.fixture(scope="module")
def patient(ledger: Path) -> Iterator[InProcessGateway]:
    """The same servers for alice and bob. Calls of some tools become tasks at once, and slow ones do not. Clients have
    to answer within a second."""
    servers = {era: server((*WORK, era), env={"LEDGER": str(ledger)}, sandbox="off") for era in ERAS}
    options = {"api_keys": KEYS, "tasks": {"after_s": 60, "at_once": ["*/work", "*/give_up"], "answer_s": 1.0}}
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
    assert (task["resultType"], task["status"], task["pollIntervalMs"]) == ("task", "working", 150), task
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


@requirement("task.make")
@pytest.mark.parametrize("era", ERAS)
def test_a_server_asks_during_its_task(client: TaskClient, era: str) -> None:
    task = client.begin(f"{era}__ask", seconds=SLOW)
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
    client, arguments = Modern(patient.url, http, headers=ALICE), {"times": 2}
    first = result_of(client.tool("legacy__ask", arguments, meta=DECLARES_TASKS))
    assert first["resultType"] == "input_required"
    back = {
        "name": "legacy__ask",
        "arguments": arguments,
        "requestState": first["requestState"],
        "inputResponses": dict.fromkeys(first["inputRequests"], ACCEPT),
    }
    second = result_of(client.send("tools/call", back, meta=DECLARES_TASKS))
    assert second["resultType"] == "input_required", second


@requirement("task.make")
def test_a_task_that_the_server_makes_late_is_followed(client: TaskClient) -> None:
    task = client.begin("modern__late", seconds=SLOW)
    client.answer(task, asked(client, task), {"action": "accept", "content": {"name": "late"}})
    done = client.until(task, "completed")
    assert json.loads(text(done))["content"] == {"name": "late"}


@requirement("task.make")
def test_a_withdrawn_question_is_asked_no_more(client: TaskClient, tmp_path: Path) -> None:
    withdraws, end = tmp_path / "withdraws", tmp_path / "end"
    task = client.begin("legacy__give_up", seconds=SLOW, withdraws=str(withdraws), until=str(end))
    asked(client, task)
    withdraws.touch()
    client.until(task, "working")
    end.touch()
    assert text(client.until(task, "completed")) == "went on without an answer"


@requirement("task.make")
def test_a_question_that_nobody_answers_ends_the_task(patient: InProcessGateway, http: httpx.Client) -> None:
    client = TaskClient(patient.url, http, headers=ALICE)
    task = client.begin("legacy__give_up", withdraws="/never")
    asked(client, task)
    failed = client.until(task, "failed")
    assert failed["error"]["code"] == -32015 and "did not send its answers" in failed["statusMessage"]


@requirement("task.make")
@pytest.mark.parametrize("era", ERAS)
def test_what_goes_wrong_is_the_error_of_the_task(client: TaskClient, era: str) -> None:
    wrong = client.until(client.begin(f"{era}__wrong", seconds=SLOW), "failed")
    assert wrong["error"]["code"] == 4711 and wrong["error"]["message"] == "there is no such thing"
    assert wrong["error"]["data"]["kind"] == "lookup" and wrong["statusMessage"] == "there is no such thing"
    large = client.until(client.begin(f"{era}__large", seconds=SLOW, size=5_000), "failed")
    assert large["error"]["code"] == -32603 and "gateway.tasks.result_bytes" in large["error"]["message"]


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


@requirement("task.make")
def test_a_client_that_leaves_before_the_task_cancels_its_call(patient: InProcessGateway, ledger: Path) -> None:
    arguments = {"job": "left", "seconds": 30}
    body = modern_body("tools/call", {"name": "legacy__look", "arguments": arguments}, meta=DECLARES_TASKS)
    headers = {**modern_headers(body), **ALICE, "Host": "127.0.0.1", "Content-Type": "application/json"}
    lines = (f"{name}: {value}" for name, value in headers.items())
    with connected(listener_of(patient.url)) as connection:
        connection.sendall(post("/mcp", json.dumps(body).encode(), *lines))
        assert eventually(lambda: "began left" in ledger.read_text())
        before = ledger.read_text().count("cancelled the client disconnected")
    assert eventually(lambda: ledger.read_text().count("cancelled the client disconnected") == before + 1)


@requirement("task.make")
def test_too_many_tasks_leave_calls_what_they_are(gateway: InProcessGateway, http: httpx.Client) -> None:
    session = Legacy(gateway.url, http).open().session
    client = TaskClient(gateway.url, http, headers={"MCP-Gateway-Session": session})
    tasks = [client.begin("legacy__slow_build", job=number, seconds=1.0) for number in range(3)]
    plain = client.call("legacy__slow_build", job="last", seconds=AFTER_S)
    assert plain["resultType"] == "complete" and text(plain) == "done last"
    assert all(client.until(task, "completed") for task in tasks)


@requirement("task.make", "id.bound")
def test_a_task_is_known_to_nobody_else(patient: InProcessGateway, http: httpx.Client, tmp_path: Path) -> None:
    alice, bob = (TaskClient(patient.url, http, headers=each) for each in (ALICE, BOB))
    end = tmp_path / "end"
    task = alice.begin("legacy__work", job=1, until=str(end))
    elsewhere = TaskClient(f"{patient.base}/servers/legacy/mcp", http, headers=ALICE)
    forged = task[:-4] + "AAAA"
    answers = []
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        for one, handle in ((bob, task), (elsewhere, task), (alice, forged)):
            response = one.send(method, handle, inputResponses={})
            answers.append((response.status_code, json.dumps(without_id(error_of(response)))))
    assert len(set(answers)) == 1 and json.loads(answers[0][1])["code"] == -32602, answers
    end.touch()
    assert text(alice.until(task, "completed")) == "done 1", "and it goes on"
    undeclared = alice.client.send("tasks/get", {"taskId": task})
    assert error_of(undeclared)["code"] == -32021


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
def test_a_working_task_keeps_its_session_and_a_result_outlives_it(client: TaskClient) -> None:
    task = client.begin("modern__work", job="long", seconds=2.2)  # longer than a call may take, or an unused session
    assert text(client.until(task, "completed")) == "done long"
    later = client.get(task)
    assert text(later) == "done long"


# -- who may ask for a task, and what the rates count, however the task was made


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
            refused = error_of(weak.send(method, task, inputResponses={}))
            assert refused["code"] == -32602 and "Unknown task" in refused["message"], method
        assert strong.until(task, "completed")["result"]["content"][0]["text"] == "done 1"
        over = error_of(weak.send("tasks/get", task))
        assert over["code"] == -32602, "nor the result, once the task is over"
        mine = weak.begin("open__work", job=2, seconds=0.6)
        assert weak.until(mine, "completed") and strong.get(mine)["status"] == "completed"


# -- gateways in other programs and on stdin end as orderly as a served one


CALL = modern_body("tools/call", {"name": "work", "arguments": {"seconds": 0.8}}, meta=DECLARES_TASKS)


def settings_of(folder: Path) -> dict[str, Any]:
    options = {"store": f"sqlite:///{folder}/store.db", "tasks": {"at_once": ["*"]}, "anonymous": True}
    return {"mcpServers": {"work": server((*WORK, "legacy"))}, "gateway": options}


@contextlib.asynccontextmanager
async def inside(folder: Path) -> AsyncIterator[None]:
    """A program with a gateway that has a task."""
    settings = Settings.model_validate(settings_of(folder))
    gateway = Gateway(settings, ring=KeyRing(["k" * 40]))
    transport = httpx.ASGITransport(app=create_app(settings, gateway=gateway))
    async with gateway.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post("/mcp", json=CALL, headers=modern_headers(CALL))
        assert result_of(answer)["status"] == "working"
        yield


async def outcome(folder: Path) -> Task:
    """The task, as the next gateway finds it."""
    store = backend_for(f"sqlite:///{folder}/store.db")
    await store.open()
    (task,) = await store.tasks.page()
    await store.close()
    return task


@pytest.mark.anyio
@requirement("task.durable")
async def test_an_orderly_end_of_a_program_waits_for_its_tasks_and_a_crash_does_not(tmp_path: Path) -> None:
    orderly, crash = tmp_path / "orderly", tmp_path / "crash"
    for folder in (orderly, crash):
        folder.mkdir()
    async with inside(orderly):
        pass
    assert (await outcome(orderly)).status == "completed"
    with pytest.raises(ZeroDivisionError):
        async with inside(crash):
            raise ZeroDivisionError
    left = await outcome(crash)
    assert left.status in ("failed", "cancelled") and "the gateway was stopped before the call" in left.message


@requirement("task.durable", "ctx.stdio-front")
def test_the_end_of_stdin_waits_for_tasks_that_outlive_it(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps(settings_of(tmp_path)))
    client = Typed("--config", str(config), env={"MCP_GATEWAY_KEYS": "k" * 40}, child=[])
    client.write(json.dumps(CALL).encode())
    assert client.read()["result"]["status"] == "working"
    assert client.end() == 0
    assert anyio.run(outcome, tmp_path).status == "completed"
