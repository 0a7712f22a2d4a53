"""Sandboxes of servers behind a gateway: what a session's process touches, and what the commands say of it."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from socket import create_server
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import PROBE, ROOT
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.waiting import descendants, eventually
from transports.upstream.walls.kernel_support import probe

KEYS = {"ada": "key-of-ada", "guest": "key-of-guest"}
CLOSED = ("PermissionError", "FileNotFoundError")
"""In namespaces of its own, what is not granted below /tmp is not there."""
REFUSED = ("PermissionError", "OSError")
"""A mount that is read-only answers EROFS."""
LISTENS = "  listen: on loopback, a port of the kernel's choice"
EVALUATING = PROBE[1]
BOX: dict[str, Any] = {"command": sys.executable, "args": [EVALUATING]}

pytestmark = pytest.mark.skipif(not probe().landlock, reason="this kernel has no Landlock, so it has no sandbox")


def asked(client: Any, code: str, server: str = "box") -> str:
    return tool_text(client.tool(f"{server}__python", {"code": code}))


@requirement("box.default", "box.own-folder", "box.trust", "box.arguments")
def test_a_session_sees_its_own_folder_and_what_it_was_granted(http: httpx.Client, tmp_path: Path) -> None:
    data, secret = tmp_path / "data", tmp_path / "secret"
    data.mkdir()
    secret.write_text("a secret of the gateway's user")
    entry = {"command": sys.executable, "args": [EVALUATING, str(data)]}
    by_trust = {"direct": "standard", "sandboxed": "strict"}
    options = {
        "api_keys": {name: sha256(key) for name, key in KEYS.items()},
        "sandbox": by_trust,
        "policy": {"rules": [{"principals": ["api-key:guest"], "trust": "sandboxed"}]},
    }
    with in_process_gateway({"box": entry, "free": {**entry, "sandbox": "off"}}, options=options) as gateway:
        ada, other, guest = (Legacy(gateway.url, http, headers=bearer(KEYS[name])) for name in ("ada", "ada", "guest"))
        for client in (ada, other, guest):
            client.open()
        homes = [asked(client, "os.environ['HOME']") for client in (ada, other, guest)]
        assert len(set(homes)) == 3, homes
        for client, home in zip((ada, other, guest), homes, strict=True):
            assert asked(client, "os.getcwd()") == home and asked(client, "os.environ['TMPDIR']").startswith(home[:-5])
            assert (
                asked(client, "Path('note').write_text('mine')") == "4" and asked(client, "os.listdir()") == "['note']"
            )
            assert asked(client, f"Path({str(secret)!r}).read_text()") in CLOSED
            assert asked(client, "Path('/etc/shadow').read_text()") == "PermissionError"
            assert asked(client, "os.listdir(Path.home().parent.parent)") in (
                "PermissionError",
                f"['{Path(home).parent.name}']",
            )
            assert asked(client, "subprocess.run(['cat', '/etc/hostname']).returncode") == "0"
        assert asked(ada, f"Path({homes[1]!r}, 'note').read_text()") in CLOSED, "a sibling of one principal"
        assert asked(ada, f"Path({str(data / 'x')!r}).write_text('x')") == "1", "an argument, under standard"
        assert asked(guest, f"Path({str(data / 'x')!r}).read_text()") == "x"
        assert asked(guest, f"Path({str(data / 'x')!r}).write_text('y')") in REFUSED, "and under strict"
        assert asked(ada, f"Path({str(secret)!r}).read_text()", "free") == "a secret of the gateway's user"
        assert asked(ada, "os.environ['HOME']", "free") == str(Path.home())
        ada.delete()
        assert eventually(lambda: not Path(homes[0]).exists()), "it ends with its session"
        assert Path(homes[1]).is_dir()


@requirement("box.runtime", "box.arguments")
def test_a_script_does_not_read_the_credentials_that_lie_beside_it(http: httpx.Client, tmp_path: Path) -> None:
    app = tmp_path / "app"
    (app / "src").mkdir(parents=True)
    (app / ".git").mkdir()
    shutil.copy(EVALUATING, app / "src/server.py")
    closed = [app / name for name in ("mcp.json", ".env", "src/.env.local", "src/claude.json")]
    for file in closed:
        file.write_text('{"mcpServers": {"other": {"env": {"TOKEN": "of another server"}}}}')
    free = [app / name for name in ("package.json", ".env.example", "src/helper.py")]
    for file in free:
        file.write_text("open to the server")
    entry = {"command": sys.executable, "args": ["src/server.py"], "cwd": str(app), "sandbox": "standard"}
    listed = {**entry, "sandbox": {"profile": "standard", "read": [str(app / ".env")]}}
    with in_process_gateway({"box": entry, "listed": listed}) as gateway:
        client = Legacy(gateway.url, http).open()
        assert {asked(client, f"Path({str(file)!r}).read_text()") for file in closed} <= {*CLOSED}
        assert {asked(client, f"Path({str(file)!r}).read_text()") for file in free} == {"open to the server"}
        assert "helper.py" in asked(client, "os.listdir('src')"), "an interpreter looks for modules there"
        assert "of another" in asked(client, "Path('.env').read_text()", "listed"), "an operator can mean it"
        assert asked(client, "Path('mcp.json').read_text()", "listed") in CLOSED
    config = tmp_path / "gateway.json"
    config.write_text(json.dumps({"mcpServers": {"box": entry}}), encoding="utf-8")
    assert f"withheld: {app}/mcp.json, " in run_command("sandbox", "explain", "box", "--config", str(config)).stdout


@requirement("box.secrets")
def test_a_server_reads_no_file_of_a_secret_beside_its_code(http: httpx.Client, tmp_path: Path) -> None:
    app, mounted = tmp_path / "app", tmp_path / "mounted"
    (app / "secrets").mkdir(parents=True)
    mounted.mkdir()
    shutil.copy(EVALUATING, app / "server.py")
    for name in ("guest", "ada"):
        (mounted / name).write_text(f"a secret of {name}")
    (app / "secrets/guest").write_text("a secret of guest")
    (app / "secrets/ada").symlink_to(mounted / "ada")
    (app / "token").write_text("a secret of all")
    (app / "helper.py").write_text("open to the server")
    env = {"OWN": "${secret:own}", "COMMON": "${secret:common}"}
    entry = {"command": sys.executable, "args": ["server.py"], "cwd": str(app), "env": env, "sandbox": "standard"}
    secrets = {"own": {"file": f"{app}/secrets/{{subject}}"}, "common": {"file": f"{app}/token"}}
    options = {"api_keys": {name: sha256(key) for name, key in KEYS.items()}, "secrets": secrets}
    with in_process_gateway({"box": entry, "other": BOX}, options=options) as gateway:
        ada = Legacy(gateway.url, http, headers=bearer(KEYS["ada"])).open()
        assert asked(ada, "os.environ['OWN'], os.environ['COMMON']") == "('a secret of ada', 'a secret of all')"
        (app / "secrets/later").write_text("a secret of a principal who came later")
        for file in ("secrets/guest", "secrets/ada", "secrets/later", "token"):
            assert asked(ada, f"Path({file!r}).read_text()") in CLOSED, file
        assert asked(ada, "Path('helper.py').read_text()") == "open to the server"
    config = tmp_path / "gateway.json"

    def checked(**servers: Any) -> str:
        config.write_text(json.dumps({"mcpServers": servers, "gateway": options}), encoding="utf-8")
        done = run_command("check", "--offline", "--config", str(config))
        return " ".join((done.stdout + done.stderr).split())

    assert "its processes" not in checked(box=entry)
    why = "nothing keeps its processes from reading the files of gateway.secrets.own, gateway.secrets.common"
    assert why in checked(free={**entry, "sandbox": "off"})
    data = {**entry, "sandbox": {"profile": "standard", "read": [str(mounted)]}}
    assert f"its sandbox grants {mounted}, and with it {mounted}/ada, which holds" in checked(box=data)


@requirement("box.explained")
def test_what_a_session_may_touch_is_explained(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    table = {"profile": "standard", "reach": ["10.0.0.1:5432"], "memory_mb": 64, "sandboxed": "strict"}
    servers = {
        "box": {"command": "cat", "args": [str(tmp_path), "/etc"], "sandbox": table},
        "web": {"url": "http://x"},
        "package": {"command": "npx", "args": ["-y", "notes@1"], "sandbox": {"profile": "strict", "watch": True}},
    }
    config.write_text(json.dumps({"mcpServers": servers}))
    told = run_command("sandbox", "explain", "box", "--json", "--config", str(config))
    direct, guest = json.loads(told.stdout)["sandboxes"]
    assert (direct["sessions"], direct["profile"], direct["reach"]["public"]) == (["direct"], "standard", True)
    assert (guest["sessions"], guest["profile"], guest["reach"]["public"]) == (["sandboxed"], "strict", False)
    assert direct["chosen_by"] == "mcpServers.box.sandbox" and guest["chosen_by"] == "mcpServers.box.sandbox.sandboxed"
    assert str(tmp_path) in direct["write"] and str(tmp_path) in guest["read"]
    assert direct["limits"]["memory_mb"] == 64 and direct["reach"]["hosts"] == ["10.0.0.1:5432"]
    assert direct["not_granted"] == [
        "/etc: it holds too much to be meant as a whole; grant what is needed in read or write"
    ]
    lines = run_command("sandbox", "explain", "box", "--config", str(config)).stdout.splitlines()
    assert lines[0] == "server box, direct sessions: standard, by mcpServers.box.sandbox"
    assert lines[-1].startswith("new processes get this; one that runs already keeps what it got")
    for line in (f"  write: {tmp_path}", "  reach: 10.0.0.1:5432", "  reach: public hosts", LISTENS):
        assert line in lines
    [package] = json.loads(run_command("sandbox", "explain", "package", "--json", "--config", str(config)).stdout)[
        "sandboxes"
    ]
    assert package["watch"] is True and "/packages/notes-" in package["package"]["folder"]
    for name, why in (
        ("web", "server 'web' has no command"),
        ("x", "there is no server 'x' in mcpServers; servers: box, web, package"),
    ):
        refused = run_command("sandbox", "explain", name, "--config", str(config))
        assert refused.returncode == 2 and why in " ".join(refused.stderr.split())


@requirement("box.required", "box.told")
def test_a_machine_that_cannot_hold_a_sandbox_is_told_and_refused_where_it_is_required(tmp_path: Path) -> None:
    """The commands run on this kernel without Landlock."""
    config = tmp_path / "mcp.json"

    def ran(sandbox: Any, *arguments: str) -> tuple[int, str]:
        config.write_text(json.dumps({"mcpServers": {"box": {"command": "cat", "sandbox": sandbox}}}))
        without = [sys.executable, str(ROOT / "tests/support/without.py"), "landlock", sys.executable, "-m", "gateway"]
        done = subprocess.run(
            [*without, *arguments, "--config", str(config)], capture_output=True, text=True, timeout=240, cwd=ROOT
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    missing = "Files are not closed to the server: the kernel has no Landlock, or it is switched off."
    code, words = ran("standard", "check", "--offline")
    assert code == 0 and f"sandbox box: {missing}" in words
    for arguments, expected in ((("run", "--port", "0"), 2), (("doctor",), 1)):
        code, words = ran({"profile": "standard", "required": True}, *arguments)
        assert code == expected and missing in words, (arguments, words)


@requirement("box.keys")
def test_nothing_is_served_where_a_sandbox_opens_the_store(tmp_path: Path) -> None:
    program, data = tmp_path / "project" / "server.py", tmp_path / "data"
    for folder in (program.parent, data):
        folder.mkdir()
    program.write_text("import sys; sys.stdin.read()")
    config = tmp_path / "mcp.json"
    store = f"sqlite:///{data}/sessions.db"
    entry = {"command": sys.executable, "args": [str(program), str(data)]}
    config.write_text(json.dumps({"mcpServers": {"notes": entry}, "gateway": {"store": store}}))
    for arguments in (("check", "--offline"), ("run", "--port", "0")):
        refused = run_command(*arguments, "--config", str(config))
        told = " ".join(refused.stderr.split())
        assert refused.returncode == 2 and "mcpServers.notes: its sandbox grants" in told, told
        assert str(data) in told.replace(" ", "") and "sessions.db" in told


def message(number: int, method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


@pytest.mark.skipif(bool(probe().gate), reason=f"a server cannot be watched here: {probe().gate}")
@requirement("box.learn")
def test_a_server_works_under_strict_with_what_was_learnt_of_it(http: httpx.Client, tmp_path: Path) -> None:
    for name in ("data", "out", ".ssh"):
        (tmp_path / name).mkdir()
    (tmp_path / "data/in").write_text("read")
    (tmp_path / ".ssh/id_ed25519").write_text("key")
    with create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def accept() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        work = {
            f"Path({str(tmp_path / 'data/in')!r}).read_text()": "read",
            f"Path({str(tmp_path / 'out/new')!r}).write_text('x')": "1",
            f"socket.create_connection(('127.0.0.1', {port})).close()": "None",
        }
        opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        codes = [*work, f"Path({str(tmp_path / '.ssh/id_ed25519')!r}).read_text()"]
        calls = [{"name": "python", "arguments": {"code": code}} for code in codes]
        sent = [message(0, "initialize", **opening)]
        sent += [message(number, "tools/call", **call) for number, call in enumerate(calls, 1)]
        command = [sys.executable, "-m", "gateway", "sandbox", "learn", "--write", str(tmp_path / "learnt.json")]
        with subprocess.Popen(
            [*command, "--", sys.executable, EVALUATING],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        ) as learning:  # fmt: skip
            assert learning.stdin is not None and learning.stdout is not None
            learning.stdin.write("\n".join(sent) + "\n")
            learning.stdin.flush()
            answers: dict[int, Any] = {}
            while len(answers) < len(sent):  # the server has notifications as well
                answer = json.loads(learning.stdout.readline())
                answers |= {answer["id"]: answer} if "id" in answer else {}
            _, told = learning.communicate(timeout=30)
        assert learning.returncode == 0, told
        assert "key" in json.dumps(answers[len(codes)]), "everything is open while it is learnt"
        table = json.loads((tmp_path / "learnt.json").read_text())
        assert table == {
            "profile": "strict",
            "read": [str(tmp_path / "data/in")],
            "write": [str(tmp_path / "out")],
            "reach": [f"localhost:{port}"],
        }
        with_earlier = {"profile": "strict", "read": ["/srv/earlier", str(tmp_path / "data/in")]}
        (tmp_path / "learnt.json").write_text(json.dumps(with_earlier))
        subprocess.run([*command, "--", "true"], check=True, stdin=subprocess.DEVNULL, capture_output=True, cwd=ROOT)
        assert json.loads((tmp_path / "learnt.json").read_text()) == with_earlier, "runs add up"
        assert f"DANGER: it reads {tmp_path}/.ssh/id_ed25519" in told and '"sandbox": {' in told
        (tmp_path / "out/new").unlink()
        with in_process_gateway({"learnt": {**BOX, "sandbox": table}, "bare": {**BOX, "sandbox": "strict"}}) as gateway:
            client = Legacy(gateway.url, http).open()
            assert {asked(client, code, "bare") for code in work} <= {*CLOSED}
            assert [asked(client, code, "learnt") for code in work] == list(work.values())
            assert asked(client, codes[-1], "learnt") in CLOSED


@requirement("box.hosted")
def test_hosted_gives_each_server_the_sandbox_that_its_readme_says(tmp_path: Path) -> None:
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for name in ("npx", "uvx"):
        (tmp_path / name).touch(mode=0o755)
    config = str(ROOT / "examples/hosted/mcp.json")

    def told(*arguments: str) -> str:
        env = {**os.environ, "PATH": path}
        done = run_command(*arguments, "--config", config, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "ok (files, git, fetch, browser)" in told("check", "--offline")
    found = {}
    for name in ("files", "git", "fetch", "browser"):
        [found[name]] = json.loads(told("sandbox", "explain", name, "--json"))["sandboxes"]
    assert {name: one["profile"] for name, one in found.items()} == {
        **dict.fromkeys(("files", "git"), "strict"),
        **dict.fromkeys(("fetch", "browser"), "standard"),
    }
    assert [one["required"] for one in found.values()] == [False, False, True, True]
    assert found["files"]["own"] == ["HOME", "TMPDIR", "cwd"] and found["browser"]["limits"]["memory_mb"] == 6_144
    for name, one in found.items():
        assert all(written.startswith("/dev/") for written in one["write"]), name
        assert not one["reach"]["hosts"] and one["reach"]["public"] is (name in ("fetch", "browser"))


# -- what sandboxes refuse is shown to operators


OPERATOR = bearer("operator-key-of-the-tests")
TOLD = (
    "server 'strict' was refused 10.0.0.5:443 (a private address); to allow it: sandbox.reach = [\"10.0.0.5:443\"]",
    "server 'strict' was refused name.example.test (not listed); to allow it: sandbox.reach = [\"name.example.test\"]",
)


@pytest.mark.skipif(bool(probe().gate), reason=f"nothing of the network is refused here: {probe().gate}")
@requirement("box.refusals-seen", "box.network", "box.names", "box.files-seen")
def test_what_is_refused_is_an_error_a_log_line_an_event_a_metric_and_on_the_page_of_the_session(
    http: httpx.Client,
) -> None:
    options = {"admin": {"keys": {"olga": sha256("operator-key-of-the-tests")}}}
    with create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        servers = {
            "strict": {**BOX, "sandbox": {"profile": "strict", "reach": [f"localhost:{port}"]}},
            "seen": {**BOX, "sandbox": {"profile": "strict", "watch": True}},
        }
        with in_process_gateway(servers, options=options) as gateway:
            client, other = (Legacy(gateway.url, http).open(name=name) for name in ("reaching-agent", "honest-agent"))

            def connects(host: str, port: int) -> str:
                return asked(client, f"socket.create_connection(({host!r}, {port}), 5).close()", "strict")

            def get(path: str) -> httpx.Response:
                answer = http.get(f"{gateway.base}/{path}", headers=OPERATOR)
                assert answer.status_code == 200, answer.text
                return answer

            def shown(name: str) -> Any:
                [row] = get(f"admin/api/sessions?q={name}").json()["sessions"]
                return get(f"admin/api/sessions/{row['session']}").json()

            def refused(name: str, part: str) -> list[Any]:
                """A machine's libraries may try more than the program: a name service, for example."""
                return [row for row in shown(name)["refused"] if part in row["what"]]

            def told() -> set[str]:
                events = get(f"admin/api/events?session={shown('reaching-agent')['session']}").json()
                return {event["reason"] for event in events if event["event"] == "blocked"}

            asked(other, "1", "strict")
            assert connects("127.0.0.1", port) == connects("localhost", port) == "None"
            assert [connects("10.0.0.5", 443) for _ in range(3)] == ["PermissionError"] * 3
            own_port = int(gateway.base.rpartition(":")[2])
            assert connects("127.0.0.1", own_port) == "PermissionError"
            assert connects("name.example.test", 443) == "gaierror"
            assert eventually(lambda: {*TOLD} <= told() and len(told()) >= 3), told()
            assert any(f"127.0.0.1:{own_port} (" in reason for reason in told())
            assert gateway.stderr().count("10.0.0.5:443 (a private address)") == 1
            assert 'mcp_gateway_sandbox_refusals_total{kind="connect"}' in get("metrics").text
            assert eventually(lambda: [row["count"] for row in refused("reaching-agent", "10.0.0.5")] == [3])
            [row] = refused("reaching-agent", "10.0.0.5")
            assert (row["server"], row["kind"], row["what"]) == ("strict", "connect", "10.0.0.5:443")
            assert row["why"] == "a private address" and row["allows"] == 'sandbox.reach = ["10.0.0.5:443"]'
            assert refused("honest-agent", "10.0.0.5") == []
            page = get(f"admin/sessions/{shown('reaching-agent')['session']}").text
            assert "Refused by sandboxes" in page and "sandbox.reach = [&#34;10.0.0.5:443&#34;]" in page
            assert asked(client, "Path('/etc/shadow').read_text()", "seen") == "PermissionError"
            assert asked(client, "Path('/etc/gshadow').read_text()", "strict") == "PermissionError"
            files = [("/etc/shadow", 'sandbox.read = ["/etc/shadow"]')]
            assert eventually(lambda: [(r["what"], r["allows"]) for r in refused("reaching-agent", "shadow")] == files)


@requirement("box.own-folder", "proc.warm")
def test_servers_of_a_session_share_its_folder_if_home_is_there_also_in_prestarted_processes(
    http: httpx.Client,
) -> None:
    entry = {**BOX, "cwd": "~", "sandbox": "strict", "warm": 1}
    shared = {**entry, "context_env": {"HOME": "temp_dir"}}
    with in_process_gateway({"one": shared, "two": shared, "own": entry}) as gateway:
        for _ in range(2):  # the second session has the prestarted processes
            client = Legacy(gateway.url, http).open()
            assert asked(client, "Path('note').write_text('x')", "one") == "1"
            assert asked(client, "os.listdir()", "two") == "['note']"
            assert asked(client, "os.listdir()", "own") == "[]"
            home = asked(client, "os.getcwd()", "one")
            assert asked(client, "os.environ['HOME']", "two") == home
            assert asked(client, f"os.listdir({home!r})", "own") in CLOSED
            assert eventually(lambda: len(evaluating()) >= 6), "the next session's are there"


def evaluating() -> list[int]:
    return [child.pid for child in descendants(os.getpid()) if EVALUATING in child.cmdline()]
