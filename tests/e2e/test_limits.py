"""Rates, resource limits, sandboxes, and the manifest."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path

import httpx
import psutil
import pytest

from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import API_KEYS, KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, ROOT, SIGNED, running_gateway, server
from tests.support.in_process_gateway import RING, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.waiting import descendants, eventually
from tests.tools.programs import program


@requirement("pol.limits")
def test_calls_that_come_together_have_the_bound_of_calls_in_flight(http: httpx.Client) -> None:
    # A rate of which every call asks the store: all of them wait at the same place.
    options = {"limits": {"exchanges": 4}, "policy": {"session_rate": {"per_s": 10, "burst": 1_000}}}
    with in_process_gateway({"probe": server(PROBE)}, options=options) as gateway:
        client = Legacy(gateway.url, http, version="2025-03-26").open()
        params = {"name": "sleep", "arguments": {"seconds": 1}}
        batch = [{"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": params} for n in range(20)]
        answers = client.post(batch).json()
        assert sum("result" in answer for answer in answers) == 4 and len(answers) == 20


@requirement("pol.limits", "rep.any")
def test_a_principals_rate_is_one_on_all_replicas(redis_server: RunningRedis, http: httpx.Client) -> None:
    keys = {"quick": "key-of-quick", "calm": "key-of-calm"}  # of principals whose rate no other test uses
    options = {
        "store": redis_server.url,
        "api_keys": {name: sha256(key) for name, key in keys.items()},
        "policy": {"principal_rate": {"per_s": 0.5, "burst": 6}},
    }
    servers = {"demo": server(DEMO)}
    with (
        in_process_gateway(servers, options=options, ring=RING) as first,
        in_process_gateway(servers, options=options, ring=RING) as second,
    ):
        statuses, began = [], time.monotonic()
        for n in range(12):
            client = Modern((first, second)[n % 2].url, http, headers=bearer(keys["quick"]))
            statuses.append(client.tool("count").status_code)
        most = 6 + ceil(0.5 * (time.monotonic() - began))
        assert 6 <= statuses.count(200) <= most and {*statuses} <= {200, 429}, statuses
        assert Modern(first.url, http, headers=bearer(keys["calm"])).tool("count").status_code == 200


@requirement("pol.limits", "rep.any")
def test_a_principal_has_so_many_sessions_on_all_replicas(redis_server: RunningRedis, http: httpx.Client) -> None:
    redis_server.client().flushall()  # what others have opened counts as well
    options = {
        "store": redis_server.url,
        "api_keys": API_KEYS,
        "policy": {"principal_sessions": 4},
    }
    servers = {"demo": server(DEMO)}
    with in_process_gateway(servers, options=options, ring=RING) as second:
        with in_process_gateway(servers, options=options, ring=RING) as first:
            urls = [(first, second)[n % 2].url for n in range(12)]
            with ThreadPoolExecutor(12) as pool:
                clients = [Legacy(url, http, headers=bearer(KEYS["alice"])) for url in urls]
                answers = list(pool.map(lambda client: client.initialize(), clients))
            assert sorted(a.status_code for a in answers) == [200] * 4 + [429] * 8
            refused = next(a for a in answers if a.status_code == 429)
            assert "4 sessions" in messages(refused)[0]["error"]["message"] and refused.headers["retry-after"]
            assert Legacy(first.url, http, headers=bearer(KEYS["bob"])).open(), "nobody else pays"
            live = [client for client, answer in zip(clients, answers, strict=True) if answer.status_code == 200]
            assert tool_text(live[0].tool("count")) == "1" and live[0].delete().status_code == 200
            assert Legacy(second.url, http, headers=bearer(KEYS["alice"])).open(), "one has ended, one may begin"
            assert Legacy(first.url, http, headers=bearer(KEYS["alice"])).initialize().status_code == 429
        for client in live[1:]:
            client.url = second.url
            assert tool_text(client.tool("count")) == "1", "those that live go on, also elsewhere"


@requirement("pol.limits", "proc.gone")
def test_a_principal_has_so_many_processes_and_what_is_gone_does_not_count(
    redis_server: RunningRedis, http: httpx.Client
) -> None:
    redis_server.client().flushall()
    options = {
        "store": redis_server.url,
        "api_keys": API_KEYS,
        "policy": {"principal_processes": 2},
    }
    servers = {"probe": server(PROBE)}
    alice = bearer(KEYS["alice"])
    with running_gateway(servers, options=options, env=SIGNED, must_stop=False) as survivor:
        with running_gateway(servers, options=options, env=SIGNED, must_stop=False) as killed:
            one, two = (Legacy(killed.url, http, headers=alice).open() for _ in range(2))
            pid = int(tool_text(one.tool("pid")))
            assert pid != int(tool_text(two.tool("pid")))
            third = Legacy(survivor.url, http, headers=alice).initialize()
            assert third.status_code == 429 and "2 server processes" in messages(third)[0]["error"]["message"]
            assert Legacy(survivor.url, http, headers=bearer(KEYS["bob"])).open(), "nobody else pays"
            os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: Legacy(survivor.url, http, headers=alice).initialize().status_code == 200)
            assert one.tool("pid").status_code == 429, "its place is taken"
            killed.kill()
        assert eventually(
            lambda: Legacy(survivor.url, http, headers=alice).initialize().status_code == 200, within_s=10
        )


@requirement("pol.sandbox")
@pytest.mark.skipif(not shutil.which("prlimit"), reason="needs prlimit (util-linux), as the setting does")
def test_a_child_gets_no_more_than_it_may(http: httpx.Client) -> None:
    limits = {"files": 40, "memory_mb": 4_000}
    with in_process_gateway({"probe": server(PROBE, sandbox={"profile": "off", **limits})}) as gateway:
        told = json.loads(tool_text(Modern(gateway.url, http).tool("limits")))
        assert told == {"files": 40, "memory_mb": 4_000}


def bubblewrap() -> list[str]:
    """A sandbox that has the system's and the tests' programs to read, and the session's socket."""
    found = str(program("bwrap", "bubblewrap"))
    # The environment of Python may be a link, which leads to the same place inside.
    environment = os.path.realpath(sys.prefix)
    folders = {"/usr", "/lib", "/lib64", "/bin", "/etc", environment, sys.base_prefix, str(ROOT)}
    read = [part for folder in sorted(folders) if Path(folder).exists() for part in ("--ro-bind", folder, folder)]
    own = ["--proc", "/proc", "--dev", "/dev", "--bind", "{socket}", "{socket}"]
    return [found, "--tmpfs", "/tmp", *read, *own, "--unshare-all", "--die-with-parent", "--chdir", str(ROOT), "--"]


def can_unshare() -> bool:
    done = subprocess.run(
        [str(program("bwrap", "bubblewrap")), "--ro-bind", "/", "/", "--unshare-all", "--", "/bin/true"],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


@requirement("pol.sandbox", "ctx.env", "ctx.state")
def test_a_sandboxed_sessions_child_sees_its_context_and_nothing_else(http: httpx.Client, tmp_path: Path) -> None:
    if not can_unshare():
        pytest.skip("this kernel lets nobody make namespaces, so no sandbox of this kind can run here")
    options = {
        "api_keys": API_KEYS,
        "sandbox": {"direct": "off", "sandboxed": {"launcher": bubblewrap()}},
        "policy": {"rules": [{"principals": ["api-key:bob"], "trust": "sandboxed", "workspace": "box"}]},
    }
    with running_gateway({"demo": server(DEMO), "probe": server(PROBE)}, options=options) as gateway:
        boxed, free = (Modern(gateway.url, http, headers=bearer(KEYS[name])) for name in ("bob", "alice"))
        env = json.loads(tool_text(boxed.tool("probe__env", {"prefix": "MCP_SESSION_"})))
        assert env["MCP_SESSION_WORKSPACE"] == "box" and env["MCP_SESSION_TRUST"] == "sandboxed"
        assert tool_text(boxed.tool("demo__remember", {"key": "k", "value": "v"}))
        assert tool_text(boxed.tool("demo__recall", {"key": "k"})) == "v", "the state's socket is inside"
        assert int(tool_text(boxed.tool("probe__pid"))) < 20 < int(tool_text(free.tool("probe__pid")))
        note = tmp_path / "note"
        call = {"seconds": 0, "note": str(note)}
        assert tool_text(free.tool("probe__sleep", call)) == "slept" and note.exists(), "this folder is there for it"
        crossed = json.loads(tool_text(boxed.tool("probe__files", {"folder": str(tmp_path)})))
        assert crossed == [], "and not in the box"


def container(folder: Path) -> list[str]:
    """A launcher that runs a container of podman's, from folders of this machine; none of its network."""
    podman = shutil.which("podman")
    if podman is None:
        pytest.skip("needs podman")
    rootfs = folder / "rootfs"
    places = {"/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix, str(ROOT)}
    mounts = [part for place in sorted(places) if Path(place).exists() for part in ("--volume", f"{place}:{place}:ro")]
    for place in [*places, "/etc", "/tmp", "/proc", "/sys", "/dev"]:
        (rootfs / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
    own = ["--volume", "{socket}:{socket}", "--env={variable}", "--workdir", str(ROOT)]
    bounded = ["--cgroups=disabled", "--ulimit", "nofile=512:512", "--ulimit", "nproc=512:512"]
    rest = ["--rm", "-i", "--network", "none", "--tmpfs", "/tmp", *bounded, *mounts, *own, "--rootfs", str(rootfs)]
    starts = [podman, "run", *rest]
    # Where version 1 and 2 of control groups are mixed, podman starts nothing unless it sees version 1 alone.
    alone = ["unshare", "--mount", "sh", "-c", 'umount /sys/fs/cgroup/unified; exec "$@"', "sh", *starts]
    trials = []
    for launcher in (starts, alone):
        trial = [part.replace("{socket}", "/etc/hostname") for part in launcher if "{variable}" not in part]
        done = subprocess.run([*trial, "/usr/bin/true"], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            return launcher
        trials.append(done.stderr.strip())
    pytest.skip(f"no container can run here: {trials}")


@requirement("pol.sandbox", "ctx.env", "ctx.state", "ctx.credentials", "proc.gone")
def test_a_sandboxed_sessions_child_runs_in_a_container(http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    options = {
        "sandbox": container(tmp_path),
        "policy": {"rules": [{"trust": "sandboxed", "workspace": "box"}]},
        "secrets": {"token": {"file": str(tmp_path / "token")}},
    }
    env = {"TOKEN": "${secret:token}", "PLAIN": "yes"}
    servers = {"demo": server(DEMO), "probe": server(PROBE, env=env)}
    with running_gateway(servers, options=options) as gateway:
        boxed = Legacy(gateway.url, http).open()
        told = json.loads(tool_text(boxed.tool("probe__env")))
        assert told["MCP_SESSION_WORKSPACE"] == "box" and told["MCP_SESSION_TRUST"] == "sandboxed"
        assert (told["TOKEN"], told["PLAIN"]) == ("hunter2", "yes")
        assert tool_text(boxed.tool("demo__remember", {"key": "k", "value": "v"}))
        assert tool_text(boxed.tool("demo__recall", {"key": "k"})) == "v", "the state's socket is inside"
        assert int(tool_text(boxed.tool("probe__pid"))) < 20
        assert json.loads(tool_text(boxed.tool("probe__files", {"folder": str(tmp_path)}))) == []
        assert json.loads(tool_text(boxed.tool("probe__files", {"folder": "/sys/class/net"}))) in (["lo"], [])
        commands = " ".join(part for child in descendants(gateway.pid) for part in child.cmdline())
        assert "TOKEN" in commands and "hunter2" not in commands
        within = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("TOKEN") == "hunter2"]
        assert within, "the server itself is one of them"
        assert boxed.delete().status_code == 200
        assert eventually(lambda: not any(process.is_running() for process in within))


@requirement("pol.manifest", "pol.operation")
def test_the_manifest_prints_without_a_gateway(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    tools = {"recall": {"operation": "eval"}}
    entries = {"demo": server(DEMO, tools=tools), "probe": server(PROBE), "gone": server(("/does/not/exist",))}
    config.write_text(json.dumps({"mcpServers": entries}))
    done = run_command("manifest", "--config", str(config))
    assert done.returncode == 1, done.stderr
    assert "error the tools of server gone are missing: " in done.stderr
    printed = json.loads(done.stdout)
    by_name = {tool["name"]: tool for tool in printed["tools"]}
    assert by_name["demo__whoami"]["operation"] == "read" and by_name["demo__remember"]["operation"] == "write"
    assert by_name["demo__recall"]["operation"] == "eval" and by_name["demo__slow"]["inputSchema"]["properties"]
    assert by_name["probe__pid"]["server"] == "probe" and "/does/not/exist" in printed["failed"]["gone"]
