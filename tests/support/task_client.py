"""A client that takes tasks. Each of its requests may come from another process: it carries nothing of the last one."""

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx

from tests.support.mcp_clients import DECLARES_TASKS, Modern, messages, modern_body, modern_headers, streamed
from tests.support.waiting import GIVE_UP_S, eventually

ACCEPT: Any = {"action": "accept", "content": {}}


class TaskClient:
    """Calls tools, whose names begin with the prefix, and asks about the tasks that the calls have become."""

    def __init__(self, url: str, http: httpx.Client, prefix: str = "", **more: Any) -> None:
        self.client = Modern(url, http, **more)
        self.prefix = prefix

    def call(self, tool: str, **arguments: Any) -> Any:
        """The result of a call, or the task that it has become."""
        return self.result(self.client.tool(f"{self.prefix}{tool}", arguments, meta=DECLARES_TASKS))

    def begin(self, tool: str, **arguments: Any) -> str:
        """The handle of the task that a call becomes."""
        task = self.call(tool, **arguments)
        assert task["resultType"] == "task" and task["status"] == "working", task
        handle = task["taskId"]
        assert isinstance(handle, str)
        return handle

    @staticmethod
    def result(response: httpx.Response) -> Any:
        answer = messages(response)[-1]
        assert "result" in answer, answer
        return answer["result"]

    def send(self, method: str, task: str, **more: Any) -> httpx.Response:
        return self.client.send(method, {"taskId": task, **more}, meta=DECLARES_TASKS)

    @contextlib.contextmanager
    def listening(self, *tasks: str, **more: Any) -> Iterator[Iterator[Any]]:
        """The messages of a stream that notifies of tasks, and of what else it asks for."""
        wanted = {"taskIds": tasks, **more}
        body = modern_body("subscriptions/listen", {"notifications": wanted}, meta=DECLARES_TASKS)
        headers = {**modern_headers(body), **self.client.headers}
        with self.client.http.stream("POST", self.client.url, json=body, headers=headers) as response:
            yield streamed(response)

    def get(self, task: str) -> Any:
        return self.result(self.send("tasks/get", task))

    def until(self, task: str, status: str, within_s: float = GIVE_UP_S) -> Any:
        """The task once it has that status."""
        found: dict[str, Any] = {}

        def has_come() -> bool:
            found.update(self.get(task))
            return bool(found["status"] == status)

        assert eventually(has_come, within_s), found
        return self.get(task)

    def answer(self, task: str, questions: Any, answer: Any = ACCEPT) -> None:
        """Answer all of these questions (`inputRequests`) alike."""
        told = self.result(self.send("tasks/update", task, inputResponses=dict.fromkeys(questions, answer)))
        assert told == {"resultType": "complete"}, told

    def cancel(self, task: str) -> None:
        told = self.result(self.send("tasks/cancel", task))
        assert told == {"resultType": "complete"}, told
