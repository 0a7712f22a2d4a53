"""STAGEWRIGHT: tools read, write or evaluate; calls are checked, told and ended in order."""

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.designs.agents import (
    Open,
    StdioAgent,
    environment,
    example,
    failed_text,
    opener,
    refused_text,
    serving,
    text_of,
    tools_of,
)
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, ROOT, RunningGateway
from tests.support.waiting import eventually

CONFIG = example("stagewright")
TRACE = "io.github.mcp-session-gateway/trace"


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with serving(CONFIG) as running:
        yield running


@pytest.fixture
def start(gateway: RunningGateway, http: httpx.Client) -> Open:
    return opener(gateway, http)


@requirement("pol.operation", "pol.arguments", "ctx.isolated")
def test_tools_read_and_write_and_none_evaluates(start: Open) -> None:
    one, two = start(), start()
    listed = tools_of(one)
    assert set(listed) >= {"stage__describe", "stage__move", "stage__rehearse"} and "stage__evaluate" not in listed
    assert "operation" not in json.dumps([tool["inputSchema"] for tool in listed.values()])
    assert "Unknown tool" in refused_text(one.tool("stage__evaluate", {"expression": "1+1"}))
    assert text_of(one.tool("stage__move", {"actor": "Ada", "x": 2})) == "Ada at 2"
    assert text_of(one.tool("stage__describe")) == "Ada at 2"
    assert text_of(two.tool("stage__describe")) == "the stage is empty"
    failed = failed_text(one.tool("stage__move", {"actor": "Ada", "x": "left"}))
    assert "x: " in failed and "Traceback" not in failed and "ValidationError" not in failed


@requirement("pol.operation", "ctx.stdio-front", "ctx.meta-out", "life.default-only")
def test_tools_that_evaluate_are_switched_on_and_their_words_stay_blocked() -> None:
    with StdioAgent(CONFIG, "--allow-eval") as agent:
        agent.open(name="director")
        answer = agent.tool("stage__evaluate", {"expression": "1+1"})
        assert text_of(answer) == "2" and len(answer["result"]["_meta"][TRACE]["session"]) == 8
        for expression in ("import os", "IMPORT os", "open ('x')"):
            assert "blocked" in failed_text(agent.tool("stage__evaluate", {"expression": expression})).lower()
        assert "x: " in failed_text(agent.tool("stage__move", {"actor": "Ada", "x": "left"}))
        assert json.loads(text_of(agent.tool("gateway__show_session")))["client"] == "director"


@requirement("ctx.meta-out", "ctx.correlation", "pol.slow")
def test_a_result_names_its_session_and_request_and_a_slow_one_is_told(start: Open) -> None:
    agent = start()
    answer = agent.tool("stage__rehearse", {"seconds": 0.4})
    assert text_of(answer) == "rehearsed"
    trace = answer["result"]["_meta"][TRACE]
    assert len(trace["session"]) == 8 and trace["correlation_id"]
    assert eventually(lambda: bool(_slow_lines(agent.log(), trace["correlation_id"])))
    line = _slow_lines(agent.log(), trace["correlation_id"])[0]
    assert "rehearse" in line and trace["session"] in line and re.search(r"took|after|\d\.\d", line)


def _slow_lines(log: str, correlation: str) -> list[str]:
    return [line for line in log.splitlines() if "warning" in line and "slow" in line and correlation in line]


@requirement("life.default-only", "pol.tools", "life.end")
def test_the_only_session_is_taken_and_an_ended_one_is_gone(start: Open) -> None:
    agent = start(name="director")
    shown = json.loads(text_of(agent.tool("gateway__show_session")))
    assert shown["here"] is True and shown["client"] == "director"
    assert agent.client.delete().status_code in (200, 204)
    assert agent.client.tool("stage__describe").status_code == 404
    assert agent.client.delete().status_code in (200, 204, 404), "twice is harmless"


@requirement("pol.manifest", "pol.operation")
def test_the_manifest_prints_offline() -> None:
    command = [sys.executable, "-m", "gateway", "manifest", "--config", str(CONFIG)]
    printed = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=True
    ).stdout
    tools = {tool["name"]: tool for tool in json.loads(printed)["tools"] if tool["server"] == "stage"}
    operations = {name.removeprefix("stage__"): tool["operation"] for name, tool in tools.items()}
    assert operations == {"describe": "read", "move": "write", "evaluate": "eval", "rehearse": "write"}
    assert tools["stage__move"]["inputSchema"]["properties"].keys() == {"actor", "x"}


def telling(folder: Path) -> tuple[Path, Path]:
    """A configuration whose server leaves a line in a file when its stdin is closed, unless a signal comes first."""
    told, config = folder / "told", folder / "mcp.json"
    script = f"{shlex.join(DEMO)}; echo closed >> {shlex.quote(str(told))}"
    sandbox = {"write": [str(folder)]}
    entry = {"command": "sh", "args": ["-c", script], "env": {"PYTHONPATH": str(ROOT)}, "sandbox": sandbox}
    config.write_text(json.dumps({"mcpServers": {"stage": entry}}), encoding="utf-8")
    return config, told


@requirement("proc.shutdown")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_at_the_end_servers_are_asked_before_they_are_killed(
    number: signal.Signals, http: httpx.Client, tmp_path: Path
) -> None:
    config, told = telling(tmp_path)
    with serving(config) as gateway:
        for agent in (opener(gateway, http)() for _ in range(2)):
            text_of(agent.tool("count"))
        before = (
            len(told.read_text().splitlines()) if told.exists() else 0
        )  # a server that was only asked for its lists
        gateway.process.send_signal(number)
        gateway.process.wait(30)
        assert len(told.read_text().splitlines()) - before >= 2, "each saw its stdin close"


@requirement("proc.noise", "ctx.stdio-front", "proc.shutdown")
def test_on_stdio_every_line_is_protocol_and_the_end_of_input_ends_the_server(tmp_path: Path) -> None:
    config, told = telling(tmp_path)
    with StdioAgent(config) as agent:
        agent.open()
        text_of(agent.tool("count"))
        before = len(told.read_text().splitlines()) if told.exists() else 0
    assert len(told.read_text().splitlines()) > before
