"""Configuration, health and the command line, as an operator meets them, and what commands load first."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.errors import STORE_UNAVAILABLE
from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, ROOT, SIGNED, RunningGateway, operators_of, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, messages, result_of, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.table_server import EXITS, GOOD, table_server
from tests.support.waiting import eventually


def command(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env={**os.environ, **env}, cwd=cwd, timeout=240)


@requirement("ops.config")
def test_the_command_says_what_is_wrong_and_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"gateway": {"port": "x"}}')
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments in (("check", "--config", str(path)), ("run", "--config", str(path)), ("run",)):
        failed = command(*arguments, cwd=empty)
        assert failed.returncode == 2 and failed.stderr.startswith("error "), failed.stderr
        assert "Traceback" not in failed.stderr
    path.write_text('{"people": {"a": {"command": "a"}}}')
    assert "mcpServers is empty or missing" in command("check", "--config", str(path)).stderr
    missing = command("check", "--config", str(tmp_path / "nothing.json"))
    assert missing.returncode == 2 and "No such file" in missing.stderr
    weak = command("run", "--", "cat", MCP_GATEWAY_KEYS="too-short")
    assert weak.returncode == 2 and "32" in weak.stderr and "too-short" not in weak.stderr


def test_the_command_line_starts_without_the_sdk() -> None:
    """The SDK takes a second and 55 MB to load, and commands that list or check something need nothing of it."""
    program = (
        "import sys, typer.main, gateway.cli.main as main\n"
        "for listed in typer.main.get_command(main.app).commands.values(): listed.loaded()\n"
        "sys.exit('mcp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=30, check=False).returncode == 0


def test_keygen_prints_a_key_that_can_be_used() -> None:
    from session_store import KeyRing

    key = command("keygen").stdout.strip()
    assert re.fullmatch(r"[\w-]{43}", key) and KeyRing.parse(key)


@requirement("ops.health", "proc.shutdown")
def test_sigterm_lets_calls_finish_and_ends_streams(http: httpx.Client) -> None:
    with running_gateway(command=DEMO, must_stop=False) as gateway:
        client = Legacy(gateway.url, http).open()
        slow = {"name": "slow", "arguments": {"steps": 4, "interval_s": 0.25}, "_meta": {"progressToken": 1}}
        with httpx.Client(timeout=20) as other:
            listener = Legacy(gateway.url, other)
            listener.session = client.session
            with listener.get() as stream, client.streaming("tools/call", slow) as coming:
                assert next(coming)["method"] == "notifications/progress"
                gateway.process.send_signal(signal.SIGTERM)
                assert "".join(stream.iter_text()).replace(": keepalive", "").strip() == "", "the GET stream ends"
                assert [*coming][-1]["result"]["content"][0]["text"] == "done"
        assert eventually(lambda: gateway.process.poll() is not None)
        assert "stopping when all calls have ended (1 in flight), at the latest in 10 s" in gateway.stderr()


@requirement("ops.two-commands")
def test_the_commands_of_the_readme_are_make_targets() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for target in ("run", "test"):
        assert f"make {target}\n" in readme and re.search(rf"^{target}:", makefile, re.MULTILINE)
    listed = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "mcp-session-gateway run -- " in listed


# -- what commands load before they do anything, counted


@pytest.mark.parametrize(
    ("arguments", "most", "unneeded"),
    [
        (["--version"], 300, {"asyncio", "msgspec", "pydantic", "rich", "session_store", "starlette", "transports"}),
        (
            ["run", "--port", "0", "--", *DEMO],
            1_200,
            {"cryptography.x509", "httpx2", "jinja2", "jwt", "mcp", "prometheus_client", "redis", "rich"}
            | {"gateway.admin.console", "gateway.admin.rest", "gateway.cli.output", "gateway.doctor"},
        ),
    ],
    ids=["version", "run"],
)
def test_a_command_loads_what_it_needs(arguments: list[str], most: int, unneeded: set[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gateway", *arguments]
    loaded = set()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("import time:"):
                loaded.add(line.rpartition("|")[2].strip())
            elif line.startswith("ready "):
                process.terminate()
                break
        else:
            assert process.wait() == 0
    assert "gateway.cli.main" in loaded
    assert unneeded & loaded == set()
    assert len(loaded) < most


# -- what the gateway is made of loads on systems without Linux's own calls, and says there that sandboxes do not hold


WITHOUT_LINUX = """
import importlib, os, pkgutil, resource, select, signal, socket, sys
import gateway, session_store, transports

def each():
    unwanted = ("testing", "pytest_plugin", "__main__")
    for package in (gateway, session_store, transports):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not found.name.endswith(unwanted):
                yield found.name

names = list(each())
for name in names:
    importlib.import_module(name)  # so that what others made is loaded as this system needs it
for name in [name for name in sys.modules if name.split(".")[0] in ("gateway", "session_store", "transports")]:
    del sys.modules[name]
ABSENT = {
    os: "pidfd_open memfd_create eventfd sched_getaffinity splice O_PATH pipe2 setresuid setresgid unshare setns",
    socket: "SO_PEERCRED AF_NETLINK NETLINK_ROUTE SOCK_CLOEXEC SOCK_NONBLOCK MSG_CMSG_CLOEXEC TCP_USER_TIMEOUT",
    select: "epoll EPOLLIN EPOLLOUT EPOLLHUP EPOLLERR EPOLLET",
    signal: "pidfd_send_signal sigwaitinfo sigtimedwait SIGPWR SIGPOLL",
    resource: "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING",
}
for module, absent in ABSENT.items():
    for attribute in absent.split():
        if hasattr(module, attribute):
            delattr(module, attribute)
sys.platform = "darwin"
for name in names:
    importlib.import_module(name)
from transports.upstream.walls.kernel_support import probe
found = probe()
print(len(names), found.landlock, bool(found.filters and found.gate and found.namespaces))
"""


@requirement("ops.other-systems")
def test_every_module_loads_without_what_only_linux_has() -> None:
    command = [sys.executable, "-c", WITHOUT_LINUX]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    count, landlock, lacks = done.stdout.split()
    assert int(count) > 400 and (landlock, lacks) == ("0", "True"), "no wall is claimed"


# -- configurations and stores as an operator meets them: what is read, what refuses to start, and what commands say


DEMO_ENTRY = server(DEMO)


def ran(folder: Path, document: Any, *arguments: str, **env: str) -> tuple[int, str]:
    """Exit code and words of a command with that configuration."""
    config = folder / "mcp.json"
    config.write_text(json.dumps(document), encoding="utf-8")
    given = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    finished = run_command(*arguments, "--config", str(config), env=given, cwd=folder)
    return finished.returncode, " ".join((finished.stdout + finished.stderr).split())


@requirement("ops.misspelt", "ops.placeholders", "ops.config")
def test_check_doctor_and_run_tell_the_same_faults(tmp_path: Path) -> None:
    """All that are told are in tests/unit/config/test_load.py."""
    servers = {"b": {"command": "x", "env": {"T": "${UNSET_1}"}}}
    document = {"gatway": {"port": 1}, "mcpServers": servers}
    config = tmp_path / "mcp.json"
    for arguments, code in ((("check", "--offline"), 2), (("doctor",), 1), (("run",), 2)):
        found, words = ran(tmp_path, document, *arguments, MCP_GATEWAY_PROT="1")
        assert found == code, words
        for fault in (
            f"{config}: gatway: no such key; did you mean gateway?",
            f"{config}: mcpServers.b.env.T: the variable UNSET_1 is not set",
            "the variable MCP_GATEWAY_PROT: no such setting; did you mean MCP_GATEWAY_PORT?",
        ):
            assert fault in words, (arguments, words)
    found, words = ran(tmp_path, {}, "run", "--", "python server.py")
    assert found == 2 and "must be the program alone: write 'python'" in words


@requirement("ops.foreign-config", "ops.check")
def test_check_and_doctor_list_what_has_no_effect(tmp_path: Path) -> None:
    document = {
        "theme": "dark",
        "mcpServers": {
            "demo": DEMO_ENTRY | {"autoApprove": ["x"]},
            "feed": {"type": "sse", "url": "https://x.example/sse"},
            "off": {"command": "x", "disabled": True},
        },
    }
    told = (
        "ignored theme",
        "mcpServers.demo: ignored autoApprove",
        "mcpServers.feed: not served, because its type sse is HTTP+SSE of MCP 2024-11-05",
        "mcpServers.off: not served, because disabled is true",
        "the variable MCP_GATEWAY_SERVICE_HOST is ignored",
    )
    for command in ("check", "doctor"):
        found, words = ran(tmp_path, document, command, MCP_GATEWAY_SERVICE_HOST="10.0.0.1")
        assert all(line in words for line in told), words
    found, words = ran(tmp_path, document, "check", "--json", MCP_GATEWAY_SERVICE_HOST="10.0.0.1")
    answer = json.loads(words)
    assert found == 0 and answer["good"] and answer["servers"] == ["demo"] and answer["unanswered"] == []
    assert [len(answer["warnings"]), len(answer["ignored"])] == [2, 3]


@requirement("ops.check")
def test_check_says_ok_only_of_servers_that_answered(tmp_path: Path) -> None:
    document = {"mcpServers": {"demo": DEMO_ENTRY, "broken": {"command": "/does/not/exist"}}}
    found, words = ran(tmp_path, document, "check")
    assert found == 1 and ": ok" not in words
    assert "mcp.json: valid (demo, broken), but without an answer from broken" in words
    assert "its lists were not checked" in words and "No such file or directory" in words, "and why"
    found, words = ran(tmp_path, document, "check", "--json")
    assert found == 1 and json.loads(words)["unanswered"] == ["broken"]
    assert ran(tmp_path, document, "check", "--strict")[0] == 2
    found, words = ran(tmp_path, document, "check", "--offline")
    assert found == 0 and "ok (demo, broken); no server was started or contacted" in words


@requirement("ops.partial", "ops.check")
def test_a_server_with_a_fault_is_left_out_and_the_others_are_served(tmp_path: Path, http: httpx.Client) -> None:
    """Which faults: tests/unit/config/test_load.py."""
    faulty = {"unset": {"command": "x", "env": {"A_TOKEN": "${UNSET_1}"}}, "code": {"in_process": "nowhere:server"}}
    document = {"mcpServers": {"demo": DEMO_ENTRY, **faulty}}
    faults = (
        "mcpServers.unset.env.A_TOKEN: the variable UNSET_1 is not set",
        "mcpServers.code.in_process: nowhere:server",
    )
    checked = run_command("check", "--config", str(_written(tmp_path, document)), timeout=240)
    assert checked.returncode == 1 and all(fault in checked.stderr for fault in faults), checked.stderr
    assert checked.stdout.endswith("mcp.json: valid (demo), but without unset, code\n")
    assert ran(tmp_path, document, "run", "--strict") == (2, f"error {tmp_path}/mcp.json: {faults[0]}{_SET_IT}")
    admin = {"listen": "127.0.0.1:0", "keys": {"ops": sha256("k")}}
    with running_gateway(document["mcpServers"], options={"admin": admin}) as gateway:
        answer = result_of(Legacy(gateway.url, http).open().call("tools/list"))
        assert all(tool["name"].startswith("demo__") for tool in answer["tools"]) and answer["tools"]
        missing = answer["_meta"]["io.github.mcp-session-gateway/missing"]
        assert [one["server"] for one in missing] == ["unset", "code"]
        assert "UNSET_1" not in json.dumps(missing) and "retryAfterMs" not in missing[0]
        called = Legacy(gateway.url, http).open().call("tools/call", {"name": "unset__any", "arguments": {}})
        opened = Legacy(gateway.at("unset"), http).initialize()
        for refused in (called, opened):  # `upstream_unavailable` would invite to repeat it
            assert refused.json()["error"]["data"]["reason"] == "server_left_out", refused.text
            assert "fails again" in refused.text and "retry-after" not in refused.headers
        here, alone = (
            (Legacy(url, http).initialize(), Modern(url, http).send("server/discover"))
            for url in (gateway.url, gateway.at("demo"))
        )
        assert [*map(result_of, here)] == [*map(result_of, alone)], "nothing is declared for who never comes"
        known = http.get(f"{operators_of(gateway)}/readyz").json()["unavailable"]
        assert faults[0] in known["unset"] and faults[1] in known["code"]
        api, key = f"{operators_of(gateway)}/admin/api", bearer("k")
        (replica,) = http.get(f"{api}/replicas", headers=key).json()
        assert replica["unavailable"][0]["reason"].endswith(f": {faults[0]}{_SET_IT}"), "it has no credential"
        sessions = http.get(f"{api}/sessions", headers=key).json()["sessions"]  # in the order of random ids
        session = next(one for one in sessions if one["endpoint"] == "/mcp")
        told = http.get(f"{api}/sessions/{session['session']}/environment", headers=key).json()["servers"]
        (why,) = next(one["why"] for one in told if one["server"] == "unset" and one["kind"] == "left out")
        assert why.startswith("It is left out: ") and why.endswith(f"{faults[0]}{_SET_IT}.")


@requirement("ops.partial")
def test_a_refusal_names_every_server_that_is_left_out_or_the_one_that_may_come_back(http: httpx.Client) -> None:
    out = {name: {"in_process": f"nowhere:{name}"} for name in ("one", "two")}
    with running_gateway(out) as gateway:
        for refused in (Legacy(gateway.url, http).initialize(), Modern(gateway.url, http).send("server/discover")):
            error = refused.json()["error"]
            assert error["data"]["reason"] == "server_left_out"
            assert error["message"].startswith("servers 'one', 'two' are left out: each has a fault"), error
    with running_gateway({**out, "broken": {"command": "/does/not/exist"}}) as gateway:
        for refused in (Legacy(gateway.url, http).initialize(), Modern(gateway.url, http).send("server/discover")):
            error = refused.json()["error"]
            assert error["data"]["reason"] == "upstream_unavailable" and "'broken'" in error["message"], error


@requirement("ops.loop")
def test_a_request_that_comes_back_is_refused(http: httpx.Client) -> None:
    """Under a name that the configuration does not know as the gateway's own."""
    port = free_port()
    servers = {"demo": DEMO_ENTRY, "loop": {"url": f"http://0.0.0.0:{port}/mcp"}}
    options = {"allowed_hosts": ["*"], "admin": {"listen": "127.0.0.1:0"}}
    with running_gateway(servers, options=options, port=port) as gateway:
        url = f"{operators_of(gateway)}/readyz"
        assert eventually(lambda: "its url leads back" in http.get(url).json()["unavailable"].get("loop", ""))
        headers = {"Via": "1.1 another, 1.0 proxy.example"}
        assert Legacy(gateway.url, http).initialize(headers=headers).status_code == 200


@requirement("ops.loop")
def test_a_loop_through_another_gateway_ends_at_the_first(http: httpx.Client) -> None:
    port = free_port()
    back = {"demo": DEMO_ENTRY, "a": {"url": f"http://127.0.0.1:{port}/mcp"}}
    with running_gateway(back) as b, running_gateway({"demo": DEMO_ENTRY, "b": {"url": b.url}}, port=port) as a:
        client = Legacy(a.url, http).open()
        around = {"name": "b__a__demo__whoami", "arguments": {}}
        assert eventually(lambda: "leads back" in client.call("tools/call", around).text)
        assert "leads back" not in client.call("tools/call", around | {"name": "b__demo__whoami"}).text


def _written(folder: Path, document: Any) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


_SET_IT = ": set it in the environment of the gateway, or write a default, as in ${UNSET_1:-default}"


# -- stores as an operator meets them


def refused(*arguments: str, **env: str) -> str:
    """What a gateway that does not start says."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("MCP_GATEWAY_")} | env
    ran = run_command(*arguments, env=given, timeout=30)
    assert ran.returncode != 0 and "Traceback" not in ran.stderr, ran.stderr
    return ran.stderr


@requirement("ops.config", "rep.redis")
def test_redis_without_keys_refuses_to_start(redis_server: RunningRedis) -> None:
    told = refused("run", "--port", "0", "--store", redis_server.url, "--", "true")
    assert "MCP_GATEWAY_KEYS is not set" in told and "keygen" in told


@requirement("ops.config", "ops.redact")
def test_redis_that_refuses_us_is_told_at_start_without_the_password(redis_server: RunningRedis) -> None:
    url = f"redis://someone:hunter2-secret@127.0.0.1:{redis_server.port}/0"
    told = refused("run", "--port", "0", "--store", url, "--", "true", **SIGNED)
    assert "refused" in told and "hunter2" not in told


@requirement("life.survives-restart", "ops.config")
def test_one_gateway_for_a_sqlite_file_and_a_key_file_nobody_else_can_read(tmp_path: Path, http: httpx.Client) -> None:
    path = tmp_path / "sessions.db"
    with running_gateway({"demo": server(DEMO)}, options={"store": f"sqlite:///{path}"}):
        told = refused("run", "--port", "0", "--store", f"sqlite:///{path}", "--", "true")
        assert "another gateway process uses it" in told and "redis://" in told
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes["sessions.db.keys"] == modes["sessions.db"] == 0o600
    (tmp_path / "sessions.db.keys").chmod(0o644)
    assert "other users can read the keys" in refused("run", "--store", f"sqlite:///{path}", "--", "true")
    nowhere = tmp_path / "nowhere" / "sessions.db"
    for keys in ({}, SIGNED):
        told = refused("run", "--store", f"sqlite:///{nowhere}", "--", "true", **keys)
        assert f"there is no folder {nowhere.parent}" in told


def test_a_file_that_is_no_store_of_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but somebody's notes " * 100)
    before = path.read_bytes()
    assert "cannot be used as a session store" in refused("run", "--store", f"sqlite:///{path}", "--", "true")
    assert path.read_bytes() == before


# -- what is shipped is safe as it is: neither image nor environment opens a gateway that asks for credentials


API_KEYS = {"alice": sha256(KEYS["alice"])}


def image() -> tuple[dict[str, str], list[str]]:
    """Variables and command line of the image."""
    text = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    variables = dict(re.findall(r"^ENV (\w+)=(.*)$", text, re.MULTILINE))
    commands = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    return variables, json.loads(commands[-1])


@requirement("wall.defaults", "ops.deploy")
def test_the_image_opens_no_gateway_that_asks_for_credentials(tmp_path: Path, http: httpx.Client) -> None:
    variables, demo = image()
    assert not any(name.startswith("MCP_GATEWAY_") for name in variables), "they win over the configuration"
    demo = demo[: demo.index("--")]
    assert "--anonymous" in demo, "the demo says it on its own command line"
    assert demo[demo.index("--allowed-host") :] == ["--allowed-host", "localhost", "--allowed-host", "127.0.0.1"]
    options = {"api_keys": API_KEYS, "anonymous": False}
    with running_gateway({"demo": server(DEMO)}, options=options, env=variables) as gateway:
        assert Modern(gateway.url, http).tool("whoami").status_code == 401
        answer = Modern(gateway.url, http, headers=bearer(KEYS["alice"])).tool("whoami")
        assert json.loads(tool_text(answer))["principal"] == "api-key:alice"


@requirement("wall.defaults", "ops.config")
@pytest.mark.parametrize("asked", [("check",), ("doctor",), ("run", "--port", "0")])
def test_nothing_calls_it_good_and_nothing_starts(asked: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    entry = {"mcpServers": {"demo": server(DEMO)}, "gateway": {"anonymous": False, "api_keys": API_KEYS}}
    path.write_text(json.dumps(entry), encoding="utf-8")
    ran = command(*asked, "--config", str(path), MCP_GATEWAY_ANONYMOUS="true")
    said = ran.stdout + ran.stderr
    assert ran.returncode != 0 and "MCP_GATEWAY_ANONYMOUS" in said and "api_keys" in said, said
    if asked[0] == "run":
        ran = command(*asked, "--anonymous", "--config", str(path))
        assert ran.returncode == 2 and "the command line" in ran.stderr, ran.stderr


# -- ready means that a request is answered best here: on the public listener, and on that of operators


KEY = "key of an operator, long enough"
SERVERS = {"demo": server(DEMO)}


def opens(gateway: RunningGateway, http: httpx.Client) -> bool:
    answer = Legacy(gateway.url, http).initialize()
    return answer.status_code == 200 and "result" in messages(answer)[-1]


def agrees(gateway: RunningGateway, http: httpx.Client, bases: list[str], is_ready: bool) -> None:
    """Every listener says so within seconds, and so it is."""
    status = 200 if is_ready else 503
    for base in bases:
        assert eventually(lambda base=base: http.get(f"{base}/readyz").status_code == status), base  # type: ignore[misc]  # bound in this round
    assert opens(gateway, http) is is_ready


def away(ready: httpx.Response) -> bool:
    """Whether it says that its store is away."""
    assert ready.status_code == 200, "the store of all replicas: no other one would answer better"
    return "new sessions" in ready.json().get("store", "")


@requirement("wall.ready", "rep.store-down")
def test_a_gateway_whose_redis_takes_no_writes_stays_ready_and_says_so(http: httpx.Client) -> None:
    faults = {
        "CONFIG SET maxmemory-policy noeviction maxmemory 1kb": "CONFIG SET maxmemory 0",
        "REPLICAOF 127.0.0.1 1": "REPLICAOF NO ONE",
        "CONFIG SET min-replicas-to-write 3": "CONFIG SET min-replicas-to-write 0",
    }
    with running_redis() as store:
        options = {"store": store.url, "admin": {"listen": "127.0.0.1:0", "keys": {"ops": sha256(KEY)}}}
        with running_gateway(SERVERS, options=options, env=SIGNED) as gateway:
            bases = [gateway.base, operators_of(gateway)]
            agrees(gateway, http, bases, True)
            for fault, mended in faults.items():
                redis: Any = store.client()
                redis.execute_command(*fault.split())
                for base in bases:
                    assert eventually(lambda base=base: away(http.get(f"{base}/readyz"))), base  # type: ignore[misc]  # bound in this round
                refused = Legacy(gateway.url, http).initialize()
                assert (refused.status_code, refused.headers.get("retry-after")) == (503, "1"), refused.text
                assert refused.json()["error"]["code"] == STORE_UNAVAILABLE
                key = {"Authorization": f"Bearer {KEY}"}
                assert "mcp_gateway_store_up 0" in http.get(f"{operators_of(gateway)}/metrics", headers=key).text
                redis.execute_command(*mended.split())
                assert eventually(lambda: not away(http.get(f"{bases[0]}/readyz")))
                agrees(gateway, http, bases, True)


@requirement("wall.ready")
def test_a_file_on_a_full_disk_is_not_ready(tmp_path: Path, http: httpx.Client) -> None:
    options = {"store": f"sqlite:///{tmp_path / 'sessions.db'}", "admin": {"listen": "127.0.0.1:0"}}
    with running_gateway(SERVERS, options=options) as gateway:
        bases = [gateway.base, operators_of(gateway)]
        agrees(gateway, http, bases, True)
        process = psutil.Process(gateway.pid)
        most = process.rlimit(resource.RLIMIT_FSIZE)
        # As on a full disk: what is there can be read and written over, and no file grows.
        process.rlimit(resource.RLIMIT_FSIZE, ((tmp_path / "sessions.db-wal").stat().st_size, most[1]))
        agrees(gateway, http, bases, False)
        process.rlimit(resource.RLIMIT_FSIZE, most)
        agrees(gateway, http, bases, True)


@requirement("wall.ready")
def test_an_only_server_that_cannot_start_is_not_ready_and_one_of_several_is(
    tmp_path: Path, http: httpx.Client
) -> None:
    table = tmp_path / "table"
    table.write_text(json.dumps(EXITS))
    broken, options = table_server(table), {"admin": {"listen": "127.0.0.1:0"}}
    with running_gateway({"files": broken}, options=options) as gateway:
        bases = [gateway.base, operators_of(gateway)]
        agrees(gateway, http, bases, False)
        assert f"serving {gateway.url}" in gateway.stderr() and f"ready {gateway.url}" not in gateway.stderr()
        assert http.get(f"{gateway.base}/healthz").status_code == 200, "to be restarted would not help"
        assert http.get(f"{bases[0]}/readyz").json() == {"ready": False, "draining": False}, "strangers learn no names"
        told = http.get(f"{bases[1]}/readyz").json()["unavailable"]
        assert "exited with code 3" in told["files"]
        table.write_text(json.dumps(GOOD))  # and no client asks: the gateway tries again by itself
        agrees(gateway, http, bases, True)
        assert eventually(lambda: f"ready {gateway.url}" in gateway.stderr())
        assert http.get(f"{bases[1]}/readyz").json()["unavailable"] == {}
        table.write_text(json.dumps(EXITS))
        assert opens(gateway, http) is False
        agrees_on_ready = [http.get(f"{base}/readyz").status_code for base in bases]
        assert agrees_on_ready == [200, 200], "a server that fails later takes no replica out of rotation"
    with running_gateway({"files": broken, **SERVERS}, options=options) as gateway:
        agrees(gateway, http, [gateway.base], True)
        assert "files" in http.get(f"{operators_of(gateway)}/readyz").json()["unavailable"]
