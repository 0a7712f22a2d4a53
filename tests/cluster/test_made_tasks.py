"""Tasks outlive their client and their gateway, and any replica answers for them, in both eras."""

import contextlib
import functools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.task_survival import KEY, UNKNOWN, arena, survive
from tests.requirements import requirement
from tests.support.gateway_process import ROOT, WORK, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy
from tests.support.redis_server import RunningRedis
from tests.support.task_client import TaskClient
from tests.support.waiting import descendants, eventually, gone

pytestmark = requirement("task.durable")

HEADERS = {"Authorization": f"Bearer {KEY}"}
WORKING_S = 4.0
Alone = Callable[[], contextlib.AbstractContextManager[RunningGateway]]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    folder = tmp_path / "work"  # granted to the server, and so not that of the store
    folder.mkdir()
    return folder / "ledger"


@pytest.fixture
def two(redis_server: RunningRedis, ledger: Path) -> Iterator[list[RunningGateway]]:
    """Two replicas of a test's own, which it may kill."""
    with arena(redis_server, ledger, 2) as gateways:
        yield gateways


@pytest.fixture
def alone(tmp_path: Path, ledger: Path) -> Alone:
    """Starts a gateway that has its store for itself."""
    servers = {"work": server((*WORK, "legacy"), env={"LEDGER": str(ledger)})}
    options: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/sessions.db", "tasks": {"after_s": 0.3}}
    return functools.partial(running_gateway, servers, options=options, must_stop=False)


def client_of(gateway: RunningGateway, http: httpx.Client) -> TaskClient:
    return TaskClient(gateway.url, http, headers=HEADERS)


@requirement("task.make")
def test_tasks_survive_their_client_and_their_gateways(redis_server: RunningRedis, ledger: Path) -> None:
    with arena(redis_server, ledger) as three:
        report = survive(three, ledger, tasks=24, seconds=WORKING_S)
    assert report.broken == []
    assert (report.tasks["after"], report.completed["after"], report.again["after"]) == (12, 12, 0)
    assert (report.completed["before"], report.again["before"], report.unknown["before"]) == (6, 6, 6)
    redis = redis_server.client()
    lasting = [key for key in redis.scan_iter(count=1_000) if redis.ttl(key) == -1 and b"task" in key]
    assert lasting == [], "no key is kept for ever"


@requirement("task.make")
def test_tasks_are_answered_and_cancelled_through_another_replica_by_another_process(
    two: list[RunningGateway], http: httpx.Client, ledger: Path
) -> None:
    owner, other = two
    task = client_of(owner, http).begin("ask", job="asks", seconds=0.6)
    command = [sys.executable, "-m", "tests.cluster.task_process", "answer", other.url, KEY, task]
    answered = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, cwd=ROOT)
    assert json.loads(answered.stdout)["status"] == "completed"
    found = client_of(owner, http).get(task)
    heard = json.loads(found["result"]["content"][0]["text"])
    assert [one["content"]["name"] for one in heard] == ["of another process"] * 2
    client = client_of(other, http)
    task = client_of(owner, http).begin("ask", job="notifies", seconds=0.6, times=1)
    with client.listening(task, f"{task[:-4]}AAAA") as stream:
        assert next(stream)["params"]["notifications"] == {"taskIds": [task]}
        told = [next(stream)["params"] for _ in range(2)]
        assert [one["status"] for one in told] == ["working", "input_required"]
        client.answer(task, told[1]["inputRequests"])
        while told[-1]["status"] != "completed":
            told.append(next(stream)["params"])
    whole = {name: value for name, value in told[-1].items() if name != "_meta"}
    assert whole | {"resultType": "complete"} == client.get(task)
    task = client_of(owner, http).begin("work", job="cancelled", seconds=60)
    client_of(other, http).cancel(task)
    assert client_of(other, http).until(task, "cancelled")
    assert eventually(lambda: "cancelled the client has cancelled the task" in ledger.read_text())


@requirement("rep.drain", "proc.gone")
def test_tasks_that_outlast_a_drain_are_decided_on_elsewhere(
    two: list[RunningGateway], http: httpx.Client, ledger: Path
) -> None:
    owner, other = two
    working = client_of(owner, http).begin("work", job="outlasts", seconds=60)
    repeatable = client_of(owner, http).begin("look", job="moves", seconds=14)
    # In a session of its own: a legacy server's question does not say which call it belongs to.
    alone = TaskClient(owner.url, http, headers={**HEADERS, "MCP-Gateway-Session-Key": "alone"})
    asking = alone.begin("ask", job="asks", seconds=0.6)
    client = client_of(other, http)
    client.until(asking, "input_required")
    children = descendants(owner.pid)
    began = time.monotonic()
    assert owner.stop() in (0, -signal.SIGTERM)
    assert 9.0 < time.monotonic() - began < 25.0, "it waits for tasks, and not for ever"
    assert gone(children)
    failed = client.until(working, "failed", within_s=20)
    assert failed["error"]["code"] == UNKNOWN and "unknown" in failed["error"]["message"].lower()
    found = client.until(repeatable, "completed", within_s=40)
    assert found["result"]["content"][0]["text"] == "done moves" and "again" in found["statusMessage"]
    for _ in range(2):
        client.answer(asking, client.until(asking, "input_required", within_s=20)["inputRequests"])
        eventually(lambda: client.get(asking)["status"] != "input_required", within_s=1)
    client.until(asking, "completed", within_s=20)
    text = ledger.read_text()
    assert (text.count("began outlasts"), text.count("began moves")) == (1, 2)


def test_a_task_that_nobody_asks_for_is_decided_on(
    two: list[RunningGateway], http: httpx.Client, redis_server: RunningRedis, ledger: Path
) -> None:
    owner, _ = two
    client = client_of(owner, http)
    client.begin("work", job="forgotten", seconds=60)
    client.begin("look", job="repeated", seconds=2)
    owner.kill()
    assert eventually(lambda: ledger.read_text().count("began repeated") == 2)
    redis = redis_server.client()
    assert eventually(lambda: ledger.read_text().count("ended repeated") == 1)
    assert ledger.read_text().count("began forgotten") == 1
    assert eventually(lambda: not [k for k in redis.scan_iter() if b"tasks/running" in k]), "no name is left"


def test_a_gateway_alone_decides_on_its_tasks_when_it_is_started_again(
    http: httpx.Client, alone: Alone, ledger: Path
) -> None:
    with alone() as first:
        session = Legacy(first.url, http).open().session
        client = TaskClient(first.url, http, headers={"MCP-Gateway-Session": session})
        done = client.begin("work", job="done", seconds=0.5)
        client.until(done, "completed")
        lost = client.begin("work", job="lost", seconds=60)
        again = client.begin("look", job="again", seconds=1)
        first.kill()
    with alone() as second:
        client = TaskClient(second.url, http)
        assert client.get(done)["result"]["content"][0]["text"] == "done done"
        failed = client.until(lost, "failed")
        assert failed["error"]["code"] == UNKNOWN and "unknown" in failed["error"]["message"].lower()
        assert client.until(again, "completed")["result"]["content"][0]["text"] == "done again"
        assert ledger.read_text().count("began lost") == 1 and ledger.read_text().count("began again") == 2
