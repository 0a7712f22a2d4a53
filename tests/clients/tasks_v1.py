"""A client of the 1.x Python SDK that runs tools as tasks (MCP 2025-11-25).

`python tasks_v1.py URL KEY begin NAME…`, or `… finish TASK…`.

`begin NAME…` calls each tool as a task, and leaves without ending its session. `finish TASK…` waits for each task, and
answers what it asks. Prints one JSON object. Runs in an environment of its own.
"""

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamablehttp_client

RELATED = "io.modelcontextprotocol/related-task"
asked: list[Any] = []


async def answer(_: Any, params: Any) -> types.ElicitResult:
    asked.append({"message": params.message, "task": params.meta.model_dump()[RELATED]["taskId"]})
    return types.ElicitResult(action="accept", content={"name": "of a later process"})


async def begin(session: ClientSession, tools: list[str]) -> Any:
    listed = {tool.name: tool for tool in (await session.list_tools()).tools}
    made = {}
    for name in tools:
        arguments = {"job": name, "seconds": 60 if name == "work" else 0.6, "times": 1}
        made[name] = (await session.experimental.call_tool_as_task(name, arguments)).task.taskId
    support = {name: None if tool.execution is None else tool.execution.taskSupport for name, tool in listed.items()}
    return {
        "made": made,
        "support": support,
        "listed": [t.taskId for t in (await session.experimental.list_tasks()).tasks],
    }


async def finish(session: ClientSession, tasks: list[str]) -> Any:
    outcomes = []
    for task in tasks:
        statuses = []
        async for status in session.experimental.poll_task(task):
            statuses.append(status.status)
            if status.status == "input_required":
                break
        try:
            result = await session.experimental.get_task_result(task, types.CallToolResult)
            text, code = result.content[0].text, 0
        except McpError as error:
            text, code = error.error.message, error.error.code
        last = await session.experimental.get_task(task)
        outcomes.append({"statuses": statuses, "text": text, "code": code, "last": last.status})
    return {"outcomes": outcomes, "asked": asked}


async def main(url: str, key: str, what: str, *names: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        streamablehttp_client(url, headers=headers, terminate_on_close=False) as (read, write, _),
        ClientSession(read, write, elicitation_callback=answer) as session,
    ):
        offered = (await session.initialize()).capabilities.tasks
        told = await {"begin": begin, "finish": finish}[what](session, [*names])
    print(json.dumps(told | {"offered": offered is not None and offered.requests.tools.call is not None}))


asyncio.run(main(*sys.argv[1:]))
