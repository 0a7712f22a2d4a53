"""`python -m tests.cluster.task_process`: a client of tasks in a process of its own, which can be killed.

`begin URL KEY` reads calls from stdin, one JSON object in a line: `{"session", "tool", "arguments"}`. It sends all of
them at once, writes a line `{"job", "task"}` for each call that has become a task, and stays until it is killed.
`answer URL KEY TASK` answers what the task asks, until the task is over, and writes the task.
"""

import asyncio
import json
import sys
import time
from typing import Any

import httpx

from tests.support.mcp_clients import DECLARES_TASKS, modern_body, modern_headers
from tests.support.task_client import TaskClient

KEY_HEADER = "MCP-Gateway-Session-Key"


async def begin(url: str, key: str) -> None:
    calls = [json.loads(line) for line in sys.stdin]
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as http:
        await asyncio.gather(*(_begin(http, url, key, call) for call in calls))
    await asyncio.Event().wait()


async def _begin(http: httpx.AsyncClient, url: str, key: str, call: dict[str, Any]) -> None:
    body = modern_body("tools/call", {"name": call["tool"], "arguments": call["arguments"]}, meta=DECLARES_TASKS)
    headers = {**modern_headers(body), "Authorization": f"Bearer {key}", KEY_HEADER: call["session"]}
    result = (await http.post(url, json=body, headers=headers)).json()["result"]
    sys.stdout.write(json.dumps({"job": call["arguments"]["job"], "task": result.get("taskId", "")}) + "\n")
    sys.stdout.flush()


def answer(url: str, key: str, task: str) -> None:
    with httpx.Client(timeout=30) as http:
        client = TaskClient(url, http, headers={"Authorization": f"Bearer {key}"})
        answered: set[str] = set()
        while (found := client.get(task))["status"] in ("working", "input_required"):
            questions = found.get("inputRequests", {}).keys() - answered
            if questions:
                client.answer(task, questions, {"action": "accept", "content": {"name": "of another process"}})
                answered |= questions
            time.sleep(found["pollIntervalMs"] / 1_000)
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "begin":
        asyncio.run(begin(*sys.argv[2:]))
    else:
        answer(*sys.argv[2:])
