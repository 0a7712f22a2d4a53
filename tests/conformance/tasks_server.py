"""A server with the fixtures of the official scenarios `tasks-*`, for 2026-07-28, on stdio or, given a port, on HTTP.

It uses no SDK, because none that the tests have knows the extension. It does what the specification says and nothing
more: it announces no notifications. Tasks are kept in this process. Its tools and what they do are named by the suite.
"""

import asyncio
import json
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

EXTENSION: Final = "io.modelcontextprotocol/tasks"
VERSION: Final = "2026-07-28"
META: Final = "io.modelcontextprotocol/"
TTL_MS: Final = 60_000
POLL_MS: Final = 100
ENDED: Final = ("completed", "failed", "cancelled")
STATUS: Final = {-32601: 404, -32602: 400, -32600: 400, -32020: 400, -32021: 400, -32022: 400}
NAME_OF: Final = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}

Ask = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Refused(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})


def text(content: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}], "isError": is_error}


def question(message: str, name: str, kind: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


# The tools that become tasks.


async def slow_compute(arguments: Mapping[str, Any], _: Ask) -> dict[str, Any]:
    await asyncio.sleep(arguments.get("seconds", 0))
    return text(f"{arguments.get('label', '')} computed")


async def failing_job(_: Mapping[str, Any], __: Ask) -> dict[str, Any]:
    await asyncio.sleep(1)
    return text("the job failed", is_error=True)


async def protocol_error_job(_: Mapping[str, Any], __: Ask) -> dict[str, Any]:
    raise Refused(-32603, "the job broke")


async def confirm_delete(arguments: Mapping[str, Any], ask: Ask) -> dict[str, Any]:
    answers = await ask({"confirm": question(f"Delete {arguments.get('filename')}?", "confirm", "boolean")})
    return text(f"confirmed: {answers['confirm']}")


async def multi_input(_: Mapping[str, Any], ask: Ask) -> dict[str, Any]:
    wanted = {"first": question("First?", "name", "string"), "second": question("Second?", "name", "string")}
    return text(f"answers: {sorted(await ask(wanted))}")


async def greet_later(arguments: Mapping[str, Any], _: Ask) -> dict[str, Any]:
    return text(f"Hello, {arguments['user_name']}!")


TASKS: Final = {
    "slow_compute": slow_compute,
    "failing_job": failing_job,
    "protocol_error_job": protocol_error_job,
    "confirm_delete": confirm_delete,
    "multi_input": multi_input,
}
REQUIRED: Final = ("failing_job", "protocol_error_job", "confirm_delete", "multi_input", "test_tool_with_task")
"""Tools that cannot be served without a task."""


class Task:
    """A tool call that goes on after its request was answered."""

    def __init__(self, tool: Callable[[Mapping[str, Any], Ask], Awaitable[Any]], arguments: Mapping[str, Any]) -> None:
        self.id = secrets.token_urlsafe(16)
        self.status = "working"
        self.created = self.updated = datetime.now(UTC)
        self.outcome: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}
        self._answers: dict[str, Any] = {}
        self._answered = asyncio.Event()
        self._run = asyncio.create_task(self._running(tool(arguments, self._ask)))

    def plain(self) -> dict[str, Any]:
        """What a client is told of every task."""
        times = {"createdAt": self.created.isoformat(), "lastUpdatedAt": self.updated.isoformat()}
        return {"taskId": self.id, "status": self.status, **times, "ttlMs": TTL_MS, "pollIntervalMs": POLL_MS}

    def whole(self) -> dict[str, Any]:
        """With its questions, result or error."""
        asked = {"inputRequests": self._asked} if self.status == "input_required" else {}
        return {**self.plain(), **asked, **self.outcome}

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Keys that nobody asked for are ignored."""
        for key in self._asked.keys() & answers.keys():
            del self._asked[key]
            self._answers[key] = answers[key]
        if self.status == "input_required" and not self._asked:
            self._become("working")
            self._answered.set()

    def cancel(self) -> None:
        """Without effect on a task that has ended."""
        if self.status not in ENDED:
            self._become("cancelled")
            self._run.cancel()

    async def _ask(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        self._asked = dict(requests)
        self._become("input_required")
        await self._answered.wait()
        return self._answers

    async def _running(self, tool: Awaitable[Any]) -> None:
        try:
            self.outcome, status = {"result": await tool}, "completed"
        except Refused as refused:
            self.outcome, status = {"error": refused.error}, "failed"
        self._become(status)

    def _become(self, status: str) -> None:
        self.status, self.updated = status, datetime.now(UTC)


class TasksServer:
    """Answers requests."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    async def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON-RPC answer of a request."""
        head = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            result = await self._result(request["method"], request.get("params", {}))
        except Refused as refused:
            return {**head, "error": refused.error}
        return {**head, "result": {"resultType": "complete", **result}}

    async def _result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        methods = {"server/discover": self._discover, "tools/list": self._list, "tools/call": self._call}
        task_methods = {"tasks/get": self._get, "tasks/update": self._update, "tasks/cancel": self._cancel}
        if method not in methods and method not in task_methods:
            raise Refused(-32601, f"unknown method {method}")
        meta = params.get("_meta", {})
        if META + "clientCapabilities" not in meta or META + "protocolVersion" not in meta:
            raise Refused(-32602, "protocolVersion and clientCapabilities are required in _meta")
        if meta[META + "protocolVersion"] != VERSION:
            versions = {"supported": [VERSION], "requested": meta[META + "protocolVersion"]}
            raise Refused(-32022, "unsupported version", versions)
        knows_tasks = EXTENSION in meta[META + "clientCapabilities"].get("extensions", {})
        if method in task_methods:
            return task_methods[method](self._task(params, knows_tasks=knows_tasks), params)
        return await methods[method](params, knows_tasks=knows_tasks)

    async def _discover(self, _: Mapping[str, Any], **__: bool) -> dict[str, Any]:
        capabilities: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
        caching = {"ttlMs": 0, "cacheScope": "private"}
        return {"supportedVersions": [VERSION], "capabilities": capabilities, **caching, "_meta": self._about()}

    async def _list(self, _: Mapping[str, Any], **__: bool) -> dict[str, Any]:
        names = ("greet", "test_tool_with_task", *TASKS)
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        return {"tools": tools, "ttlMs": 0, "cacheScope": "private"}

    async def _call(self, params: Mapping[str, Any], *, knows_tasks: bool) -> dict[str, Any]:
        name, arguments = params.get("name"), params.get("arguments", {})
        if name in REQUIRED and not knows_tasks:
            raise _missing_capability()
        match name:
            case "greet":
                return text(f"Hello, {arguments.get('name')}!")
            case "test_tool_with_task":
                return self._asks_first(params)
            case "slow_compute" if not knows_tasks:
                return await slow_compute(arguments, _asks_nobody)
            case str() if name in TASKS:
                return self._create(TASKS[name], arguments)
            case _:
                raise Refused(-32602, f"unknown tool {name}")

    def _asks_first(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """A question of the call itself, and a task when that is answered."""
        if "inputResponses" not in params:
            requests = {"user_name": question("Who?", "name", "string")}
            return {"resultType": "input_required", "inputRequests": requests, "requestState": "asked"}
        given = params["inputResponses"].get("user_name", {}).get("content", {}).get("name")
        if params.get("requestState") != "asked" or not given:
            raise Refused(-32602, "answers that nobody asked for")
        return self._create(greet_later, {"user_name": given})

    def _create(self, tool: Callable[..., Awaitable[Any]], arguments: Mapping[str, Any]) -> dict[str, Any]:
        task = Task(tool, arguments)
        self._tasks[task.id] = task
        return {"resultType": "task", **task.plain()}

    def _task(self, params: Mapping[str, Any], *, knows_tasks: bool) -> Task:
        if not knows_tasks:
            raise _missing_capability()
        task = self._tasks.get(params.get("taskId", ""))
        if task is None:
            raise Refused(-32602, "unknown task")
        return task

    def _get(self, task: Task, _: Mapping[str, Any]) -> dict[str, Any]:
        return task.whole()

    def _update(self, task: Task, params: Mapping[str, Any]) -> dict[str, Any]:
        task.answer(params.get("inputResponses", {}))
        return {}

    def _cancel(self, task: Task, _: Mapping[str, Any]) -> dict[str, Any]:
        task.cancel()
        return {}

    def _about(self) -> dict[str, Any]:
        return {META + "serverInfo": {"name": "tasks", "version": "1"}}


def _missing_capability() -> Refused:
    return Refused(-32021, "tasks are required", {"requiredCapabilities": {"extensions": {EXTENSION: {}}}})


async def _asks_nobody(_: Mapping[str, Any]) -> dict[str, Any]:
    raise AssertionError("a call without a task asks nobody")


async def serve_stdio() -> None:
    """One message for each line. A request is answered while later ones are read."""
    server, reader, running = TasksServer(), asyncio.StreamReader(limit=1 << 20), set[asyncio.Task[None]]()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def answer(request: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(await server.answer(request)) + "\n")
        sys.stdout.flush()

    while line := await reader.readline():
        message = json.loads(line)
        if "method" in message and "id" in message:
            running.add(task := asyncio.create_task(answer(message)))
            task.add_done_callback(running.discard)


def http_app() -> Callable[..., Awaitable[None]]:
    """An ASGI app that checks the headers which repeat the body, and answers in JSON."""
    server = TasksServer()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] != "POST":
            await _send(send, 405, b"")
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        message = json.loads(body)
        if "method" not in message or "id" not in message:
            await _send(send, 202, b"")
            return
        if (wrong := _wrong_header(message, dict(scope["headers"]))) is not None:
            answer = {"jsonrpc": "2.0", "id": message["id"], "error": wrong.error}
        else:
            answer = await server.answer(message)
        status = STATUS.get(answer["error"]["code"], 200) if "error" in answer else 200
        await _send(send, status, json.dumps(answer).encode())

    return app


def _wrong_header(message: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Refused | None:
    method, params = message["method"], message.get("params", {})
    wanted = {"mcp-protocol-version": VERSION, "mcp-method": method}
    if method in NAME_OF:
        wanted["mcp-name"] = str(params.get(NAME_OF[method]))
    for name, value in wanted.items():
        if headers.get(name.encode(), b"").decode() != value:
            return Refused(-32020, f"{name} must be {value}")
    return None


async def _send(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvicorn

        uvicorn.run(http_app(), port=int(sys.argv[1]), log_level="error", lifespan="off")
    else:
        asyncio.run(serve_stdio())
