"""`make tasks`: clients and gateways are killed while tasks work, and a ledger shows what was executed.

A client in a process of its own begins calls on an unmodified stdio server of the handshake era, and is killed. One
gateway is killed once the answers of its tasks are stored, another one before. A new client of the same principal
fetches all outcomes through the third. The server has written a ledger: no call may have run twice but those whose
task says so, and none may be lost but those that are reported as unknown.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from tests.support.credentials import sha256
from tests.support.gateway_process import ROOT, UNLIMITED, WORK, RunningGateway, replicas, server
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.task_client import TaskClient
from tests.support.waiting import eventually

KEY: Final = "survivor" * 5
UNKNOWN: Final = -32014
SESSIONS: Final = 5
"""Of each of the two gateways that are killed."""

IN_TIME_S: Final = 90.0
"""How long the outcomes may take after the last fault, the calls that run again included."""


@dataclass
class Report:
    """What was found, by the fate of the gateway that ran the tasks."""

    tasks: Counter[str] = field(default_factory=Counter)
    completed: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    took_s: float = 0.0


@contextlib.contextmanager
def arena(redis: RunningRedis, ledger: Path, count: int = 3, **tasks: Any) -> Iterator[list[RunningGateway]]:
    """Gateways on one store, with one server."""
    servers = {"work": server((*WORK, "legacy"), env={"LEDGER": str(ledger)})}
    options: dict[str, Any] = {
        "api_keys": {"survivor": sha256(KEY)},
        "policy": UNLIMITED,
        "log_level": "warning",
        "tasks": {"after_s": 0.3, **tasks},
    }
    with replicas(redis.url, servers, count, **options) as gateways:
        yield gateways


def survive(gateways: list[RunningGateway], ledger: Path, *, tasks: int, seconds: float) -> Report:
    """Run the scenario with so many tasks, of so many seconds each. The two gateways begin their tasks one after the
    other, so that the answers of the first are stored while those of the second are still to come."""
    early, late, third = gateways
    report = Report()
    kinds = [f"{tool}-{number}" for number in range(tasks // 4) for tool in ("work", "look")]
    stored, lost = ([f"{fate}-{kind}" for kind in kinds] for fate in ("after", "before"))
    with httpx.Client(timeout=30) as http:
        client = TaskClient(third.url, http, headers={"Authorization": f"Bearer {KEY}"})
        handles = _begin(early, stored, seconds)
        time.sleep(seconds / 2)
        handles |= _begin(late, lost, seconds)
        assert eventually(lambda: all(client.get(handles[job])["status"] == "completed" for job in stored), seconds)
        early.kill()
        working = {client.get(handles[job])["status"] for job in lost}
        assert working == {"working"} and _executed(ledger).keys() == {*stored, *lost}, "the machine is too slow"
        late.kill()
        began = time.monotonic()
        found: dict[str, Any] = {}
        while time.monotonic() - began < IN_TIME_S and len(found) < len(handles):
            for job in handles.keys() - found.keys():
                if (task := client.get(handles[job]))["status"] != "working":
                    found[job] = task
            time.sleep(0.2)
    report.took_s = time.monotonic() - began
    _judge(report, [*stored, *lost], found, _executed(ledger))
    return report


def _begin(gateway: RunningGateway, jobs: list[str], seconds: float) -> dict[str, str]:
    """The handles of the tasks, by job. The client that has begun them is dead when this returns."""
    calls = [
        {
            "session": f"{job.partition('-')[0]}-session-{number % SESSIONS}",
            "tool": job.split("-")[1],
            "arguments": {"job": job, "seconds": seconds},
        }
        for number, job in enumerate(jobs)
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.task_process", "begin", gateway.url, KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("".join(json.dumps(call) + "\n" for call in calls))
    process.stdin.close()
    begun = [json.loads(process.stdout.readline()) for _ in calls]
    process.kill()
    process.stdout.close()
    process.wait(10)
    handles = {line["job"]: line["task"] for line in begun}
    assert all(handles.values()), "a call has become no task"
    return handles


def _executed(ledger: Path) -> Counter[str]:
    """How often the server has begun each job."""
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return Counter(line.split()[1] for line in lines if line.startswith("began "))


def _judge(report: Report, jobs: list[str], found: dict[str, Any], executed: Counter[str]) -> None:
    for job in jobs:
        fate, tool, _ = job.split("-")
        task = found.get(job)
        report.tasks[fate] += 1
        runs, is_again = executed[job], task is not None and "again" in task.get("statusMessage", "")
        report.again[fate] += is_again
        if task is None:
            report.broken.append(f"{job}: no outcome")
        elif task["status"] == "completed":
            report.completed[fate] += 1
            if task["result"]["content"][0]["text"] != f"done {job}":
                report.broken.append(f"{job}: the result of another call")
        elif task["status"] == "failed" and task["error"]["code"] == UNKNOWN and (fate, tool) == ("before", "work"):
            report.unknown[fate] += 1
        else:
            report.broken.append(f"{job}: {task['status']} {task.get('error')}")
        if runs > 1 and not (is_again and tool == "look" and runs == 2):
            report.broken.append(f"{job}: ran {runs} times, and its task does not say so")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    typed = parser.parse_args()
    with running_redis() as redis, tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        with arena(redis, ledger) as gateways:
            report = survive(gateways, ledger, tasks=typed.tasks, seconds=typed.seconds)
    table = Table("the gateway was killed", "tasks", "completed", "run again", "reported unknown")
    for fate, title in (("after", "after the answers were stored"), ("before", "before the answers")):
        counts = (report.tasks, report.completed, report.again, report.unknown)
        table.add_row(title, *(str(count[fate]) for count in counts))
    console = Console()
    console.print(table)
    console.print(f"all outcomes known after {report.took_s:.1f} s; broken promises: {len(report.broken)}")
    for line in report.broken:
        console.print(line)
    sys.exit(1 if report.broken else 0)


if __name__ == "__main__":
    main()
