"""Calls for tasks that wait for a server's list of tools: they are in flight already, and can be cancelled."""

import sys
import threading
from pathlib import Path
from typing import Any

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import running_gateway, server
from tests.support.legacy_task_client import Tasks
from tests.support.mcp_clients import messages
from tests.support.waiting import eventually

EXCHANGES = 4

# Answers `tools/list` only once the file `go` is there, and writes down each call.
SERVER = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
def answer(message, result):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            version = message["params"]["protocolVersion"]
            known = {"capabilities": {"tools": {}}, "serverInfo": {"name": "late", "version": "1"}}
            answer(message, {"protocolVersion": version, **known})
        case "server/discover":
            error = {"code": -32601, "message": "unknown"}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
        case "tools/list":
            while not (folder / "go").exists():
                time.sleep(0.01)
            answer(message, {"tools": [{"name": "run", "inputSchema": {"type": "object"}}]})
        case "tools/call":
            with (folder / "calls").open("a") as file:
                file.write(message["params"]["arguments"]["job"] + "\\n")
            answer(message, {"content": []})
"""


@requirement("task.asked", "pol.limits")
def test_a_call_that_waits_for_a_list_is_in_flight_and_can_be_cancelled(tmp_path: Path, http: httpx.Client) -> None:
    file = tmp_path / "late.py"
    file.write_text(SERVER)
    entry = server((sys.executable, str(file), str(tmp_path)), sandbox={"write": [str(tmp_path)]})
    options = {"limits": {"exchanges": EXCHANGES}}
    answers: dict[str, Any] = {}
    with running_gateway({"late": entry}, options=options) as gateway:
        client = Tasks(gateway.url, http)

        def call(name: str) -> None:
            params = {"name": "run", "arguments": {"job": name}, "task": {}}
            body = {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": params}
            answers[name] = http.post(client.client.url, json=body, headers=client.client.request_headers())

        calls = [threading.Thread(target=call, args=(f"job {number}",)) for number in range(EXCHANGES + 3)]
        for each in calls:
            each.start()
        assert eventually(lambda: len(answers) == 3), "beyond the limit, calls are refused while the others wait"
        assert {answer.status_code for answer in answers.values()} == {429}
        waiting = sorted({f"job {number}" for number in range(EXCHANGES + 3)} - answers.keys())
        client.client.notify("notifications/cancelled", {"requestId": waiting[0]})
        (tmp_path / "go").touch()
        for each in calls:
            each.join(30)
        assert messages(answers[waiting[0]])[-1]["error"]["code"] == -32800
        tasks = [messages(answers[name])[-1]["result"]["task"]["taskId"] for name in waiting[1:]]
        for task in tasks:
            client.until(task, "completed")
    assert sorted((tmp_path / "calls").read_text().splitlines()) == waiting[1:]
