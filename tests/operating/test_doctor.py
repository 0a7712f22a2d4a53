"""The doctor finds what is wrong with a configuration and its surroundings, and measures each server by itself."""

import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.doctor.servers import check_servers
from session_store import backend_for
from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.compose_topology import nginx, running_topology
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, ROOT, SIGNED, RunningGateway, running_gateway, server
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.table_server import EXITS, GOOD, HANGS, TOKEN, slow, table_server
from tests.support.tcp_relay import running_relay
from tests.tools.programs import program


class Doctor:
    """The command, with a configuration of the test's."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "mcp.json"
        self.gateway: dict[str, Any] = {}
        self.servers: dict[str, Any] = {"demo": server(DEMO)}
        self.env = dict(SIGNED)
        self.before: tuple[str, ...] = ()
        self.arguments: tuple[str, ...] = ()
        self.limit: Callable[[], None] | None = None

    def run(self, form: str = "--json") -> subprocess.CompletedProcess[str]:
        self.config.write_text(json.dumps({"mcpServers": self.servers, "gateway": self.gateway}), encoding="utf-8")
        typed = ["doctor", "--config", str(self.config), *self.arguments, *([form] if form else [])]
        env = {**os.environ, **self.env}
        if not self.before and not self.limit:
            return run_command(*typed, env=env)
        return subprocess.run(
            [*self.before, sys.executable, "-m", "gateway", *typed],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            cwd=ROOT,
            env=env,
            preexec_fn=self.limit,
        )

    def finds(self) -> list[dict[str, str]]:
        ran = self.run()
        found: list[dict[str, str]] = json.loads(ran.stdout)
        assert ran.returncode == int(any(finding["state"] == "error" for finding in found)), ran.stderr
        return [finding for finding in found if finding["state"] != "ok"]

    def tells(self, planted: "Planted") -> None:
        """It finds this and nothing else, and says what to do about each."""
        checks = {check for check, _ in planted}
        # How long a server takes to start, and the store to answer, depends on how busy this machine is.
        by_load = ("to start, which delays", "an answer takes")
        found = [
            finding
            for finding in self.finds()
            if finding["check"] in checks or not any(words in finding["what"] for words in by_load)
        ]
        assert {finding["check"] for finding in found} == checks, found
        for check, words in planted:
            told = [f"{finding['what']} {finding['do']}" for finding in found if finding["check"] == check]
            assert len(told) == 1 and words in told[0] and "hush" not in told[0], found
        assert all(finding["do"] for finding in found), found


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


Planted = list[tuple[str, str]]
"""The check that fails, and words of what it says."""


@requirement("ops.config", "ops.health")
def test_a_store_that_cannot_be_used_is_told(doctor: Doctor, redis_server: RunningRedis) -> None:
    doctor.gateway["store"] = f"redis://:hush@127.0.0.1:{free_port()}/0"
    doctor.tells([("store", "cannot be reached")])
    doctor.gateway["store"], doctor.env = redis_server.url, {"MCP_GATEWAY_KEYS": ""}
    doctor.tells([("keys", "MCP_GATEWAY_KEYS")])


@requirement("ops.config")
def test_a_wait_for_a_server_is_not_told_where_no_terminal_is(doctor: Doctor) -> None:
    doctor.servers, doctor.gateway["limits"] = {"hang": table_server(HANGS)}, {"start_timeout_s": 3}
    ran = doctor.run()
    assert "waiting" not in ran.stderr
    [hang] = [finding for finding in json.loads(ran.stdout) if finding["check"] == "server hang"]
    assert hang["state"] == "error"


def of_redis(doctor: Doctor, _: RunningGateway, stack: contextlib.ExitStack) -> Planted:
    """A server that forgets, is old and far away, and a replica that nobody reaches."""
    redis = stack.enter_context(running_redis())

    async def lives() -> None:
        backend = backend_for(redis.url)
        await backend.open()
        await backend.directory.renew_lease("abc123", f"127.0.0.1:{free_port()}", 60.0)
        await backend.close()

    def changed(data: bytes) -> bytes:
        threading.Event().wait(0.02)
        return re.sub(rb"redis_version:\d", b"redis_version:5", data)

    asyncio.run(lives())
    for name, value in (("maxmemory", "1gb"), ("maxmemory-policy", "allkeys-lru"), ("appendonly", "no")):
        redis.client().config_set(name, value)
    relay = stack.enter_context(running_relay(redis.port))
    relay.changes = changed
    doctor.gateway["store"] = f"redis://127.0.0.1:{relay.port}/0"
    return [
        ("store version", "6.2"),
        ("store persistence", "appendonly yes"),
        ("store eviction", "noeviction"),
        ("store latency", "network"),
        ("replicas", "gateway.advertise"),
    ]


def of_this_machine(doctor: Doctor, _: RunningGateway, stack: contextlib.ExitStack) -> Planted:
    """A clock that is wrong, few files, and servers that are not there."""
    doctor.gateway["store"] = stack.enter_context(running_redis()).url
    doctor.before = (str(program("faketime", "faketime")), "-f", "-90s")
    doctor.limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    doctor.servers["notes"] = server(("/does/not/exist", "--stdio"))
    doctor.servers["remote"] = {"url": f"http://127.0.0.1:{free_port()}/mcp"}
    return [
        ("clock", "time server"),
        ("files", "LimitNOFILE"),
        ("server notes", "correct `command`"),
        ("server remote", "can be reached from here"),
        ("policy", ""),
    ]


def of_a_proxy(doctor: Doctor, demo: RunningGateway, stack: contextlib.ExitStack) -> Planted:
    """A proxy that takes small bodies only, and keeps events back: compression waits for enough to compress."""
    how = "proxy_ignore_headers X-Accel-Buffering; gzip on; gzip_types *; gzip_proxied any;"
    doctor.arguments = ("--url", stack.enter_context(behind_nginx(how, demo.base)))
    return [("event streams", "compression"), ("large calls", "client_max_body_size")]


def of_two_gateways(doctor: Doctor, demo: RunningGateway, stack: contextlib.ExitStack) -> Planted:
    """They do not share their sessions."""
    other = stack.enter_context(running_gateway(command=DEMO))
    how = "proxy_http_version 1.1; proxy_buffering off; client_max_body_size 8m;"
    doctor.arguments = ("--url", stack.enter_context(behind_nginx(how, demo.base, other.base)))
    return [("sessions", "same redis store")]


@requirement("ops.config", "ops.health")
@pytest.mark.parametrize("plant", [of_redis, of_this_machine, of_a_proxy, of_two_gateways])
def test_planted_faults_are_found_with_what_to_do(
    plant: Callable[[Doctor, RunningGateway, contextlib.ExitStack], Planted], doctor: Doctor, demo: RunningGateway
) -> None:
    with contextlib.ExitStack() as stack:
        doctor.tells(plant(doctor, demo, stack))


@requirement("ops.config")
def test_where_nothing_is_wrong_nothing_is_found(doctor: Doctor) -> None:
    with running_topology({"demo": server(DEMO)}) as topology:
        doctor.gateway = {"store": topology.redis.url}
        doctor.arguments = ("--url", topology.url)
        ran = doctor.run("")
    # Beside other work, a server takes long to start, and the store to answer: the doctor says what to do about it.
    slow = re.compile(r"warning +(?:server demo: answers, .* takes [\d.]+ s to start.*|store latency: .* ms)\n.*\n")
    lines = slow.sub("ok slow\n", ran.stdout).splitlines()
    assert ran.returncode == 0 and not any("error" in line or "→" in line for line in lines), ran.stdout
    states = [line.partition(" ")[0] for line in lines]
    assert states.count("ok") >= 11 and "found through each of 8 connections" in ran.stdout


@contextlib.contextmanager
def behind_nginx(how: str, *bases: str) -> Iterator[str]:
    """nginx before these gateways, round robin, with that in its location; the URL of the endpoint."""
    port = free_port()
    servers = " ".join(f"server {base.removeprefix('http://')};" for base in bases)
    config = (
        f"upstream gateways {{ {servers} }} server {{ listen 127.0.0.1:{port};"
        f" location / {{ proxy_pass http://gateways; proxy_set_header Host $http_host; {how} }} }}"
    )
    with nginx(config, port) as url:
        yield f"{url}/mcp"


# -- the doctor measures the start of each server by itself, and says what a server that fails wrote last


@requirement("ops.config", "proc.last-words")
async def test_each_start_is_measured_by_itself() -> None:
    good, ignoring = table_server(GOOD), 'grep --line-buffered -v server/discover | "$@"'
    servers = {
        "slow": table_server(slow(2)),
        "good": table_server(GOOD),
        "exit": table_server(EXITS),
        "hang": table_server(HANGS),
        "mute": {"command": "sh", "args": ["-c", ignoring, "sh", good["command"], *good["args"]]},
        "last": table_server(GOOD),
    }
    limits = {"start_timeout_s": 8}
    settings = Settings.model_validate({"mcpServers": servers, "gateway": {"limits": limits}})
    found = {finding.check: finding async for finding in check_servers(settings)}
    waited = re.search(r"takes (\d+\.\d) s to start", found["server slow"].what)
    assert waited is not None and 2.0 <= float(waited[1]) < 8.0, found["server slow"]
    for name in ("good", "last"):
        quick = re.search(r"(?:starts in|takes) (\d+\.\d) s", found[f"server {name}"].what)
        assert quick is not None and float(quick[1]) < float(waited[1]), "the others do not count"
    assert found["server exit"].state == "error"
    assert "exited with code 3" in found["server exit"].what and "[redacted] was refused" in found["server exit"].what
    assert found["server mute"].state != "error", "it ignores the first question, and answers initialize"
    assert found["server hang"].state == "error" and "did not start within 8 s" in found["server hang"].what
    assert "waiting for a license" in found["server hang"].what, "what it has written so far"
    assert not any(TOKEN in finding.what for finding in found.values())
