"""A task answers who may call its tool: a weaker credential of the same principal learns nothing of it."""

import httpx

from tests.requirements import requirement
from tests.support.credentials import bearer
from tests.support.gateway_process import WORK, running_gateway, server
from tests.support.issuer import running_issuer
from tests.support.mcp_clients import messages
from tests.support.task_client import TaskClient

CLAIMS = {"trust": "trust", "workspace": "team", "permissions": "may"}


@requirement("task.rights")
def test_a_weaker_credential_of_the_same_principal_reaches_no_task_of_a_stronger_one(http: httpx.Client) -> None:
    with running_issuer() as issuer:
        options = {
            "auth": issuer.settings(claims=CLAIMS),
            "session": {"trust": "sandboxed"},
            "tasks": {"after_s": 0.2, "poll_ms": 150, "tools": True},
        }
        servers = {
            "guarded": server((*WORK, "legacy"), permissions=["notes.write"], direct_only=True),
            "open": server((*WORK, "modern")),
        }
        with running_gateway(servers, options=options) as gateway:
            token = issuer.token("ada", trust="direct", team="red", may=["notes.write"])
            strong, weak = (
                TaskClient(gateway.url, http, headers=bearer(each)) for each in (token, issuer.token("ada"))
            )
            task = strong.begin("guarded__work", job=1, seconds=1.5)
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                refused = messages(weak.send(method, task, inputResponses={}))[-1]["error"]
                assert refused["code"] == -32602 and "Unknown task" in refused["message"], method
            assert strong.until(task, "completed")["result"]["content"][0]["text"] == "done 1"
            over = messages(weak.send("tasks/get", task))[-1]["error"]
            assert over["code"] == -32602, "nor the result, once the task is over"
            told = messages(weak.client.tool("task_result", {"task": task, "wait_s": 0}))[-1]["result"]
            assert told["isError"] and "Unknown task" in told["content"][0]["text"]
            mine = weak.begin("open__work", job=2, seconds=0.6)
            assert weak.until(mine, "completed") and strong.get(mine)["status"] == "completed"
