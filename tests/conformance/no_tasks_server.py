"""The tools of the official scenarios `tasks-*` on a server of 2025-11-25 that knows no tasks: the gateway makes them.

A stdio server, without an SDK. A tool that asks sends requests to the client while its call runs.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import Mapping
from typing import Any

from tests.conformance.tasks_server import TASKS, Refused, question, text


class Server:
    """Answers requests, each in a task of its own."""

    def __init__(self) -> None:
        self._calls: dict[Any, asyncio.Task[None]] = {}
        self._numbers = itertools.count()
        self._asked: dict[str, asyncio.Future[Any]] = {}

    async def serve(self) -> None:
        """Until stdin ends. One message for each line."""
        reader = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self._receive(json.loads(line))

    def _receive(self, message: Mapping[str, Any]) -> None:
        if message.get("method") == "notifications/cancelled":
            if (call := self._calls.get(message["params"]["requestId"])) is not None:
                call.cancel()
        elif "method" in message and "id" in message:
            call = self._calls[message["id"]] = asyncio.create_task(self._answer(message))
            call.add_done_callback(lambda _: self._calls.pop(message["id"], None))
        elif "method" not in message and message.get("id") in self._asked:
            self._asked.pop(message["id"]).set_result(message.get("result", {}))

    async def _answer(self, request: Mapping[str, Any]) -> None:
        try:
            outcome = {"result": await self._result(request["method"], request.get("params", {}))}
        except Refused as refused:
            outcome = {"error": refused.error}
        _send({"id": request["id"], **outcome})

    async def _result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                about = {"serverInfo": {"name": "no tasks", "version": "1"}, "capabilities": {"tools": {}}}
                return {"protocolVersion": "2025-11-25", **about}
            case "tools/list":
                names = ("greet", "test_tool_with_task", *TASKS)
                return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
            case "tools/call":
                return await self._call(params["name"], params.get("arguments", {}))
            case "ping":
                return {}
            case _:
                raise Refused(-32601, f"unknown method {method}")

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if name == "greet":
            return text(f"Hello, {arguments.get('name')}!")
        if name == "test_tool_with_task":
            answers = await self._ask({"user_name": question("Who?", "name", "string")})
            await asyncio.sleep(4.0)  # longer than the gateway waits before it makes a task
            return text(f"Hello, {answers['user_name']['content']['name']}!")
        return await TASKS[name](arguments, self._ask)

    async def _ask(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        waiting = {}
        for key, request in requests.items():
            number = f"ask-{next(self._numbers)}"
            waiting[key] = self._asked[number] = asyncio.get_running_loop().create_future()
            _send({"id": number, **request})
        return dict(zip(waiting, await asyncio.gather(*waiting.values()), strict=True))


def _send(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(Server().serve())
