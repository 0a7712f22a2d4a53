"""Progress of a task of 2025-11-25, which comes after the call that made the task was answered.

The server does not declare its tasks, so the gateway must make none of its calls.
"""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import SCRIPTED, RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy, messages


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with running_gateway(command=(*SCRIPTED, "legacy"), options={"tasks": {"enabled": False}}) as running:
        yield running


@requirement("spec.task-progress")
def test_progress_of_a_task_comes_on_the_clients_own_stream(gateway: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(gateway.url, http).open()
    progress = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@TOKEN,"progress":%d}}'
    made = '{"task":{"taskId":"t","status":"working","createdAt":"2025-11-25T10:30:00Z","ttl":60000}}'
    params = {
        "name": "say",
        "arguments": {"lines": [progress % 1], "result": made},
        "task": {"ttl": 60_000},
        "_meta": {"progressToken": "mine"},
    }
    first, answer = messages(client.call("tools/call", params))
    assert (
        first["params"] == {"progressToken": "mine", "progress": 1} and answer["result"]["task"]["status"] == "working"
    )
    # The server has the gateway's number for it, which is that of the call.
    got = json.loads(messages(client.tool("got"))[-1]["result"]["content"][0]["text"])
    number = next(json.loads(line)["params"]["_meta"]["progressToken"] for line in got if '"task"' in line)
    later = (progress % 2).replace("@TOKEN", str(number))
    assert messages(client.tool("say", {"lines": [later], "result": "{}"}))[-1]["result"] == {}
    with client.get() as stream:
        data = next(line for line in stream.iter_lines() if line.startswith("data: {"))
    assert json.loads(data[6:])["params"] == {"progressToken": "mine", "progress": 2}
