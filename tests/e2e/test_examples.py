"""The ready-made configurations under `examples/`, run as their README says."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.requirements import requirement
from tests.support.commands import ROOT, run_command, start_command
from tests.support.gateway_process import RunningGateway
from tests.support.mcp_clients import Legacy, failed_text, result_of, tool_text


def environment() -> dict[str, str]:
    """Variables with which `python` is that of the environment."""
    return {**os.environ, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}


@contextlib.contextmanager
def running(name: str) -> Iterator[RunningGateway]:
    """The gateway with that example's configuration, from the project's root, with the environment's `python`."""
    env = {**environment(), "MCP_GATEWAY_STORE": os.environ.get("EXAMPLE_STORE", "memory://")}
    command = ["run", "--config", f"examples/{name}/mcp.json", "--port", "0"]
    gateway = RunningGateway(start_command(command, env=env))
    try:
        gateway.wait_ready()
        yield gateway
    finally:
        gateway.stop()


@requirement("ctx.announce", "ctx.bind")
def test_orbit_announces_its_workspace(http: httpx.Client) -> None:
    with running("orbit") as gateway:
        client = Legacy(gateway.url, http).open(meta={"orbit": {"workspace": "w-red"}})
        tools = result_of(client.call("tools/list"))["tools"]
        assert "required" not in tools[0]["inputSchema"], "it need not be given any more"
        assert tool_text(client.tool("list_documents")) == "plan.md"
        assert tool_text(client.tool("list_documents", {"workspace_id": "w-blue"})) == "notes.md, todo.md"
        blue = Legacy(gateway.url, http).open(meta={"orbit.workspace": "w-blue"})
        assert tool_text(blue.tool("list_documents")) == "notes.md, todo.md"


@requirement("ctx.env", "ctx.env-names", "pol.trust", "ctx.unforgeable")
def test_parachutes_variables_say_whose_session_it_is(http: httpx.Client) -> None:
    with running("parachute") as gateway:
        told = {}
        for key, trust, own, other in (
            ("operator-key", "direct", "red", "blue"),
            ("guest-key", "sandboxed", "blue", "red"),
        ):
            client = Legacy(gateway.url, http, headers={"Authorization": f"Bearer {key}"})
            client.open(meta={"orbit": {"workspace": f"w-{other}"}})
            session, workspace, level = tool_text(client.tool("whose")).split()
            assert (workspace, level) == (f"w-{own}", trust), "not what the client announces"
            assert tool_text(client.tool("read_note", {"name": "plan"})) == f"paint it {own}"
            stolen = client.tool("read_note", {"name": "plan", "workspace": f"w-{other}"})
            assert "no access" in failed_text(stolen)
            told[key] = (session, {tool["name"] for tool in result_of(client.call("tools/list"))["tools"]})
        assert told["operator-key"][0] != told["guest-key"][0]
        assert told["operator-key"][1] - told["guest-key"][1] == {"write_file"}
        assert Legacy(gateway.url, http).initialize().status_code == 401


@requirement("ctx.env-names")
def test_parachutes_server_starts_without_a_session() -> None:
    checked = run_command("check", "--config", "examples/parachute/mcp.json", env=environment())
    assert checked.returncode == 0, checked.stderr


@requirement("ctx.env-names", "ctx.state", "ctx.meta-out")
def test_stacs_variables_and_state_are_the_sessions(http: httpx.Client) -> None:
    with running("stac") as gateway:
        one, two = (Legacy(gateway.url, http).open(name=f"agent-{n}") for n in range(2))
        assert tool_text(one.tool("session")) != tool_text(two.tool("session"))
        assert tool_text(one.tool("search", {"text": "dunes"})) == "dunes: search 1 of agent-0 for anonymous"
        assert tool_text(one.tool("search", {"text": "dikes"})) == "dikes: search 2 of agent-0 for anonymous"
        answer = two.tool("search", {"text": "dunes"})
        assert tool_text(answer) == "dunes: search 1 of agent-1 for anonymous"
        trace = result_of(answer)["_meta"]["io.github.mcp-session-gateway/trace"]
        assert tool_text(two.tool("session")).startswith(trace["session"]) and len(trace["correlation_id"]) == 32


@requirement("box.keys")
def test_stacs_store_beside_its_project_is_closed_to_it(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    shutil.copytree(ROOT / "examples/stac", tmp_path / "examples/stac")
    env = environment()
    env.pop("MCP_GATEWAY_STORE", None)
    config = ("--config", "examples/stac/mcp.json")
    checked = run_command("check", *config, env=env, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert (tmp_path / "sessions.db.keys").exists()
    explained = run_command("sandbox", "explain", "catalog", *config, env=env, cwd=tmp_path)
    assert f"{tmp_path}/examples/stac/server.py" in explained.stdout and "sessions.db" not in explained.stdout


@requirement("id.carriers", "id.reattach")
def test_the_basket_is_found_again_by_the_cookie_alone() -> None:
    with running("cookies") as gateway, httpx.Client() as browser:
        for wanted in ("apple", "apple, pear"):
            client = Legacy(gateway.url, browser).open()  # it begins anew, and has kept its cookies
            assert tool_text(client.tool("add", {"item": wanted.rpartition(" ")[2]})) == wanted
