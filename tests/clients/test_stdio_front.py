"""The gateway on stdin and stdout: every line that goes out is protocol."""

import fcntl
import json
import os
import subprocess
import sys
import termios
from array import array
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.gateway_process import DEMO, PROBE, ROOT, SCRIPTED, SIGNED, running_gateway, server
from tests.support.mcp_clients import RESTARTED, SESSION_KEY, Legacy, Modern, modern_body, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.stdio_client import Typed
from tests.support.waiting import eventually


def command(*more: str, child: Any = DEMO) -> list[str]:
    return [sys.executable, "-m", "gateway", "stdio", *more, "--", *child]


@requirement("ctx.stdio-front", "proc.gone")
@pytest.mark.parametrize("by_signal", [False, True])
def test_it_ends_though_its_client_does_not_read(by_signal: bool) -> None:
    client = Typed()
    client.initialize()
    pid = int(client.tool("pid"))
    assert client.process.stdout is not None
    unread, waiting = client.process.stdout.fileno(), array("i", [0])
    for n in range(1_500):
        client.write(json.dumps({"jsonrpc": "2.0", "id": f"{n:0100}", "method": "ping"}).encode())
    assert eventually(lambda: not fcntl.ioctl(unread, termios.FIONREAD, waiting) and waiting[0] > 60_000)
    if by_signal:
        client.process.terminate()
    assert client.end() == 0
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())


@requirement("ctx.stdio-front", "proc.noise", "proc.gone", "wire.connection-survives")
def test_nothing_but_protocol_comes_out_and_nothing_is_left() -> None:
    client = Typed()
    client.write(json.dumps(modern_body("tools/call", {"name": "@"})).encode().replace(b'"@"', b"1e400"))
    assert client.read()["error"]["code"] == -32602
    client.write(b"this is no JSON")
    assert client.read()["error"]["code"] == -32700
    client.write(b"[]")
    assert client.read()["error"]["code"] == -32600
    assert client.initialize()["result"]["serverInfo"]["name"] == "probe"
    assert client.tool("noise", {"stderr": 100_000}) == "still here"
    pid = int(client.tool("pid"))
    assert client.ask("nonsense/method")
    assert client.end() == 0
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())


@requirement("spec.cancelled")
def test_a_cancelled_call_is_not_answered() -> None:
    client = Typed(child=(*SCRIPTED, "legacy"))
    client.initialize()
    began = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"began"}}'
    params = {"name": "say", "arguments": {"lines": [began]}}
    client.write(json.dumps({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params}).encode())
    assert client.read()["params"]["data"] == "began"
    client.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1e400}}')
    client.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}')
    assert "notifications/cancelled" in client.tool("got"), "the server knows"
    assert client.process.stdin is not None and client.process.stdout is not None
    client.process.stdin.close()
    assert client.process.stdout.read() == b""
    assert client.end() == 0


@requirement("ctx.stdio-front", "ctx.isolated")
def test_each_initialize_is_a_new_session_and_none_is_needed() -> None:
    client = Typed()
    client.tool("state", {"a": "1"})  # a client that begins with a call
    first = client.tool("pid")
    client.initialize()
    second = client.tool("pid")
    assert first != second and client.tool("state") == "{}"
    client.initialize()
    assert client.tool("pid") not in (first, second)
    assert client.end() == 0


@requirement("ctx.stdio-front", "id.reattach")
def test_a_session_that_is_named_is_gone_on_with(redis_server: RunningRedis, http: httpx.Client) -> None:
    options = {"store": redis_server.url}
    with running_gateway({"main": server(PROBE)}, options=options, env=SIGNED, must_stop=False) as gateway:
        web = Legacy(gateway.url, http).open(meta={"orbit": {"workspace": "w-1"}})
        pid = tool_text(web.tool("pid"))
        client = Typed("--store", redis_server.url, env={**SIGNED, "MCP_SESSION_TOKEN": web.session})
        client.initialize()
        assert client.tool("pid") == pid, "its process is at the other gateway"
        variables = json.loads(client.tool("env", {"prefix": "MCP_SESSION_W"}))
        assert variables == {"MCP_SESSION_WORKSPACE": "w-1", "MCP_SESSION_WORKSPACE_PROVENANCE": "announced"}
        assert client.end() == 0
        assert tool_text(web.tool("pid")) == pid, "and it goes on"


@requirement("ctx.stdio-front", "ctx.stdio-token")
def test_a_legacy_client_learns_its_token_and_starts_again_with_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    first = Typed("--store", store, env=SIGNED)
    token = first.initialize()["result"]["_meta"]["io.github.mcp-session-gateway/session"]
    session = json.loads(first.tool("env", {"prefix": "MCP_SESSION_ID"}))
    assert token.startswith(session["MCP_SESSION_ID"]) and first.end() == 0
    for variable in ("MCP_SESSION_TOKEN", "STAC_MCP_SESSION_ID"):
        again = Typed("--store", store, env={**SIGNED, variable: token})
        assert again.initialize()["result"]["_meta"]["io.github.mcp-session-gateway/session"] == token
        assert json.loads(again.tool("env", {"prefix": "MCP_SESSION_ID"})) == session
        assert again.end() == 0
    mistaken = Typed("--store", store, env={**SIGNED, "STAC_MCP_SESSION_ID": session["MCP_SESSION_ID"]})
    assert mistaken.end() == 2 and "a session id" in mistaken.log(), "not a key: it names a session"
    own = subprocess.run(
        [sys.executable, "-m", "gateway", "sessions", "end", session["MCP_SESSION_ID"], "--store", store],
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    assert own.stdout.startswith(b"ended ")
    for variable, value, words in (
        ("MCP_SESSION_TOKEN", token, "the session has ended or expired"),
        ("MCP_SESSION_TOKEN", token[:-2] + "AA", "not a session token of this gateway"),
        ("STAC_MCP_SESSION_ID", token[:-2] + "AA", "not a session token of this gateway"),
    ):
        refused = Typed("--store", store, env={**SIGNED, variable: value})
        assert refused.end() == 2
        last = refused.log().splitlines()[-1]
        assert variable in last and words in last and token not in last


@requirement("ctx.stdio-key", "ctx.stdio-front")
def test_an_orchestrators_variables_name_the_session_and_announce_facts(tmp_path: Path) -> None:
    fields = {"user": {"variable": "MCP_USER_ID", "to": ["meta"]}, "team": {"variable": "TEAM", "value": "none"}}
    gateway = {
        "store": f"sqlite:///{tmp_path / 'sessions.db'}",
        "context": {"fields": fields, "env": {"WHO_USER": "user", "WHO_TEAM": "team", "WHO_SESSION": "session_id"}},
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"main": server(PROBE)}, "gateway": gateway}))

    def told(**variables: str) -> Any:
        client = Typed("--config", str(file), env={**SIGNED, **variables}, child=())
        client.initialize()
        found = json.loads(client.tool("env", {"prefix": "WHO_"}))
        assert client.end() == 0
        return found

    uuid = "0190b3c6-0000-7000-8000-000000000000"  # of a time: others could guess it
    first = told(MCP_SESSION_KEY=uuid, MCP_USER_ID="zoë")
    assert first == {"WHO_USER": "zoë", "WHO_TEAM": "none", "WHO_SESSION": first["WHO_SESSION"]}
    assert told(STAC_MCP_SESSION_ID=uuid)["WHO_SESSION"] == first["WHO_SESSION"], "one key, whatever carries it"
    assert told(STAC_MCP_SESSION_ID="thread.42") == told(MCP_SESSION_KEY="thread.42"), "a dot makes no token"
    assert told(MCP_SESSION_KEY="another")["WHO_SESSION"] != first["WHO_SESSION"]
    refused = Typed("--config", str(file), env={**SIGNED, "MCP_SESSION_KEY": "${CONVERSATION}"}, child=())
    assert refused.end() == 2 and "MCP_SESSION_KEY: The session key is a placeholder" in refused.log()


@requirement("ctx.stdio-key")
def test_a_missing_credential_is_told_in_words_of_stdio(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"main": server(PROBE)}, "gateway": {"api_keys": {"a": "0" * 64}}}))
    for credential, words in (("", "set MCP_GATEWAY_API_KEY"), ("wrong", "MCP_GATEWAY_API_KEY: ")):
        client = Typed("--config", str(file), env={"MCP_GATEWAY_API_KEY": credential}, child=())
        assert client.end() == 2
        last = client.log().splitlines()[-1]
        assert words in last and "Bearer" not in last


@requirement("ops.hosts", "proc.reset-told")
def test_a_host_learns_what_its_gateway_reports_and_where_a_gateway_was_looked_for() -> None:
    left_out = {"command": "none", "env": {"KEY": "${NOT_SET_FOR_THIS_TEST}"}}
    with running_gateway({"main": server(PROBE), "absent": left_out}) as gateway:
        host = Typed("--url", gateway.url, child=())
        host.initialize()
        (missing,) = host.ask("tools/list")["result"]["_meta"]["io.github.mcp-session-gateway/missing"]
        assert missing["server"] == "absent"
        _, *told = [host.ask("tools/call", {"name": f"main__{name}"}) for name in ("crash", "pid", "pid", "fail")]
        *restarts, failed = [answer["result"].get("_meta") for answer in told]
        assert restarts == [{RESTARTED: {"reason": "crash"}}, None]
        correlation = failed["io.github.mcp-session-gateway/trace"]["correlation_id"]
        assert eventually(lambda: correlation in gateway.stderr()), "lines are written together, some ms later"
        assert host.end() == 0
    strict = Typed("--url", gateway.url, "--strict", child=())
    assert strict.end() == 2 and "server gateway: server 'gateway' cannot be reached" in strict.log()
    away = Typed("--url", gateway.url, child=())
    message = away.initialize()["error"]["message"]
    assert f"Start the gateway at {gateway.url} (`mcp-session-gateway run`), or give its URL with --url" in message
    assert away.ask("tools/list")["error"]["message"] == message, "not that a session was not found"
    assert away.end() == 0


@requirement("ops.hosts", "first.clients")
def test_a_host_that_starts_the_command_of_its_file_again_finds_its_session(tmp_path: Path) -> None:
    def opened(**state: str) -> list[str]:
        (entry,) = json.loads(file.read_text())["mcpServers"].values()
        host = Typed(env=entry["env"], argv=[entry["command"], *entry["args"]])
        host.initialize(name="claude-ai")
        found = [host.tool("pid"), host.tool("state", state)]
        assert host.end() == 0
        return found

    with running_gateway({"main": server(PROBE)}) as gateway:
        words = ["connect", "claude-desktop", "--write", "--url", gateway.url]
        subprocess.run(
            [sys.executable, "-m", "gateway", *words], cwd=ROOT, env={**os.environ, "HOME": str(tmp_path)}, check=True
        )
        here = {**os.environ, "MCP_GATEWAY_PORT": str(urlsplit(gateway.url).port), "HOME": str(tmp_path)}
        connected = run_command("connect", "cursor", env=here, cwd=tmp_path)
        assert gateway.url in connected.stdout and "no gateway is found" not in connected.stderr, "it has no terminal"
        (file,) = tmp_path.rglob("claude_desktop_config.json")
        assert opened(draft="1") == opened(), "the process has stayed, with what it remembers"
        log = gateway.stderr().splitlines()
        assert len([line for line in log if "process started" in line and "session=" in line]) == 1
        assert "refused" not in gateway.stderr()


@requirement("ops.stdio-url", "proc.gone")
@pytest.mark.parametrize("modern", [True, False])
def test_a_host_without_a_key_has_one_session_at_its_gateway_and_ends_it(modern: bool, http: httpx.Client) -> None:
    def asked(name: str, number: int) -> None:
        params = {"name": name, "arguments": {"prefix": "MCP_SESSION_ID"} if name == "env" else {}}
        body = modern_body("tools/call", params, request_id=number)
        body = body if modern else {**body, "params": params}
        host.write(json.dumps(body).encode())

    def texts(count: int) -> list[str]:
        return [host.read()["result"]["content"][0]["text"] for _ in range(count)]

    session = {"unconfirmed_ttl_s": 1, "idle_ttl_s": 600}
    with running_gateway({"main": server(PROBE)}, options={"session": session}) as gateway:
        host = Typed("--url", gateway.url, child=())
        if not modern:
            host.initialize()
        for number in (11, 12, 13):
            asked("pid", number)
        (pid,) = {*texts(3)}
        once = Modern(gateway.url, http, headers={"User-Agent": "other"})
        left = int(tool_text(once.tool("pid")))
        assert eventually(lambda: not Path(f"/proc/{left}").exists()), "who does not come back has a second"
        asked("pid", 14)
        asked("env", 15)
        again, env = sorted(texts(2), key=len)
        assert again == pid
        assert f'"the session at server gateway is {json.loads(env)["MCP_SESSION_ID"][:8]}"' in host.log()
        assert host.log().count("the session at server gateway is") == 1
        assert "MCP_SESSION_KEY is not set: the session ends with this program" in host.log()
        assert host.end() == 0
        assert eventually(lambda: not Path(f"/proc/{pid}").exists())


@requirement("ctx.stdio-token")
def test_a_gateway_that_is_a_server_of_another_ignores_facts_of_its_session(tmp_path: Path) -> None:
    tokens: set[str] = set()
    for name in ("STAC_MCP_SESSION_ID", "MCP_SESSION_KEY", "MCP_SESSION_KEY"):
        facts = {"MCP_SESSION_SOCKET": "/nowhere", name: "abc"}
        client = Typed("--store", f"sqlite:///{tmp_path / 'sessions.db'}", env={**SIGNED, **facts})
        tokens.add(client.initialize()["result"]["_meta"][SESSION_KEY])
        assert client.end() == 0
    assert len(tokens) == 3, "each start has a session of its own"


@requirement("ctx.stdio-front")
@pytest.mark.parametrize("has_lines", [False, True])
def test_stdin_and_stdout_may_be_files(has_lines: bool, tmp_path: Path) -> None:
    info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages: list[Any] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    written = tmp_path / "in.jsonl"
    written.write_text("\n".join(map(json.dumps, messages)), encoding="utf-8")
    with open(written if has_lines else os.devnull, "rb") as stdin, (tmp_path / "out.jsonl").open("wb") as stdout:
        ran = subprocess.run(
            command(child=PROBE), cwd=ROOT, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, timeout=30, check=False
        )
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert ran.returncode == 0 and b"Traceback" not in ran.stderr and b"PermissionError" not in ran.stderr, ran.stderr
    assert [answer["id"] for answer in answers if "id" in answer] == ([1, 2] if has_lines else [])


@requirement("ctx.stdio-front")
def test_calls_that_come_at_once_before_the_end_of_stdin_are_all_answered(tmp_path: Path) -> None:
    listening = modern_body("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, request_id="open")
    calls = [modern_body("tools/call", {"name": "pid", "arguments": {}}, request_id=number) for number in range(8)]
    written = tmp_path / "in.jsonl"
    written.write_text("\n".join(map(json.dumps, [*calls, listening])) + "\n", encoding="utf-8")
    pids, last_at = {}, 0.0
    with (
        written.open("rb") as stdin,
        (tmp_path / "err").open("wb") as stderr,
        subprocess.Popen(command(child=PROBE), cwd=ROOT, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr) as ran,
    ):
        assert ran.stdout is not None
        for answer in map(json.loads, ran.stdout):
            if "result" in answer:
                pids[answer["id"]] = answer["result"]["content"][0]["text"]
                last_at = monotonic()
        ran.wait(30)
    assert ran.returncode == 0 and pids.keys() - {"open"} == set(range(8)), (tmp_path / "err").read_text()
    assert len(set(pids.values())) == 1, "one session"
    assert monotonic() - last_at < 4.5, "nobody waits for the end of a stream of notifications"


@requirement("ctx.stdio-front")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_a_stream_that_is_closed_has_nothing_and_takes_nothing(closed: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command(child=PROBE)]
    ran = subprocess.run(shell, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    assert (ran.returncode, ran.stdout) == (0, b"") and b"Traceback" not in ran.stderr, ran.stderr


@requirement("ctx.stdio-front", "ext.relay")
def test_notifications_of_a_vendor_reach_the_server_of_the_connection_before_later_calls() -> None:
    client = Typed(child=(sys.executable, "-m", "tests.support.vendor_server", "modern", "x"))
    first = modern_body("com.x/orders/echo", {"payload": 1}, request_id="first")
    named: Any = {"jsonrpc": "2.0", "method": "notifications/com.x/orders/named"}
    bare: Any = named | {"method": "notifications/com.x/orders/bare"}
    named["params"] = {"_meta": first["params"]["_meta"], "v": 1}
    got = modern_body("com.x/orders/got", request_id="got")
    for message in (first, named, bare, got):
        client.write(json.dumps(message).encode())
    answers = {answer["id"]: answer["result"] for answer in (client.read(), client.read())}
    assert answers["first"]["echo"] == 1
    lines = [json.loads(line)["method"].rpartition("/")[2] for line in answers["got"]["got"] if "com.x" in line]
    assert lines == ["echo", "named", "bare", "got"]
    assert client.end() == 0
