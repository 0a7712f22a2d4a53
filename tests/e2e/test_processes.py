"""Child processes through the gateway: isolated, started ahead, respawned honestly, never left behind."""

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.requirements import requirement
from tests.support.credentials import API_KEYS, KEYS, bearer
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, running_gateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.listening import listening
from tests.support.mcp_clients import Legacy, Modern, error_of, restarted, result_of, tool_text, without_id
from tests.support.waiting import descendants, eventually, gone
from tests.tools.obtain import node_environment, npm_packages, npx


@requirement("proc.isolated")
def test_one_process_per_session_unless_shared(probe: RunningGateway, http: httpx.Client) -> None:
    pids = {tool_text(Legacy(probe.at("probe"), http).open().tool("pid")) for _ in range(3)}
    assert len(pids) == 3
    shared = [Legacy(probe.at("shared"), http).open() for _ in range(3)]
    assert len({tool_text(client.tool("pid")) for client in shared}) == 1
    # Told with each call, since its environment cannot say.
    contexts = [json.loads(tool_text(c.tool("meta")))["io.github.mcp-session-gateway/context"] for c in shared]
    assert len({context["session_id"] for context in contexts}) == 3
    assert "MCP_SESSION_ID" not in json.loads(tool_text(shared[0].tool("env")))


@requirement("proc.crash", "proc.reset-told")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_crash_is_told_and_the_next_call_gets_a_new_process(
    probe: RunningGateway, http: httpx.Client, era: str
) -> None:
    if era == "legacy":
        client: Legacy | Modern = Legacy(probe.at("probe"), http).open()
    else:
        token = Modern(probe.at("probe"), http).tool("pid").headers["mcp-gateway-session"]
        client = Modern(probe.at("probe"), http, headers={"MCP-Gateway-Session": token})
    client.tool("state", {"a": "1"})
    before = tool_text(client.tool("pid"))
    error = error_of(client.tool("crash"))
    assert error["code"] == -32014 and "unknown" in error["message"] and "signal 9" in error["message"]
    after = client.tool("state", {"b": "2"})
    assert json.loads(tool_text(after)) == {"b": "2"}
    assert restarted(after) == {"reason": "crash"}
    assert tool_text(again := client.tool("pid")) != before
    assert restarted(again) is None, "it is told once"


@requirement("proc.idle", "proc.reset-told")
def test_an_idle_child_is_stopped_while_its_session_lives_on(probe: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(probe.at("lazy"), http).open()
    child = psutil.Process(int(tool_text(client.tool("pid"))))
    assert gone([child])
    woken = client.tool("pid")
    assert int(tool_text(woken)) != child.pid and restarted(woken) == {"reason": "idle_stop"}


@requirement("proc.noise")
def test_a_giant_line_fails_its_own_call_only(probe: RunningGateway, http: httpx.Client) -> None:
    one, two = Legacy(probe.at("probe"), http).open(), Legacy(probe.at("shared"), http).open()
    for client in (one, two):
        said = error_of(client.tool("giant", {"size": 17 << 20}))["message"]
        assert "of more than 16777216 bytes (four times gateway.limits.body_bytes" in said and "raise the limit" in said
        assert len(tool_text(client.tool("giant", {"size": 150_000}))) == 150_000
    assert tool_text(one.tool("echo", {"a": 1})) == '{"a": 1}'


@requirement("proc.noise")
def test_a_call_that_is_never_answered_ends_at_its_time(http: httpx.Client) -> None:
    options = {"limits": {"call_timeout_s": 0.5}}
    with in_process_gateway({"p": server(PROBE)}, options=options) as gateway:
        client = Legacy(gateway.url, http).open()
        error = error_of(client.tool("hang"))
        assert error["code"] == -32015 and "0.5 s" in error["message"]
        assert json.loads(tool_text(client.tool("cancelled"))), "its server is told, and serves the next call"


@requirement("proc.gone")
def test_a_refused_handshake_leaves_nothing(probe: RunningGateway, http: httpx.Client) -> None:
    before = len(descendants(probe.pid))
    for _ in range(5):
        answer = Legacy(probe.at("refusing"), http).initialize()
        assert without_id(answer.json()["error"]) == {"code": -32099, "message": "not today"}
        assert "mcp-session-id" not in answer.headers
    assert eventually(lambda: len(descendants(probe.pid)) <= before)


@requirement("proc.gone")
def test_connections_dropped_mid_call_leave_no_process(http: httpx.Client) -> None:
    # A busy machine may stop a gateway for half a second: it could not keep such a session while its call works.
    options = {"session": {"unconfirmed_ttl_s": 3}}
    with running_gateway({"p": server(PROBE)}, options=options) as gateway:
        idle = len(descendants(gateway.pid))
        for _ in range(10):
            Modern(gateway.url, http).leave_while_it_hangs()
        assert eventually(lambda: len(descendants(gateway.pid)) <= idle)


_KILLED = pytest.param(signal.SIGKILL, marks=pytest.mark.alone)  # all have to be gone in two seconds
SHELL = ("sh", "-c", f"'{DEMO[0]}' -m gateway demo-server; true")


@requirement("proc.gone", "proc.shutdown")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", [_KILLED, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_gateway_however_it_ends(http: httpx.Client, end: signal.Signals) -> None:
    with running_gateway({"setsid": server(PROBE), "sh": server(SHELL)}, must_stop=False) as gateway:
        clients = {name: Legacy(gateway.at(name), http).open() for name in ("setsid", "sh")}
        clients["setsid"].tool("spawn")
        # `sh` stands in between, and setsid takes a moment to become what it starts.
        all_end_with_it(gateway, end, {"sleep 1000", "demo-server"})


@requirement("proc.gone", "proc.shutdown")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", [_KILLED, signal.SIGTERM])
def test_what_npx_starts_ends_with_the_gateway(http: httpx.Client, end: signal.Signals) -> None:
    folder = npm_packages({"@modelcontextprotocol/server-everything": "2026.8.31"})
    command = (*npx(), "--no-install", "mcp-server-everything")
    npx_server = server(command, cwd=str(folder), env={"PATH": node_environment()["PATH"]})
    with running_gateway({"npx": npx_server}, must_stop=False) as gateway:
        assert Legacy(gateway.at("npx"), http).open().tool("echo", {"message": "hi"}).status_code == 200
        all_end_with_it(gateway, end, {"mcp-server-everything"})


def all_end_with_it(gateway: RunningGateway, end: signal.Signals, started: set[str]) -> None:
    """Wait until these words are in the command lines of its processes, end the gateway, and wait for their end."""

    def is_started(words: str) -> bool:
        return any(words in " ".join(process.cmdline()) for process in descendants(gateway.pid))

    assert eventually(lambda: all(map(is_started, started)))
    alive = descendants(gateway.pid)
    gateway.process.send_signal(end)
    assert gone(alive, within_s=2.0 if end is signal.SIGKILL else 15.0)
    gateway.process.wait(15)


@requirement("proc.gone")
def test_a_session_ended_while_its_server_starts_leaves_nothing(http: httpx.Client) -> None:
    slow = ("sh", "-c", f"sleep 0.7; exec '{PROBE[0]}' '{PROBE[1]}'")
    idle = 1  # the fork server
    with running_gateway({"p": server(slow, idle_stop_s=0.2)}) as gateway:
        client = Legacy(gateway.url, http).open()
        assert eventually(lambda: len(descendants(gateway.pid)) <= idle), "idle, its server is stopped"
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(client.tool, "pid")
            assert eventually(lambda: len(descendants(gateway.pid)) > idle), "the call wakes the server"
            assert client.delete().status_code == 200
        assert answer.result().status_code == 200 and "ended" in error_of(answer.result())["message"]
        assert eventually(lambda: len(descendants(gateway.pid)) <= idle)


# -- processes that were started ahead


SLOW_S = 1.0
LATE = (sys.executable, "-c", f"import time,os,sys; time.sleep({SLOW_S}); os.execv(sys.argv[1], sys.argv[1:])", *PROBE)


def servers_of(gateway: RunningGateway) -> dict[int, dict[str, str]]:
    """The environments of the servers that run, by pid."""
    found = {}
    for process in descendants(gateway.pid):
        try:
            if PROBE[1] in process.cmdline():
                found[process.pid] = process.environ()
        except (OSError, RuntimeError):
            continue
    return found


def started(gateway: RunningGateway, before: set[int], **wanted: str) -> bool:
    found = {
        pid: env for pid, env in servers_of(gateway).items() if pid not in before and wanted.items() <= env.items()
    }
    return any("-c" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in found)


@requirement("proc.warm", "proc.isolated", "ctx.env")
def test_a_slow_server_opens_at_once(http: httpx.Client) -> None:
    """All processes of the gateway are looked at."""
    with running_gateway({"late": server(LATE, warm=1)}) as gateway:
        seen = []
        for number, era in enumerate(("legacy", "modern") * 2):
            http.cookies.clear()
            before = set(servers_of(gateway))
            client: Any = Legacy(gateway.url, http).open() if era == "legacy" else Modern(gateway.url, http)
            answer = client.tool("env", {"prefix": "MCP_SESSION_"})
            env = json.loads(tool_text(answer))
            token = client.session if era == "legacy" else answer.headers["mcp-gateway-session"]
            assert token.startswith(env["MCP_SESSION_ID"] + "."), "the id that the client holds"
            [pid] = [
                pid for pid, its in servers_of(gateway).items() if its.get("MCP_SESSION_ID") == env["MCP_SESSION_ID"]
            ]
            assert number == 0 or pid in before, "a process that was ready"
            seen.append(env["MCP_SESSION_ID"])
            # The next one is ready once its slow start is over.
            assert eventually(lambda before=before: started(gateway, before)), number  # type: ignore[misc]  # bound in this round
        assert len(set(seen)) == 4


@requirement("proc.warm", "ctx.isolated", "ctx.credentials", "pol.trust")
def test_only_what_was_started_for_such_a_session_is_used(http: httpx.Client, tmp_path: Path) -> None:
    secret = tmp_path / "api-key"
    secret.mkdir()
    for name in ("alice", "bob"):
        (secret / name).write_text(f"secret of {name}")
    options = {
        "api_keys": API_KEYS,
        "secrets": {"own": {"file": str(secret / "{subject}")}},
        "policy": {"rules": [{"principals": ["api-key:bob"], "trust": "sandboxed"}]},
    }
    entry = server(PROBE, warm=1, env={"OWN": "${secret:own}"})
    with running_gateway({"probe": entry}, options=options) as gateway:

        def told(name: str, **more: Any) -> Any:
            client = Legacy(gateway.url, http, headers=bearer(KEYS[name]))
            return json.loads(tool_text(client.open(**more).tool("env")))

        first = told("alice")
        assert eventually(lambda: len(servers_of(gateway)) == 3), "hers, one that lists, and one ahead"
        bob = told("bob")
        assert bob["OWN"] == "secret of bob" and bob["MCP_SESSION_TRUST"] == "sandboxed"
        red = told("alice", meta={"orbit": {"workspace": "red"}})
        assert red["MCP_SESSION_WORKSPACE"] == "red" and red["OWN"] == "secret of alice"
        (secret / "alice").write_text("another secret")
        waiting = {pid: env for pid, env in servers_of(gateway).items() if env.get("OWN") == "secret of alice"}
        again = told("alice")
        assert again["OWN"] == "another secret", "the one that waits has the old secret, and is not used"
        assert len({env["MCP_SESSION_ID"] for env in (first, bob, red, again)}) == 4
        assert len(waiting) >= 3
        assert eventually(lambda: sum(env.get("OWN") == "secret of alice" for env in servers_of(gateway).values()) == 3)
        spare = [pid for pid, env in servers_of(gateway).items() if env.get("OWN") == "another secret"]
        assert spare
        os.kill(spare[0], 9)
        assert told("alice")["OWN"] == "another secret", "one that died meanwhile is not missed"
    assert servers_of(gateway) == {}


@requirement("proc.isolated", "spec.complete")
def test_sessions_of_a_shared_process_take_nothing_from_each_other(http: httpx.Client) -> None:
    with in_process_gateway({"p": server(PROBE, shared=True)}) as gateway:
        one, two = (Legacy(gateway.url, http, version=version).open() for version in ("2025-06-18", "2025-11-25"))
        thing = {"uri": "probe://thing"}
        for client, level in ((one, "debug"), (two, "error")):
            assert result_of(client.call("resources/subscribe", thing)) == {}
            assert result_of(client.call("logging/setLevel", {"level": level})) == {}
        for client in (one, two):
            assert result_of(client.call("resources/unsubscribe", thing)) == {}
        assert json.loads(tool_text(one.tool("set"))) == [
            "resources/subscribe probe://thing",
            "logging/setLevel debug",
            "resources/subscribe probe://thing",
            "logging/setLevel debug",
            "resources/unsubscribe probe://thing",
        ]


@requirement("proc.reset-told", "spec.complete")
def test_a_shared_process_that_is_started_again_has_the_subscriptions_and_the_log_level_of_all(
    http: httpx.Client,
) -> None:
    uris = ["probe://thing", "probe://other"]
    with in_process_gateway({"p": server((*PROBE, "legacy-only"), shared=True)}) as gateway:
        legacy, other = (Legacy(gateway.url, http).open() for _ in range(2))
        for client, level in ((legacy, "error"), (other, "debug")):
            assert result_of(client.call("logging/setLevel", {"level": level})) == {}
        assert result_of(legacy.call("resources/subscribe", {"uri": uris[0]})) == {}
        with listening(gateway.url, wanted={"notifications": {"resourceSubscriptions": uris[1:]}}) as stream:
            os.kill(int(tool_text(legacy.tool("pid"))), signal.SIGKILL)
            assert eventually(lambda: legacy.tool("pid").status_code == 200) and stream.first
            assert json.loads(tool_text(legacy.tool("set"))) == [
                "logging/setLevel debug",
                "resources/subscribe probe://other",
                "resources/subscribe probe://thing",
            ]


@requirement("proc.isolated", "spec.complete")
def test_no_client_of_a_shared_process_takes_the_log_messages_of_another_whatever_its_era(http: httpx.Client) -> None:
    with in_process_gateway({"p": server((*PROBE, "legacy-only"), shared=True)}) as gateway:
        legacy = Legacy(gateway.url, http).open()

        def set_by(level: str) -> str:
            Modern(gateway.url, http).tool("pid", meta={"io.modelcontextprotocol/logLevel": level})
            return str(json.loads(tool_text(legacy.tool("set")))[-1])

        assert result_of(legacy.call("logging/setLevel", {"level": "info"})) == {}
        assert set_by("error") == "logging/setLevel info"
        assert set_by("debug") == "logging/setLevel debug"
        assert result_of(legacy.call("logging/setLevel", {"level": "warning"})) == {}
        assert set_by("critical") == "logging/setLevel debug"


@requirement("proc.isolated", "spec.complete")
def test_no_session_of_a_shared_process_ends_the_subscription_of_another(http: httpx.Client) -> None:
    thing, both = {"uri": "probe://thing"}, ["probe://thing", "probe://other"]
    with in_process_gateway({"p": server((*PROBE, "legacy-only"), shared=True)}) as gateway:
        legacy = Legacy(gateway.url, http).open()

        def unsubscribed() -> int:
            return int(tool_text(legacy.tool("set")).count("resources/unsubscribe"))

        with listening(gateway.url, wanted={"notifications": {"resourceSubscriptions": both[:1]}}) as stream:
            assert result_of(legacy.call("resources/subscribe", thing)) == {}
            assert result_of(legacy.call("resources/unsubscribe", thing)) == {}
            assert not unsubscribed() and stream.first, "the other one still listens"
            assert result_of(legacy.call("resources/subscribe", thing)) == {}
        with listening(gateway.url, wanted={"notifications": {"resourceSubscriptions": both}}):
            """It ends at once."""
        assert eventually(lambda: unsubscribed() == 1)
        assert tool_text(legacy.tool("set")).count("resources/unsubscribe probe://other") == 1
