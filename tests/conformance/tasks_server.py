"""A server with the tools of the official scenarios `tasks-*`: `… -m tests.conformance.tasks_server [PORT|legacy]`.

For 2026-07-28 it makes tasks of its own, on stdio or on a port. `legacy` is a server of 2025-11-25 on stdio that knows
no tasks, so that the gateway makes them. What the tools do, and their names, are the suite's.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tests.support.stdio_server import Call, Refusal, StdioServer, text, tools
from tests.support.task_server import CAPABILITIES, EXTENSION, OVER, HttpTasks, Send, Task, TaskServer, on_stdio

Steps = Generator[Any, Any, dict[str, Any]]
"""A tool at work: it gives the seconds that it takes, or questions by name, and gets the answers to them."""


def question(message: str, name: str, kind: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


WHO: Final = {"user_name": question("Who?", "name", "string")}


def slow_compute(arguments: Mapping[str, Any]) -> Steps:
    yield arguments.get("seconds", 0)
    return text(f"{arguments.get('label', '')} computed")


def failing_job(_: Mapping[str, Any]) -> Steps:
    yield 1
    return {**text("the job failed"), "isError": True}


def protocol_error_job(_: Mapping[str, Any]) -> Steps:
    yield 0
    raise Refusal(-32603, "the job broke")


def confirm_delete(arguments: Mapping[str, Any]) -> Steps:
    answers = yield {"confirm": question(f"Delete {arguments.get('filename')}?", "confirm", "boolean")}
    return text(f"confirmed: {answers['confirm']}")


def multi_input(_: Mapping[str, Any]) -> Steps:
    answers = yield {name: question(f"{name}?", "name", "string") for name in ("first", "second")}
    return text(f"answers: {sorted(answers)}")


def greet_slowly(arguments: Mapping[str, Any]) -> Steps:
    """`test_tool_with_task`, whose question comes before its task."""
    answers = arguments if "user_name" in arguments else (yield WHO)
    yield 4.0 if answers is not arguments else 0  # longer than the gateway waits before it makes a task
    return text(f"Hello, {answers['user_name']['content']['name']}!")


TASKS: Final[dict[str, Callable[[Mapping[str, Any]], Steps]]] = {
    "slow_compute": slow_compute,
    "failing_job": failing_job,
    "protocol_error_job": protocol_error_job,
    "confirm_delete": confirm_delete,
    "multi_input": multi_input,
}
ALL: Final = {**TASKS, "test_tool_with_task": greet_slowly}


class SuiteTasks(TaskServer):
    """The server of 2026-07-28. All tools but `greet` and `slow_compute` require a task."""

    def tools(self) -> list[Any]:
        listed: list[Any] = tools("greet", *ALL)["tools"]
        return listed

    async def call(self, params: Any, send: Send) -> Any:
        name, arguments = params["name"], params.get("arguments", {})
        if name == "greet":
            return self.text(f"Hello, {arguments.get('name')}!")
        if name not in ALL:
            raise Refusal(-32602, f"unknown tool {name}")
        if EXTENSION not in params["_meta"][CAPABILITIES].get("extensions", {}):
            if name != "slow_compute":
                data: Any = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
                raise Refusal(-32021, "tasks are required", data=data)
            await asyncio.sleep(arguments.get("seconds", 0))
            return self.text("computed")
        if name == "test_tool_with_task":
            if "inputResponses" not in params:
                return {"resultType": "input_required", "inputRequests": WHO, "requestState": "asked"}
            answers = params["inputResponses"]
            if params.get("requestState") != "asked" or "name" not in answers.get("user_name", {}).get("content", {}):
                raise Refusal(-32602, "answers that nobody asked for")
            arguments = answers
        return await super().call({**params, "arguments": arguments, "task": {"ttl": 60_000}}, send)

    async def run(self, task: Task, name: str, arguments: Any) -> None:
        steps, answers, status = ALL[name](arguments), None, "completed"
        try:
            while True:
                step, answers = steps.send(answers), None
                if not isinstance(step, dict):
                    await asyncio.sleep(step)
                    continue
                task.questions = dict(step)
                await self.change(task, "input_required", "asking")
                answers = dict([await task.answers.get() for _ in step])
                await self.change(task, "working", "answered")
        except StopIteration as done:
            task.result = {"resultType": "complete", **done.value}
        except Refusal as refused:
            task.error, status = refused.error, "failed"
        if task.status not in OVER:
            await self.change(task, status, "over")

    async def about(self, method: str, params: Any, send: Send) -> Any:
        found = await super().about("tasks/get" if method in ("tasks/update", "tasks/cancel") else method, params, send)
        task = self.known(params)
        if method == "tasks/update":
            for key in task.questions.keys() & params.get("inputResponses", {}).keys():
                del task.questions[key]
                task.answers.put_nowait((key, params["inputResponses"][key]))
        elif method == "tasks/cancel" and task.status not in OVER:
            await self.change(task, "cancelled", "as you like")
        return found if method == "tasks/get" else {}


def called(call: Call) -> dict[str, Any]:
    """The result of a call to the server that knows no tasks."""
    if call.name == "greet":
        return text(f"Hello, {call.arguments.get('name')}!")

    def ask(name: str) -> Any:
        return knows_no_tasks.ask(f"{call.id}-{name}", step[name]["method"], step[name]["params"])

    steps, answers = ALL[call.name](call.arguments), None
    try:
        while True:
            step, answers = steps.send(answers), None
            if isinstance(step, dict):
                with ThreadPoolExecutor(len(step)) as pool:
                    answers = dict(zip(step, pool.map(ask, step), strict=True))
            else:
                time.sleep(step)
    except StopIteration as done:
        result: dict[str, Any] = done.value
        return result


knows_no_tasks: Final = StdioServer(
    "no tasks",
    {"tools/list": tools("greet", *ALL), "tools/call": called, "ping": {}},
    {"tools": {}},
    era="legacy",
    threads=True,
)


def main(*where: str) -> None:
    if where == ("legacy",):
        knows_no_tasks.run()
    elif where:
        import uvicorn

        app = HttpTasks("modern")
        app.server = SuiteTasks("modern")
        uvicorn.run(app, port=int(where[0]), log_level="error", lifespan="off")
    else:
        asyncio.run(on_stdio(SuiteTasks("modern")))


if __name__ == "__main__":
    main(*sys.argv[1:])
