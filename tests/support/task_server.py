"""A server that makes tasks, in both eras, on stdio and on HTTP: `task_server.py modern|legacy`.

Modern: the extension `io.modelcontextprotocol/tasks` of 2026-07-28. Legacy: the experimental tasks of 2025-11-25. It
writes its messages by hand, so that it shares no mistake with an SDK or with the gateway.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from tests.support.asgi import body_of, respond, served
from tests.support.stdio_server import SUBSCRIPTION, Refusal

EXTENSION = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
OVER = ("completed", "failed", "cancelled")
QUESTION = {"message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}

Send = Callable[[Any], None]


class Task:
    """One task, in the words of both eras."""

    def __init__(self, number: int, ttl: int | None, token: Any) -> None:
        self.id = f"task/{os.getpid()}:{number}"
        self.status, self.message, self.job = "working", "begun", ""
        self.created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.ttl, self.token = ttl, token
        self.result: Any = None
        self.error: Any = None
        self.questions: dict[str, Any] = {}
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.changed = asyncio.Condition()

    def plain(self, era: str) -> dict[str, Any]:
        ttl, poll = ("ttlMs", "pollIntervalMs") if era == "modern" else ("ttl", "pollInterval")
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        body = {"taskId": self.id, "status": self.status, "statusMessage": self.message}
        return body | {
            "createdAt": self.created,
            "lastUpdatedAt": now,
            ttl: self.ttl,
            poll: 50,
            "x-more": {"kept": [1, None], "pid": os.getpid()},
        }

    def whole(self) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self.status == "input_required":
            more["inputRequests"] = self.questions
        if self.status == "completed":
            more["result"] = self.result
        if self.status == "failed":
            more["error"] = self.error
        return self.plain("modern") | more


class TaskServer:
    """The server, on any transport. `seen` has every message that came, `executed` the job of every call that was to
    become a task, each time that it began. The tasks of jobs that are `held` go on when they are not."""

    def __init__(self, era: str) -> None:
        self.era = era
        self.seen: list[Any] = []
        self.executed: list[str] = []
        self.tasks: dict[str, Task] = {}
        self.held: set[str] = set()
        self.running: set[asyncio.Task[None]] = set()
        self.listening: list[tuple[Any, list[str], Send]] = []
        self.asked: dict[Any, asyncio.Future[Any]] = {}
        self.numbers = itertools.count(1)
        self.broadcast: Send = lambda message: None

    async def handle(self, message: Any, send: Send) -> Any:
        """The response to a message; None if it gets none, or gets it later by `send`."""
        self.seen.append(message)
        if "method" not in message:
            self.asked.pop(message["id"]).set_result(message)
            return None
        if "id" not in message:
            if message["method"] == "notifications/cancelled":
                ended = message["params"]["requestId"]
                self.listening = [each for each in self.listening if each[0] != ended]
            return None
        try:
            result = await self.answer(message["method"], message.get("params", {}), message["id"], send)
        except Refusal as refusal:
            return {"jsonrpc": "2.0", "id": message["id"], "error": refusal.error}
        return None if result is None else {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def answer(self, method: str, params: Any, number: Any, send: Send) -> Any:
        if method == {"modern": "initialize", "legacy": "server/discover"}[self.era]:
            raise Refusal
        done = {"resultType": "complete"} if self.era == "modern" else {}
        cached = {"ttlMs": 0, "cacheScope": "private"} if self.era == "modern" else {}
        match method:
            case "server/discover":
                capabilities: Any = {"tools": {}, "extensions": {EXTENSION: {}}}
                info = {"serverInfo": {"name": "tasks", "version": "1"}, "supportedVersions": ["2026-07-28"]}
                return done | cached | info | {"capabilities": capabilities}
            case "initialize":
                offered: Any = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
                info = {"serverInfo": {"name": "tasks", "version": "1"}, "protocolVersion": params["protocolVersion"]}
                return info | {"capabilities": {"tools": {}, "tasks": offered}}
            case "ping":
                return {}
            case "tools/list":
                return done | cached | {"tools": self.tools()}
            case "tools/call":
                return await self.call(params, send)
            case "subscriptions/listen":
                return self.listen(params, number, send)
            case "tasks/list" if self.era == "legacy":
                return self.page(params)
        return done | await self.about(method, params, send)

    def tools(self) -> list[Any]:
        names = ("work", "ask", "fail", "must", "must_ask", "sneak", "look", "plain", "seen")
        support = {"work": "optional", "ask": "optional", "fail": "optional"}
        support |= {"must": "required", "must_ask": "required", "look": "required"}
        tools: list[dict[str, Any]] = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        tools[names.index("look")]["annotations"] = {"readOnlyHint": True}
        if self.era == "legacy":
            for tool in tools:
                if tool["name"] in support:
                    tool["execution"] = {"taskSupport": support[tool["name"]]}
        return tools

    async def call(self, params: Any, send: Send) -> Any:
        name, arguments, meta = params["name"], params.get("arguments", {}), params.get("_meta", {})
        if name == "seen":
            return self.text(json.dumps(self.seen))
        if self.era == "modern":
            takes = EXTENSION in meta.get(CAPABILITIES, {}).get("extensions", {})
            if name == "must" and not takes:
                data: Any = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
                raise Refusal(-32021, "Missing required client capability", data=data)
            wants = takes or name == "sneak"
        else:
            wants = "task" in params
            if name.startswith("must") and not wants:
                raise Refusal(-32601, "must be called as a task")
        if name == "plain" or not wants:
            return self.text(f"{name} is done")
        ttl = arguments.get("ttl", params.get("task", {}).get("ttl"))
        self.executed.append(arguments.get("job", name))
        await asyncio.sleep(arguments.get("after_s", 0))
        task = Task(next(self.numbers), ttl, meta.get("progressToken"))
        task.job = arguments.get("job", name)
        self.tasks[task.id] = task
        running = asyncio.create_task(self.run(task, name, arguments))
        self.running.add(running)
        running.add_done_callback(self.running.discard)
        return {"resultType": "task"} | task.plain("modern") if self.era == "modern" else {"task": task.plain("legacy")}

    def text(self, text: str) -> Any:
        done = {"resultType": "complete"} if self.era == "modern" else {}
        return done | {"content": [{"type": "text", "text": text}]}

    # -- what tasks do

    async def run(self, task: Task, name: str, arguments: Any) -> None:
        if task.token is not None and self.era == "legacy":
            await asyncio.sleep(0.1)  # after the answer to the call
            progress = {"progressToken": task.token, "progress": 1, "message": "half", "_meta": self.related(task)}
            self.broadcast({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        if name.endswith("ask"):
            task.questions = {"q1": {"method": "elicitation/create", "params": {"mode": "form", **QUESTION}}}
            await self.change(task, "input_required", "asking")
            answer = await task.answers.get()
            task.questions = {}
            await self.change(task, "working", "answered")
            task.result = self.text(f"hello {answer['content']['name']}")
        else:
            await asyncio.sleep(arguments.get("for_s", 0.1))
            while task.job in self.held:  # noqa: ASYNC110  # a test lets it go from another thread
                await asyncio.sleep(0.02)
            task.result = self.text(f"{name} is done")
        if task.status in OVER:
            return
        if name == "fail":
            task.error = {"code": -32603, "message": "it broke"}
        await self.change(task, "failed" if name == "fail" else "completed", "over")

    async def change(self, task: Task, status: str, message: str) -> None:
        task.status, task.message = status, message
        async with task.changed:
            task.changed.notify_all()
        for number, ids, send in tuple(self.listening):
            if task.id in ids:
                params = task.whole() | {"_meta": {SUBSCRIPTION: number}}
                send({"jsonrpc": "2.0", "method": "notifications/tasks", "params": params})
        if self.era == "legacy":
            told = {"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task.plain("legacy")}
            self.broadcast(told)

    # -- what is asked about tasks

    def known(self, params: Any) -> Task:
        if params.get("taskId") not in self.tasks:
            raise Refusal(-32602, "Failed to retrieve task: Task not found")
        return self.tasks[params["taskId"]]

    async def about(self, method: str, params: Any, send: Send) -> Any:
        if not method.startswith("tasks/"):
            raise Refusal
        if self.era == "modern" and EXTENSION not in params["_meta"][CAPABILITIES].get("extensions", {}):
            raise Refusal(-32021, "Missing required client capability")
        task = self.known(params)
        match method:
            case "tasks/get":
                return task.whole() if self.era == "modern" else task.plain("legacy")
            case "tasks/update":
                for key in params["inputResponses"]:
                    if key in task.questions:
                        task.answers.put_nowait(params["inputResponses"][key])
                return {}
            case "tasks/cancel":
                if self.era == "legacy" and task.status in OVER:
                    raise Refusal(-32602, "already over")
                await self.change(task, "cancelled", "as you like")
                return {} if self.era == "modern" else task.plain("legacy")
            case "tasks/result" if self.era == "legacy":
                return await self.outcome(task, send)
        raise Refusal

    async def outcome(self, task: Task, send: Send) -> Any:
        has_asked = False
        while task.status not in OVER:
            if task.status == "input_required" and not has_asked:
                has_asked = True  # whoever asks for the result again is asked again
                number = f"ask-{next(self.numbers)}"
                self.asked[number] = asyncio.get_running_loop().create_future()
                question = QUESTION | {"_meta": self.related(task)}
                send({"jsonrpc": "2.0", "id": number, "method": "elicitation/create", "params": question})
                task.answers.put_nowait((await self.asked[number])["result"])
            async with task.changed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(task.changed.wait(), 0.1)
        if task.status == "cancelled":
            raise Refusal(-32603, "the task was cancelled")
        if task.error is not None:
            raise Refusal(task.error["code"], task.error["message"])
        return task.result | {"_meta": self.related(task)}

    def related(self, task: Task) -> Any:
        return {RELATED: {"taskId": task.id}}

    def page(self, params: Any) -> Any:
        tasks, start = [*self.tasks.values()], int(params.get("cursor", 0))
        more = {"nextCursor": str(start + 2)} if len(tasks) > start + 2 else {}
        return {"tasks": [task.plain("legacy") for task in tasks[start : start + 2]]} | more

    def listen(self, params: Any, number: Any, send: Send) -> None:
        ids = params["notifications"].get("taskIds", [])
        if EXTENSION not in params["_meta"][CAPABILITIES].get("extensions", {}):
            raise Refusal(-32021, "Missing required client capability")
        honoured = {"notifications": {"taskIds": [task for task in ids if task in self.tasks]}}
        meta = {"_meta": {SUBSCRIPTION: number}}
        method = "notifications/subscriptions/acknowledged"
        send({"jsonrpc": "2.0", "method": method, "params": honoured | meta})
        self.listening.append((number, honoured["notifications"]["taskIds"], send))


# -- stdio


async def on_stdio(server: TaskServer) -> None:
    loop, running = asyncio.get_running_loop(), set()

    def send(message: Any) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    async def one(message: Any) -> None:
        if (response := await server.handle(message, send)) is not None:
            send(response)

    server.broadcast = send
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(one(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


# -- HTTP


class HttpTasks:
    """The server as an ASGI app. `headers` has those of every request. A legacy client has a session, whose tasks no
    other session knows: `sessions` has the ids of its tasks."""

    def __init__(self, era: str) -> None:
        self.server = TaskServer(era)
        self.url = ""
        self.headers: list[dict[str, str]] = []
        self.sessions: dict[str, set[str]] = {}
        self._streams: list[asyncio.Queue[Any]] = []
        self.server.broadcast = self._broadcast

    def _broadcast(self, message: Any) -> None:
        for stream in self._streams:
            stream.put_nowait(message)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.headers.append(headers)
        if scope["method"] == "GET" and self.server.era == "legacy":
            stream: asyncio.Queue[Any] = asyncio.Queue()
            self._streams.append(stream)
            await self._stream(send, self._forever(stream))
            return
        if scope["method"] != "POST":
            await respond(send, 405)
            return
        message = json.loads(await body_of(receive))
        named = headers.get("mcp-session-id", "")
        session = self._session(message, named) if self.server.era == "legacy" else ""
        if session is None:
            await respond(send, 404)
            return
        if message.get("method") in ("subscriptions/listen", "tasks/result"):
            await self._stream(send, self._handled(message))
            return
        response = await self.server.handle(message, self._broadcast)
        if session and "task" in (response or {}).get("result", {}):
            self.sessions[session].add(response["result"]["task"]["taskId"])
        status = 202 if response is None else 200
        await respond(send, status, b"" if response is None else json.dumps(response).encode(), session=session)

    def asked_about(self, *methods: str) -> set[str]:
        """The ids of the tasks that clients have asked about."""
        return {sent["params"]["taskId"] for sent in self.server.seen if sent.get("method") in methods}

    def forget(self, *jobs: str) -> None:
        """Forget the tasks of jobs whose names end so."""
        for task in self._of(*jobs):
            del self.server.tasks[task.id]

    def forget_session(self, job: str) -> None:
        """Forget the session with the task of that job."""
        (task,) = self._of(job)
        self.sessions = {session: tasks for session, tasks in self.sessions.items() if task.id not in tasks}

    def is_cancelled(self, job: str) -> bool:
        """Whether the task of that job was cancelled."""
        return [task.status for task in self._of(job)] == ["cancelled"]

    def _of(self, *jobs: str) -> list[Task]:
        return [task for task in self.server.tasks.values() if task.job.endswith(jobs)]

    def _session(self, message: Any, session: str) -> str | None:
        """The session of a message; None if it is unknown. A task of another session is unknown in it."""
        if message.get("method") == "initialize":
            session = f"s{next(self.server.numbers)}"
            self.sessions[session] = set()
        if session not in self.sessions:
            return None
        if str(message.get("method")).startswith("tasks/"):
            params = message["params"]
            if params.get("taskId", "") not in {"", *self.sessions[session]}:
                params["taskId"] = "another session's"
        return session

    async def _handled(self, message: Any) -> AsyncIterator[Any]:
        stream: asyncio.Queue[Any] = asyncio.Queue()
        running = asyncio.create_task(self.server.handle(message, stream.put_nowait))

        def put(done: asyncio.Task[Any]) -> None:
            if not done.cancelled() and done.result() is not None:
                stream.put_nowait(done.result())

        running.add_done_callback(put)
        while True:
            sent = await stream.get()
            yield sent
            if sent.get("id") == message["id"]:
                return

    async def _forever(self, stream: asyncio.Queue[Any]) -> AsyncIterator[Any]:
        while True:
            yield await stream.get()

    async def _stream(self, send: Any, messages: AsyncIterator[Any]) -> None:
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        async for message in messages:
            body = f"data: {json.dumps(message)}\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@contextlib.contextmanager
def running_http_tasks(era: str) -> Iterator[HttpTasks]:
    """The server on HTTP in a thread of this process, so that a test can read its record."""
    app = HttpTasks(era)
    with served(app) as app.url:
        yield app


if __name__ == "__main__":
    asyncio.run(on_stdio(TaskServer(sys.argv[1])))
