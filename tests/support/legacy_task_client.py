"""A client of the tasks of 2025-11-25."""

import threading
from typing import Any

import httpx

from tests.support.mcp_clients import Legacy, error_of, messages, result_of, streamed
from tests.support.waiting import eventually


class Tasks:
    """A client of tasks, with one session."""

    def __init__(self, url: str, http: httpx.Client, prefix: str = "", *, headers: Any = None) -> None:
        self.client = Legacy(url, http, headers=headers)
        self.handshake = result_of(self.client.initialize(capabilities={"elicitation": {}}))
        self.client.notify("notifications/initialized")
        self.prefix = prefix

    def begin(self, tool: str, *, meta: Any = None, task: Any = None, **arguments: Any) -> Any:
        params = {"name": f"{self.prefix}{tool}", "arguments": arguments, "task": task or {"ttl": 60_000}}
        return self.ask("tools/call", params if meta is None else params | {"_meta": meta})["task"]

    def ask(self, method: str, params: Any) -> Any:
        answer = messages(self.client.call(method, params))[-1]
        assert "result" in answer, answer
        return answer["result"]

    def get(self, task: str) -> Any:
        return self.ask("tasks/get", {"taskId": task})

    def until(self, task: str, status: str) -> Any:
        assert eventually(lambda: self.get(task)["status"] == status), self.get(task)
        return self.get(task)

    def error(self, method: str, params: Any) -> Any:
        return error_of(self.client.call(method, params))

    def listed(self) -> list[str]:
        found: list[str] = []
        params: dict[str, Any] = {}
        while True:
            page = self.ask("tasks/list", params)
            found += [task["taskId"] for task in page["tasks"]]
            if "nextCursor" not in page:
                return found
            params = {"cursor": page["nextCursor"]}

    def answered(self, task: str, name: str, *, error: Any = None) -> list[Any]:
        """The messages of a `tasks/result`, whose questions are answered with that name, or with an error."""
        seen = list[Any]()
        with self.client.streaming("tasks/result", {"taskId": task}, "r") as coming:
            for message in coming:
                seen.append(message)
                if message.get("method") == "elicitation/create":
                    result = {"action": "accept", "content": {"name": name}, "_meta": message["params"]["_meta"]}
                    self.client.reply(message, **({"result": result} if error is None else {"error": error}))
        return seen


class Listening:
    """The messages of a session's own stream. The session ends with the block."""

    def __init__(self, client: Legacy) -> None:
        self.got: list[Any] = []
        self._client = client
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> "Listening":
        self._thread.start()
        assert self._opened.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.delete()
        self._thread.join(10)

    def _read(self) -> None:
        headers = {**self._client.request_headers(), "Accept": "text/event-stream"}
        with httpx.Client(timeout=30) as http, http.stream("GET", self._client.url, headers=headers) as response:
            self._opened.set()
            self.got.extend(streamed(response))

    def of(self, method: str) -> list[Any]:
        return [message["params"] for message in self.got if message["method"] == method]
