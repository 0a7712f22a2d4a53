"""Lines of requests and calls: what one searches for, what is left out, what they say of tasks; a disk that stalls."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from gateway.tasks.task_handles import claimed
from tests.e2e.test_policy import told
from tests.operating.conftest import ADMIN
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, PROBE, ROOT, SIGNED, RunningGateway, running_gateway, server
from tests.support.hostile_text import HOSTILE, STEERING, shows_only_text
from tests.support.mcp_clients import Legacy, Modern, error_of, result_of
from tests.support.stdio_server import tools
from tests.support.table_server import table_server
from tests.support.task_client import TaskClient
from tests.support.waiting import descendants, eventually, gone

TRACE = "0af7651916cd43dd8448eb211c80319c"


@requirement("ctx.correlation", "ops.redact")
def test_each_request_has_one_line_with_what_one_searches_for(http: httpx.Client) -> None:
    servers = {"probe": server(PROBE), "demo": server(DEMO)}
    with running_gateway(servers, options={"log_format": "json"}) as gateway:
        parent = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        Modern(f"{gateway.base}/servers/probe/mcp", http).tool("fail", meta=parent)
        client = Legacy(f"{gateway.base}/servers/demo/mcp", http).open()
        client.tool("whoami")
        client.call("tools/call", {"name": "no\nline=forged", "arguments": {}})
        Legacy(gateway.url, http).call("tools/list")
        gateway.stop()
    lines = [json.loads(line) for line in gateway.stderr().splitlines() if line.startswith("{")]
    ended = [line for line in lines if "outcome" in line]
    assert [(line["event"], line["outcome"].split()[0]) for line in ended] == [
        ("tools/call", "tool"),
        ("initialize", "ok"),
        ("tools/call", "ok"),
        ("tools/call", "error"),
        ("tools/list", "refused"),
    ]
    failed = ended[0]
    assert (failed["correlation"], failed["server"], failed["tool"]) == (TRACE, "probe", "fail")
    assert failed["reason"] == "it failed" and failed["took_ms"] > 0 and len(failed["session"]) == 8
    assert all(len(line["correlation"]) == 32 for line in ended)
    assert client.session not in gateway.stderr()


def test_under_load_lines_are_left_out_and_counted(http: httpx.Client) -> None:
    few = {"gateway.observability.request_log.LINES_PER_S": 5}
    with running_gateway({"probe": server(PROBE)}, options={}, constants=few) as gateway:
        client = Legacy(gateway.url, http).open()
        for _ in range(100):
            client.tool("pid")
        gateway.stop()
    lines = gateway.stderr().splitlines()
    written = [line for line in lines if "outcome=" in line]
    told = [int(line.split('event="')[1].split()[0]) for line in lines if "more requests were answered" in line]
    assert len(written) <= 5 * 10 and len(written) + sum(told) == 101, "what is not written is counted"


def test_at_a_terminal_lines_are_for_people(http: httpx.Client) -> None:
    with running_gateway({"probe": server(PROBE)}, options={"log_format": "pretty"}) as gateway:
        Legacy(gateway.url, http).open().tool("pid")
        gateway.stop()
    lines = gateway.stderr().splitlines()
    (call,) = (line for line in lines if re.search(r"  pid +ok +[\d.]+ ms ", line))
    assert len(call) < 120 and "probe" in call and "anonymous" not in call and "correlation" not in call
    # The log goes to a file: the greeting has no link, and programs find their line.
    assert any("MCP Session Gateway" in line for line in lines) and f"ready {gateway.url}" in lines
    assert "sign-in" not in gateway.stderr()


# -- the line of a request about a task names the task, and that of a kept answer says so


@requirement("ctx.correlation", "task.operators", "cache.servers")
def test_lines_name_the_task_and_say_what_was_kept(http: httpx.Client, ops: httpx.Client) -> None:
    caching = table_server({"era": "modern", "ttl_ms": 60_000, "answers": {"tools/list": tools("change")}})
    tasks = {"at_once": ["probe/sleep"]}
    options = {"log_format": "json", "tasks": tasks, "admin": ADMIN, "anonymous": True}
    with running_gateway({"probe": server(PROBE), "kept": caching}, options=options, env=SIGNED) as gateway:
        client = TaskClient(gateway.url, http)
        task = client.begin("probe__sleep", seconds=60.0)
        client.cancel(task)
        client.until(task, "cancelled")
        elsewhere = TaskClient(f"{gateway.base}/servers/probe/mcp", http)
        assert error_of(elsewhere.send("tasks/get", task))["code"] == -32602
        legacy = Legacy(gateway.url, http).open()
        asked = {"name": "probe__sleep", "arguments": {"seconds": 60.0}, "task": {}}
        old = result_of(legacy.call("tools/call", asked))["task"]["taskId"]
        for method in ("tasks/get", "tasks/cancel", "tasks/cancel", "tasks/result"):
            legacy.call(method, {"taskId": old})
        kept = Modern(f"{gateway.base}/servers/kept/mcp", http)
        for _ in range(3):
            assert kept.send("tools/list").status_code == 200
        read = "mcp_gateway_cache_hits_total"
        text = ops.get(f"{gateway.base}/metrics").text
        hits = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line.startswith(read)}
        assert hits[f'{read}{{method="tools/list",server="kept"}}'] >= 2, hits
        assert hits[f'{read}{{method="tools/list",server="probe"}}'] == 0, "what has not happened is there as well"
        gateway.stop()
    lines = [json.loads(line) for line in gateway.stderr().splitlines() if line.startswith("{")]
    ended = [line for line in lines if "took_ms" in line]

    def about(handle: str) -> set[tuple[str, str, str]]:
        named = claimed(handle)
        assert named is not None
        found = [line for line in ended if line.get("task") == named.log_facts["task"]]
        facts = ("probe", named.session_id[:8], "anonymous")
        assert all((line["server"], line["session"], line["principal"]) == facts for line in found), found
        return {(line["event"], line.get("tool", ""), line["outcome"].partition(" ")[0]) for line in found}

    assert about(task) == {
        ("tools/call", "sleep", "error"),
        ("tasks/get", "", "ok"),
        ("tasks/get", "", "refused"),
        ("tasks/cancel", "", "ok"),
    }
    assert about(old) == {
        ("tools/call", "", "ok"),
        ("tools/call", "sleep", "error"),
        ("tasks/get", "", "ok"),
        ("tasks/cancel", "", "ok"),
        ("tasks/cancel", "", "refused"),
        ("tasks/result", "", "error"),
    }
    lists: list[Any] = [line for line in ended if line["event"] == "tools/list"]
    assert sum(line.get("cached", False) for line in lists) >= 2 and task not in gateway.stderr()
    assert not any("cached" in line for line in ended if line["event"] != "tools/list")


# -- what strangers have named cannot steer the terminal of whoever operates


@requirement("wall.decoded")
def test_the_commands_show_what_servers_are_called(http: httpx.Client, tmp_path: Path) -> None:
    tool = {"name": HOSTILE, "description": HOSTILE, "inputSchema": {"type": "objekt"}}
    for command in (["manifest"], ["doctor"], ["doctor", "--json"], ["check"], ["check", "--json"]):
        _, words = told(tmp_path, command, {}, {}, {"tools": [tool]})
        assert shows_only_text(words), command
    options = {"log_level": "info", "audit": {"to": ["store", "stderr"], "calls": True}}
    with running_gateway({"p": server(PROBE, tools={"crash": {"direct_only": True}})}, options=options) as gateway:
        client = Legacy(gateway.url, http).open(name=HOSTILE)
        client.tool(HOSTILE)
        client.tool("\u202eecho")
    assert not any(character in gateway.stderr() for character in STEERING)


# -- a disk that stands still holds up what needs it, and nothing else


@requirement("wall.unread-log")
def test_a_store_on_a_disk_that_stands_still_answers_503_and_holds_up_nobody_else(
    tmp_path: Path, http: httpx.Client
) -> None:
    shim, flag = tmp_path / "stalls.so", tmp_path / "stands-still"
    source = ROOT / "tests" / "support" / "stalling_disk.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
    env = {"LD_PRELOAD": str(shim), "STALL_WHILE": str(flag), "STALL_NAME": "sessions.db", "PYTHONPATH": str(ROOT)}
    options = {
        "store": f"sqlite:///{tmp_path}/sessions.db",
        "audit": {"to": ["store", str(tmp_path / "sessions.db.audit")]},
    }
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"demo": server(DEMO)}, "gateway": options}))
    # Not forked from a process that has loaded the gateway: what is preloaded counts when a program starts.
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "run", "--port", "0", "--config", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | env,
    )
    gateway = RunningGateway(process)
    try:
        gateway.wait_ready()
        client = Legacy(gateway.url, http).open()
        client.tool("count")
        flag.touch()
        began = time.monotonic()
        refused = Legacy(gateway.url, http).initialize()
        assert refused.status_code == 503 and time.monotonic() - began < 10, refused.text
        for _ in range(20):
            assert http.get(f"{gateway.base}/healthz").status_code == 200
        flag.unlink()
        assert eventually(lambda: Legacy(gateway.url, http).initialize().status_code == 200)
        client.tool("count")
        flag.touch()
        Legacy(gateway.url, http).initialize()
        gateway.process.send_signal(signal.SIGTERM)
        # An exit leaves the disk to itself, within a bound.
        assert gateway.process.wait(60) in (0, -signal.SIGTERM), gateway.stderr()
    finally:
        left = descendants(process.pid)
        gateway.kill()
        assert gone(left)
