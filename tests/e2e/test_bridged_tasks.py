"""A server makes a task and its client's era knows no such task: the gateway follows the task for the call."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import TASKS, RunningGateway, running_gateway, server
from tests.support.mcp_clients import DECLARES_TASKS, Legacy, Modern, messages, tool_text
from tests.support.task_server import HttpTasks, running_http_tasks
from tests.support.waiting import eventually

SERVERS = ("http", "shared", "stdio")
SESSION_KEY = "io.github.mcp-session-gateway/session"


@pytest.fixture(scope="module", params=["modern", "legacy"])
def upstream(request: pytest.FixtureRequest) -> Iterator[HttpTasks]:
    with running_http_tasks(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(upstream: HttpTasks) -> Iterator[RunningGateway]:
    command = (*TASKS, upstream.server.era)
    servers = {"stdio": server(command), "shared": server(command, shared=True), "http": {"url": upstream.url}}
    with running_gateway(servers, options={"tasks": {"after_s": 0.3}}) as running:
        yield running


def seen_by(client: Any, name: str) -> list[Any]:
    found: list[Any] = json.loads(tool_text(client.tool(f"{name}__seen")))
    return found


def asked_and_answered(client: Legacy, tool: str, **more: Any) -> list[Any]:
    """The messages of a tool call, whose questions are answered."""
    body = {"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": {"name": tool, "arguments": {}, **more}}
    headers, seen = client.request_headers(), []
    with client.http.stream("POST", client.url, json=body, headers=headers) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                message = json.loads(line.removeprefix("data: "))
                seen.append(message)
                if message.get("method") == "elicitation/create":
                    result = {"action": "accept", "content": {"name": "Ada"}}
                    with httpx.Client() as other:
                        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
                        assert other.post(client.url, json=answer, headers=headers).status_code == 202
    return seen


@requirement("task.relay", "spec.bridge")
@pytest.mark.parametrize("name", SERVERS)
def test_a_legacy_client_gets_the_outcome_of_a_modern_servers_task(
    gateway: RunningGateway, http: httpx.Client, name: str, upstream: HttpTasks
) -> None:
    if upstream.server.era != "modern":
        return
    client = Legacy(gateway.url, http).open(capabilities={"elicitation": {}})
    for tool in ("work", "must"):
        result = messages(client.tool(f"{name}__{tool}"))[-1]["result"]
        assert result == {"content": [{"type": "text", "text": f"{tool} is done"}]}, "and nothing of the task"
    failed = messages(client.tool(f"{name}__fail"))[-1]["error"]
    assert (failed["code"], failed["message"]) == (-32603, "it broke")
    *notes, answer = asked_and_answered(client, f"{name}__ask", _meta={"progressToken": "p"})
    assert answer["result"]["content"][0]["text"] == "hello Ada"
    told = [note["params"] for note in notes if note["method"] == "notifications/progress"]
    assert all(note["progressToken"] == "p" for note in told)
    assert [note["progress"] for note in told] == [*range(1, len(told) + 1)]
    assert "asking" in [note["message"] for note in told]


@requirement("task.relay", "spec.bridge")
@pytest.mark.parametrize("name", SERVERS)
def test_a_modern_client_gets_the_result_of_a_tool_that_is_a_task_only(
    gateway: RunningGateway, http: httpx.Client, name: str, upstream: HttpTasks
) -> None:
    if upstream.server.era != "legacy":
        return
    plain = Modern(gateway.url, http)
    result = messages(plain.tool(f"{name}__must"))[-1]["result"]
    assert result["content"] == [{"type": "text", "text": "must is done"}]
    assert result["resultType"] == "complete" and "task" not in result
    assert "io.modelcontextprotocol/related-task" not in result.get("_meta", {})
    # A client that takes tasks gets one of the gateway's.
    made = messages(plain.tool(f"{name}__must", {"for_s": 1}, meta=DECLARES_TASKS))[-1]["result"]
    assert made["resultType"] == "task"

    def got() -> Any:
        return messages(plain.send("tasks/get", {"taskId": made["taskId"]}, meta=DECLARES_TASKS))[-1]["result"]

    assert eventually(lambda: got()["status"] == "completed")
    assert got()["result"]["content"][0]["text"] == "must is done"


@requirement("task.relay", "spec.bridge")
@pytest.mark.parametrize("name", SERVERS)
def test_a_call_that_is_cancelled_cancels_the_task(
    gateway: RunningGateway, http: httpx.Client, name: str, upstream: HttpTasks
) -> None:
    client: Any
    if upstream.server.era == "modern":
        client = Legacy(gateway.url, http).open()
    else:
        token = messages(Modern(gateway.url, http).tool(f"{name}__plain"))[-1]["result"]["_meta"][SESSION_KEY]
        client = Modern(gateway.url, http, headers={"MCP-Gateway-Session": token})
    with httpx.Client(timeout=1.0) as impatient, pytest.raises(httpx.ReadTimeout):
        (Legacy if isinstance(client, Legacy) else Modern).tool(
            _like(client, impatient), f"{name}__must", {"for_s": 60}
        )
    if isinstance(client, Legacy):
        client.notify("notifications/cancelled", {"requestId": 77})
    assert eventually(lambda: any(m.get("method") == "tasks/cancel" for m in seen_by(client, name)))


def _like(client: Any, http: httpx.Client) -> Any:
    """The same client over other connections."""
    if isinstance(client, Modern):
        return Modern(client.url, http, headers=client.headers)
    other = Legacy(client.url, http)
    other.session, other._last_id = client.session, 76
    return other
