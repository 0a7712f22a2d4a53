"""Child processes through the gateway: isolated, respawned honestly, never left behind."""

import json
import signal
import threading

import httpx
import psutil
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, running_gateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text, without_id
from tests.support.waiting import descendants, eventually, gone
from tests.tools.obtain import node_environment, npm_packages, npx

RESTARTED = "io.github.mcp-session-gateway/restarted"


def restarted(answer: httpx.Response) -> str | None:
    told = messages(answer)[-1]["result"].get("_meta", {}).get(RESTARTED)
    return None if told is None else str(told["reason"])


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
    error = messages(client.tool("crash"))[-1]["error"]
    assert error["code"] == -32014 and "unknown" in error["message"] and "signal 9" in error["message"]
    after = client.tool("state", {"b": "2"})
    assert json.loads(tool_text(after)) == {"b": "2"}
    assert restarted(after) == "crash"
    assert tool_text(again := client.tool("pid")) != before
    assert restarted(again) is None, "it is told once"


@requirement("proc.idle", "proc.reset-told")
def test_an_idle_child_is_stopped_while_its_session_lives_on(probe: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(probe.at("lazy"), http).open()
    child = psutil.Process(int(tool_text(client.tool("pid"))))
    assert gone([child], within_s=4)
    woken = client.tool("pid")
    assert int(tool_text(woken)) != child.pid and restarted(woken) == "idle_stop"


@requirement("proc.noise")
def test_noise_on_stdout_and_stderr_harms_nobody(probe: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(probe.at("probe"), http).open()
    assert tool_text(client.tool("noise", {"stderr": 3_000_000})) == "still here"
    assert tool_text(client.tool("echo", {"a": 1})) == '{"a": 1}'


@requirement("proc.noise")
def test_a_giant_line_fails_its_own_call_only(probe: RunningGateway, http: httpx.Client) -> None:
    one, two = Legacy(probe.at("probe"), http).open(), Legacy(probe.at("shared"), http).open()
    for client in (one, two):
        assert "line limit" in messages(client.tool("giant", {"size": 300_000}))[-1]["error"]["message"]
        assert len(tool_text(client.tool("giant", {"size": 150_000}))) == 150_000
    assert tool_text(one.tool("echo", {"a": 1})) == '{"a": 1}'


@requirement("proc.noise")
def test_a_call_that_is_never_answered_ends_at_its_time(http: httpx.Client) -> None:
    options = {"limits": {"call_timeout_s": 0.5}}
    with in_process_gateway({"p": server(PROBE)}, options=options) as gateway:
        client = Legacy(gateway.url, http).open()
        error = messages(client.tool("hang"))[-1]["error"]
        assert error["code"] == -32015 and "0.5 s" in error["message"]
        assert client.tool("pid").status_code == 200


@requirement("proc.gone")
def test_a_refused_handshake_leaves_nothing(probe: RunningGateway, http: httpx.Client) -> None:
    before = len(descendants(probe.pid))
    for _ in range(5):
        answer = Legacy(probe.at("refusing"), http).initialize()
        assert without_id(answer.json()["error"]) == {"code": -32099, "message": "not today"}
        assert "mcp-session-id" not in answer.headers
    assert eventually(lambda: len(descendants(probe.pid)) <= before, 4)


@requirement("proc.gone", "proc.shutdown")
def test_ending_a_session_takes_setsid_grandchildren_and_stubborn_children(
    probe: RunningGateway, http: httpx.Client
) -> None:
    client = Legacy(probe.at("stubborn"), http).open()
    child = psutil.Process(int(tool_text(client.tool("pid"))))
    grandchild = psutil.Process(int(tool_text(client.tool("spawn"))))
    client.delete()
    assert gone([child, grandchild])


@requirement("proc.gone")
def test_connections_dropped_mid_call_leave_no_process(http: httpx.Client) -> None:
    options = {"session": {"unconfirmed_ttl_s": 0.5}}
    with running_gateway({"p": server(PROBE)}, options=options) as gateway:
        idle = len(descendants(gateway.pid))
        for _ in range(10):
            with httpx.Client(timeout=0.3) as impatient, pytest.raises(httpx.TimeoutException):
                Modern(gateway.url, impatient).tool("hang")
        assert eventually(lambda: len(descendants(gateway.pid)) <= idle, 8)


SHELL = ("sh", "-c", f"'{DEMO[0]}' -m gateway demo-server; true")


@requirement("proc.gone", "proc.shutdown")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_gateway_however_it_ends(http: httpx.Client, end: signal.Signals) -> None:
    folder = npm_packages({"@modelcontextprotocol/server-everything": "2026.8.31"})
    by_npx = server(
        (*npx(), "--no-install", "mcp-server-everything"), cwd=str(folder), env={"PATH": node_environment()["PATH"]}
    )
    servers = {"sh": server(SHELL), "npx": by_npx, "setsid": server(PROBE)}
    with running_gateway(servers, must_stop=False) as gateway:
        clients = [Legacy(gateway.at(name), http).open() for name in servers]
        clients[2].tool("spawn")
        assert clients[1].tool("echo", {"message": "hi"}).status_code == 200

        def is_started(name: str) -> bool:
            return any(name in " ".join(process.cmdline()) for process in descendants(gateway.pid))

        # `sh` and npx stand in between, and setsid takes a moment to become what it starts.
        assert eventually(lambda: all(map(is_started, ("sleep 1000", "mcp-server-everything", "demo-server"))))
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
        answers: list[httpx.Response] = []
        with httpx.Client(timeout=20) as calling:
            caller = Legacy(client.url, calling)
            caller.session = client.session
            thread = threading.Thread(target=lambda: answers.append(caller.tool("pid")))
            thread.start()
            assert eventually(lambda: len(descendants(gateway.pid)) > idle), "the call wakes the server"
            assert client.delete().status_code == 200
            thread.join(10)
        assert answers[0].status_code == 200 and "ended" in messages(answers[0])[-1]["error"]["message"]
        assert eventually(lambda: len(descendants(gateway.pid)) <= idle)


@requirement("proc.isolated", "spec.complete")
def test_sessions_of_a_shared_process_take_nothing_from_each_other(http: httpx.Client) -> None:
    """A process of their own, from its first request on."""
    with in_process_gateway({"p": server(PROBE, shared=True)}) as gateway:
        one, two = (Legacy(gateway.url, http, version=v) for v in ("2025-06-18", "2025-11-25"))
        assert one.initialize().json()["result"]["protocolVersion"] == "2025-06-18"
        assert two.initialize().json()["result"]["protocolVersion"] == "2025-11-25"
        one.tool("pid"), two.tool("pid")
        thing = {"uri": "probe://thing"}
        for client in (one, two):
            assert messages(client.call("resources/subscribe", thing))[-1]["result"] == {}
        assert messages(one.call("resources/unsubscribe", thing))[-1]["result"] == {}
        assert messages(one.call("logging/setLevel", {"level": "debug"}))[-1]["result"] == {}
        assert messages(two.call("logging/setLevel", {"level": "error"}))[-1]["result"] == {}
        assert messages(two.call("resources/unsubscribe", thing))[-1]["result"] == {}
        assert json.loads(tool_text(one.tool("set"))) == [
            "resources/subscribe probe://thing",
            "resources/subscribe probe://thing",
            "logging/setLevel debug",
            "logging/setLevel debug",
            "resources/unsubscribe probe://thing",
        ]
