"""Tasks that a 2025-11-25 client has asked for outlive the client and their gateway."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.task_survival import KEY, UNKNOWN, arena
from tests.requirements import requirement
from tests.support.gateway_process import ROOT
from tests.support.redis_server import RunningRedis
from tests.support.waiting import eventually
from tests.tools.obtain import python_with

PROGRAM = ROOT / "tests" / "clients" / "tasks_v1.py"


def run(python: Path, url: str, *arguments: str) -> Any:
    command = [str(python), str(PROGRAM), url, KEY, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(finished.stdout)


@requirement("task.asked", "task.durable", "spec.legacy")
@pytest.mark.timeout(300)
def test_a_client_of_the_python_sdk_finishes_tasks_of_an_owner_that_is_dead(
    redis_server: RunningRedis, tmp_path: Path
) -> None:
    python, ledger = python_with({"mcp": "==1.30.0"}), tmp_path / "ledger"
    with arena(redis_server, ledger, 2, offered=["work/work"]) as (owner, other):
        begun = run(python, owner.url, "begin", "look", "ask", "work")
        looked, asking, lost = begun["made"].values()
        assert begun["offered"] and begun["listed"] == [looked, asking, lost]
        assert (begun["support"]["work"], begun["support"]["look"]) == ("optional", None)
        done = run(python, other.url, "finish", looked)["outcomes"]
        assert done == [done[0] | {"text": "done look", "code": 0, "last": "completed"}]
        assert eventually(lambda: "began work" in ledger.read_text())
        owner.kill()
        told = run(python, other.url, "finish", asking, lost, looked)
        heard, unknown, again = told["outcomes"]
        assert heard["statuses"][-1] == "input_required" and heard["last"] == "completed"
        assert [one["content"]["name"] for one in json.loads(heard["text"])] == ["of a later process"]
        assert [one["task"] for one in told["asked"]] == [asking]
        assert (unknown["code"], unknown["last"]) == (UNKNOWN, "failed") and "unknown" in unknown["text"].lower()
        assert again["text"] == "done look", "its outcome is stored"
        assert ledger.read_text().count("began work") == 1 and ledger.read_text().count("began look") == 1
