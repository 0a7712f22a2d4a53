"""The gateway's tasks for clients of 2025-11-25: `params.task` at servers of each era that make no tasks themselves."""

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import RunningGateway
from tests.support.in_process_gateway import in_process_gateway
from tests.support.legacy_task_client import Listening, Tasks
from tests.support.mcp_clients import Legacy, error_of, result_of, tool_text
from tests.support.stdio_server import tools
from tests.support.table_server import table_server
from tests.support.task_client import TaskClient
from tests.support.task_server import RELATED
from tests.support.waiting import eventually

ERAS = ("legacy", "modern")
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
def test_a_time_to_live_is_bounded_and_has_to_be_a_number(tasked: RunningGateway, http: httpx.Client) -> None:
    client = client_of(tasked, http, "legacy")
    ttls = [client.begin("work", task=task)["ttl"] for task in ({"ttl": 10**12}, {"ttl": 5}, {"more": 1})]
    assert ttls == [600_000, 60_000, 600_000]
    unreadable: list[Any] = [{"ttl": "long"}, {"ttl": True}, [], "yes"]
    for task in unreadable:
        refused = client.error("tools/call", {"name": "work", "task": task})
        assert refused["code"] == INVALID and "params.task" in refused["message"], refused


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


@requirement("spec.unnamed-question")
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_question_outlives_the_task_under_which_it_is_asked(
    tasked: RunningGateway, http: httpx.Client, tmp_path: Path, is_cancelled: bool
) -> None:
    client, end = client_of(tasked, http, "legacy"), tmp_path / "end"
    other = client.begin("work", until=str(end))["taskId"]
    task = client.begin("ask", seconds=0.1, times=1)["taskId"]
    client.until(other, "input_required")  # on stdio the question does not name its call
    if is_cancelled:
        client.ask("tasks/cancel", {"taskId": other})
    end.touch()
    client.until(other, "cancelled" if is_cancelled else "completed")
    client.until(task, "input_required")
    answer = client.answered(task, "Ada")[-1]
    assert json.loads(answer["result"]["content"][0]["text"])[0]["content"] == {"name": "Ada"}


@requirement("task.asked")
@pytest.mark.parametrize("era", ERAS)
def test_a_question_that_the_client_refuses_is_refused_at_the_server(
    tasked: RunningGateway, http: httpx.Client, era: str
) -> None:
    client = client_of(tasked, http, era)
    task = client.begin("ask", seconds=0.2, times=1)["taskId"]
    *_, answer = client.answered(task, "", error={"code": -1, "message": "rejected"})
    if era == "legacy":
        assert json.loads(answer["result"]["content"][0]["text"]) == [{"code": -1, "message": "rejected"}]
    else:  # a modern server takes no errors
        assert (answer["error"]["code"], client.get(task)["status"]) == (-1, "failed")


@requirement("task.asked")
@pytest.mark.parametrize("era", ERAS)
def test_a_task_is_cancelled_at_its_server(tasked: RunningGateway, http: httpx.Client, era: str, ledger: Path) -> None:
    client = client_of(tasked, http, era)
    task = client.begin("work", job=f"{era}-gone", seconds=60)["taskId"]
    assert eventually(lambda: f"began {era}-gone" in ledger.read_text())
    before = ledger.read_text().count("cancelled")
    assert client.ask("tasks/cancel", {"taskId": task})["status"] == "cancelled"
    assert client.get(task)["status"] == "cancelled"
    assert client.error("tasks/result", {"taskId": task})["code"] == CANCELLED
    assert client.error("tasks/cancel", {"taskId": task})["code"] == INVALID
    assert eventually(lambda: ledger.read_text().count("cancelled") > before)


@requirement("task.asked")
def test_what_goes_wrong_is_the_outcome(tasked: RunningGateway, http: httpx.Client) -> None:
    client = client_of(tasked, http, "legacy")
    task = client.begin("wrong")["taskId"]
    assert client.error("tasks/result", {"taskId": task})["code"] == 4711
    assert client.get(task) | {"status": "failed", "statusMessage": "there is no such thing"} == client.get(task)
    large = client.begin("large", size=10_000)["taskId"]
    assert "result_bytes" in client.error("tasks/result", {"taskId": large})["message"]
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
def test_a_task_is_known_to_nobody_else(tasked: RunningGateway, http: httpx.Client) -> None:
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
    def listed(version: str) -> tuple[dict[str, Any], Any]:
        client = Legacy(tasked.url, http, version=version, headers=bearer(KEYS["alice"]))
        handshake = result_of(client.initialize())
        tools = result_of(client.call("tools/list"))["tools"]
        return {tool["name"]: tool for tool in tools}, handshake["capabilities"].get("tasks")

    now, _ = listed("2025-11-25")
    assert now["legacy__work"]["execution"] == {"taskSupport": "optional"}
    assert now["own__plain"]["execution"] == {"taskSupport": "optional"}
    assert now["own__must"]["execution"] == {"taskSupport": "required"}, "it says so itself"
    assert now["legacy__give_up"]["execution"] == {"taskSupport": "forbidden"}
    assert "execution" not in now["modern__work"], "it is not offered"
    earlier, _ = listed("2025-06-18")
    assert earlier["legacy__work"] == {key: now["legacy__work"][key] for key in earlier["legacy__work"]}
    assert "execution" not in earlier["legacy__work"]


@requirement("task.asked")
def test_a_server_with_tasks_makes_those_of_its_own_tools(tasked: RunningGateway, http: httpx.Client) -> None:
    client = client_of(tasked, http, "own")
    own, made = client.begin("work"), client.begin("plain")
    assert "x-more" in own and "x-more" not in made
    assert client.ask("tasks/result", {"taskId": made["taskId"]})["content"][0]["text"] == "plain is done"
    assert {own["taskId"], made["taskId"]} <= {*client.listed()}


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


EXCHANGES = 4


@requirement("task.asked", "pol.limits")
def test_a_call_that_waits_for_a_list_is_in_flight_and_can_be_cancelled(tmp_path: Path, http: httpx.Client) -> None:
    jobs = [f"job-{number}" for number in range(EXCHANGES + 3)]
    late = {"tools/list": [["until", str(tmp_path / "go")], tools(*jobs)], "tools/call": {"content": []}}
    table, log = {"era": "legacy", "answers": late}, tmp_path / "log"
    entry = table_server(table, log=log, sandbox={"write": [str(tmp_path)]})
    options = {"limits": {"exchanges": EXCHANGES}}
    answers: dict[str, Any] = {}
    with in_process_gateway({"late": entry}, options=options) as own:
        client = Tasks(own.url, http)

        def call(name: str) -> None:
            params = {"name": name, "arguments": {}, "task": {}}
            body = {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": params}
            answers[name] = http.post(client.client.url, json=body, headers=client.client.request_headers())

        calls = [threading.Thread(target=call, args=(job,)) for job in jobs]
        for each in calls:
            each.start()
        assert eventually(lambda: len(answers) == 3), "beyond the limit, calls are refused while the others wait"
        assert {answer.status_code for answer in answers.values()} == {429}
        waiting = sorted({*jobs} - answers.keys())
        client.client.notify("notifications/cancelled", {"requestId": waiting[0]})
        (tmp_path / "go").touch()
        for each in calls:
            each.join(30)
        assert error_of(answers[waiting[0]])["code"] == -32800
        tasks = [result_of(answers[name])["task"]["taskId"] for name in waiting[1:]]
        for task in tasks:
            client.until(task, "completed")
    executed = [line.split()[2] for line in log.read_text().splitlines() if "tools/call" in line]
    assert sorted(executed) == waiting[1:]
