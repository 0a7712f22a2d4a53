"""The task that a server behind a URL has made of a call outlives the gateway that has followed it."""

import asyncio
import contextlib
import functools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from session_store import Task
from session_store.connect import backend_for
from tests.cluster.task_process import KEY_HEADER
from tests.cluster.task_survival import KEY, UNKNOWN
from tests.requirements import requirement
from tests.support.credentials import sha256
from tests.support.gateway_process import SIGNED, UNLIMITED, RunningGateway, running_gateway
from tests.support.redis_server import RunningRedis
from tests.support.task_client import TaskClient
from tests.support.task_server import HttpTasks, running_http_tasks
from tests.support.waiting import eventually

HEADERS = {"Authorization": f"Bearer {KEY}"}
ERAS = ("legacy", "modern")
ASKS = {"legacy": "tasks/result", "modern": "tasks/get"}
ADA = {"action": "accept", "content": {"name": "Ada"}}


@pytest.fixture
def servers() -> Iterator[dict[str, HttpTasks]]:
    """A server of each era. They are in this process, and live on when a gateway is killed."""
    with contextlib.ExitStack() as stack:
        yield {era: stack.enter_context(running_http_tasks(era)) for era in ERAS}


def gateway_of(store: str, servers: dict[str, HttpTasks]) -> contextlib.AbstractContextManager[RunningGateway]:
    """A gateway in front of both servers."""
    options = {
        "store": store,
        "api_keys": {"survivor": sha256(KEY)},
        "policy": UNLIMITED,
        "tasks": {"after_s": 0.1},
    }
    entries = {era: {"url": app.url} for era, app in servers.items()}
    return running_gateway(entries, options=options, env=SIGNED, must_stop=False)


class Jobs:
    """Calls that have become tasks of a gateway, and of their servers. They work until they are let go."""

    def __init__(self, gateway: RunningGateway, http: httpx.Client, servers: dict[str, HttpTasks]) -> None:
        self._url, self._http, self._servers = gateway.url, http, servers
        self.handles: dict[str, str] = {}

    def begin(self, era: str, tool: str, job: str, **arguments: Any) -> None:
        """Call a tool. A modern server makes its task once the gateway has made one, and a legacy server at once. Each
        job has a session of its own, but for `asks`, during which others run in the session."""
        client = TaskClient(self._url, self._http, headers={**HEADERS, KEY_HEADER: job.replace("asks", "works")})
        job, after_s = f"{era} {job}", 0.5 if era == "modern" else 0
        self._servers[era].server.held.add(job)
        self.handles[job] = client.begin(f"{era}__{tool}", job=job, after_s=after_s, **arguments)

    def let_go(self, *jobs: str) -> None:
        """Let jobs end whose names end so."""
        for app in self._servers.values():
            app.server.held -= {job for job in self.handles if job.endswith(jobs)}

    @property
    def executed(self) -> dict[str, int]:
        """How often each job was executed, by the ledgers of the servers."""
        return {job: self._servers[job.split()[0]].server.executed.count(job) for job in self.handles}


def stored(store: str) -> list[Task]:
    """The records of the tasks that work."""

    async def read() -> list[Task]:
        backend = backend_for(store)
        await backend.open()
        try:
            return [task for task in await backend.tasks.page() if not task.is_over]
        finally:
            await backend.close()

    return asyncio.run(read())


def are_recorded(store: str, jobs: Jobs) -> bool:
    """Whether the records of all jobs have the ids of the servers' own tasks."""
    return len([task for task in stored(store) if task.upstream_id]) == len(jobs.handles)


def is_asked_again(client: TaskClient, task: str, before: dict[str, Any]) -> bool:
    """Whether the task has other questions than before."""
    return bool(client.get(task).get("inputRequests", before).keys() != before.keys())


@requirement("task.followed", "task.durable")
def test_the_task_of_a_server_outlives_the_gateway_that_has_followed_it(
    http: httpx.Client, redis_server: RunningRedis, servers: dict[str, HttpTasks]
) -> None:
    with gateway_of(redis_server.url, servers) as owner, gateway_of(redis_server.url, servers) as other:
        jobs = Jobs(owner, http, servers)
        for era in ERAS:
            jobs.begin(era, "must", "works")
            jobs.begin(era, "must_ask", "asks")
            jobs.begin(era, "must", "cancelled")
            jobs.begin(era, "must", "forgotten")
            jobs.begin(era, "look", "looks")
        assert eventually(lambda: are_recorded(redis_server.url, jobs)), stored(redis_server.url)
        client, handles = TaskClient(other.url, http, headers=HEADERS), jobs.handles
        before = {era: client.until(handles[f"{era} asks"], "input_required")["inputRequests"] for era in ERAS}
        owner.kill()
        for app in servers.values():
            app.forget("forgotten", "looks")
        jobs.let_go("works", "looks")
        for era in ERAS:
            client.cancel(handles[f"{era} cancelled"])
            assert client.until(handles[f"{era} cancelled"], "cancelled")
            done = client.until(handles[f"{era} works"], "completed", within_s=20)
            assert done["result"]["content"][0]["text"] == "must is done"
            asks, asked = handles[f"{era} asks"], before[era]
            assert eventually(functools.partial(is_asked_again, client, asks, asked))
            client.answer(asks, client.get(asks)["inputRequests"], ADA)
            assert client.until(asks, "completed")["result"]["content"][0]["text"] == "hello Ada"
            lost = client.until(handles[f"{era} forgotten"], "failed", within_s=20)
            assert lost["error"]["code"] == UNKNOWN and "does not know that task any more" in lost["error"]["message"]
            again = client.until(handles[f"{era} looks"], "completed", within_s=20)
            assert "again" in again["statusMessage"]
            assert eventually(functools.partial(servers[era].is_cancelled, f"{era} cancelled"))
        assert jobs.executed == {job: 2 if job.endswith("looks") else 1 for job in handles}


@requirement("task.followed", "task.durable")
def test_a_gateway_alone_that_stops_leaves_the_tasks_of_servers_to_its_next_process(
    http: httpx.Client, tmp_path: Path, servers: dict[str, HttpTasks]
) -> None:
    store = f"sqlite:///{tmp_path}/sessions.db"
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(gateway_of(store, servers))
        jobs = Jobs(first, http, servers)
        for era in ERAS:
            jobs.begin(era, "must", "works")
        jobs.begin("legacy", "must", "in a lost session")
        # What follows the tasks knows their ids.
        assert eventually(lambda: [len(servers[era].asked_about(ASKS[era])) for era in ERAS] == [2, 1])
        servers["legacy"].forget_session("in a lost session")
        assert first.stop() in (0, -signal.SIGTERM)
        assert "3 go on elsewhere or later" in first.stderr() and len(stored(store)) == 3
        second = stack.enter_context(gateway_of(store, servers))
        jobs.let_go("works")
        client = TaskClient(second.url, http, headers=HEADERS)
        for era in ERAS:
            assert client.until(jobs.handles[f"{era} works"], "completed", within_s=20)
        failed = client.until(jobs.handles["legacy in a lost session"], "failed", within_s=20)
        assert failed["error"]["code"] == UNKNOWN and "does not know that task" in failed["error"]["message"]
        assert jobs.executed == dict.fromkeys(jobs.handles, 1)
        sent = [message for app in servers.values() for message in app.server.seen]
        assert [message for message in sent if message.get("method") == "tasks/cancel"] == []
