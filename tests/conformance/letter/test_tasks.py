"""Statements of the tasks extension that no other test shows."""

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway
from tests.support.task_client import TaskClient


@requirement("spec.letter", "task.make")
def test_a_tool_that_fails_completes_its_task(probe: RunningGateway, http: httpx.Client) -> None:
    """`failed` is for JSON-RPC errors only."""
    client = TaskClient(probe.at("probe"), http)
    done = client.until(client.begin("fail"), "completed")
    assert done["result"]["isError"] is True and "error" not in done
