"""A process reads the token of its session's principal in a file of its own, which is current while it runs."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_consent import OPERATOR, URLS, unpooled
from tests.e2e.test_consent import settings as consent_settings
from tests.e2e.test_limits import bubblewrap, can_unshare
from tests.e2e.test_token_exchange import AUDIENCE, subject_of
from tests.e2e.test_token_exchange import settings as exchange_settings
from tests.requirements import requirement
from tests.support.consenting_server import ConsentingServer, Person, consenting_server
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import PROBE, TASKS
from tests.support.gateway_process import server as command
from tests.support.in_process_gateway import in_process_gateway
from tests.support.issuer import Issuer, running_issuer
from tests.support.mcp_clients import Legacy, error_of, tool_text
from tests.support.waiting import eventually
from transports.upstream.walls.kernel_support import probe

READ = "open(os.environ['TOKEN_FILE']).read()"
LONG = f"""[first := {READ}, next(
    now for _ in range(1200) if (__import__('time').sleep(0.05), now := {READ})[1] != first
)]"""
"""A call that ends once its process has read another token than at first."""
GONE = """os.write(2, b'waits for the end\\n') and [
    __import__('time').sleep(0.05) for _ in range(1200) if os.path.exists(os.environ['TOKEN_FILE'])
] and 'gone'"""
CLOSED = ("PermissionError", "FileNotFoundError")
SERVERS = {
    "local": command(PROBE, env={"TOKEN_FILE": "${secret_file:files}"}),
    "other": command(PROBE),
}


@pytest.fixture
def own_issuer() -> Iterator[Issuer]:
    """An issuer that exchanges tokens for ones of two seconds."""
    with running_issuer() as issuer:
        issuer.lives_s = 2
        yield issuer


@pytest.fixture
def server() -> Iterator[ConsentingServer]:
    """An authorization server at which people consent to tokens of two seconds."""
    with consenting_server() as running:
        running.lives_s = 2
        yield running


def asked(client: Any, code: str, server: str = "local") -> str:
    return tool_text(client.tool(f"{server}__python", {"code": code}))


def long_call(client: Any) -> list[str]:
    """The two tokens that a process has read during one call."""
    found: list[str] = json.loads(asked(client, f"__import__('json').dumps({LONG})"))
    return found


@pytest.mark.skipif(not probe().landlock, reason="this kernel has no Landlock, so it has no sandbox")
@requirement("cred.refresh", "ops.redact")
def test_a_long_call_reads_a_new_token_of_its_own_person(own_issuer: Issuer, tmp_path: Path) -> None:
    people = {name: own_issuer.token(name) for name in ("ada", "ben")}
    options = exchange_settings(own_issuer, tmp_path, log_level="debug")
    seen: dict[str, list[str]] = {name: [] for name in people}
    with in_process_gateway(SERVERS, options=options) as gateway:

        def work(name: str) -> list[str]:
            with httpx.Client(timeout=120) as own:
                client = Legacy(gateway.url, own, headers=bearer(people[name])).open()
                process, path = asked(client, "os.getpid()"), asked(client, "os.environ['TOKEN_FILE']")
                for _ in range(2):
                    seen[name] += long_call(client)
                    asked(client, f"os.write(2, ({READ} + chr(10)).encode())")
                calls = time.monotonic() + 3
                while time.monotonic() < calls:
                    seen[name].append(asked(client, READ))
                assert asked(client, "os.getpid()") == process, "it is the same process"
                assert Path(path).stat().st_mode & 0o777 == 0o600
                assert Path(path).parent.stat().st_mode & 0o777 == 0o700
                for there in (path, os.path.dirname(path)):
                    read = f"Path({there!r}).read_text() if Path({there!r}).is_file() else os.listdir({there!r})"
                    assert asked(client, read, "other") in CLOSED, "another server of the session"
                write = f"Path({path!r}).with_name('link').symlink_to('/etc/hostname')"
                assert asked(client, write) in ("PermissionError", "OSError")
                return [path, client.session or ""]

        with ThreadPoolExecutor(2) as pool:
            (path, session), (other_path, _) = pool.map(work, people)
        with httpx.Client(timeout=60) as own:
            client = Legacy(gateway.url, own, headers=bearer(people["ada"]))
            client.session = session
            assert asked(client, f"Path({other_path!r}).read_text()") in CLOSED, "another session"
            strong = own_issuer.token("ada", scope="mcp admin")
            client.headers = bearer(strong)
            now = asked(client, "os.environ['TOKEN_FILE']")
            assert now != path and not Path(path).exists(), "other rights have a process and a file of their own"
            client.delete()
            assert eventually(lambda: not Path(now).parent.exists())
        told = gateway.stderr()
    for name, tokens in seen.items():
        assert {subject_of(token) for token in tokens} == {(name, AUDIENCE)} and len(set(tokens)) >= 3
        assert not any(token in told for token in tokens)


@requirement("cred.refresh", "ops.redact")
def test_a_token_that_was_consented_to_is_renewed_and_ends_when_it_is_revoked(
    server: ConsentingServer, http: httpx.Client
) -> None:
    options = consent_settings(server, log_level="debug")
    people = {"alice": "ada", "bob": "ben"}
    strict = {"local": {**SERVERS["local"], "sandbox": "strict"}}
    with in_process_gateway(strict, options=options) as gateway:
        clients = {}
        for who, account in people.items():
            url = f"{gateway.base}/servers/local/mcp"
            clients[who] = Legacy(url, unpooled(), headers=bearer(KEYS[who])).open(capabilities=URLS)
            asked_for = error_of(clients[who].tool("python", {"code": READ}))["data"]["elicitations"][0]["url"]
            assert Person(account, KEYS[who]).connect(asked_for).status_code == 200

        def call(who: str, code: str) -> str:
            return tool_text(clients[who].tool("python", {"code": code}))

        def work(who: str) -> None:
            process = call(who, "os.getpid()")
            for _ in range(2):
                first, second = json.loads(call(who, f"__import__('json').dumps({LONG})"))
                assert first != second
                assert server.access[first].subject == server.access[second].subject == people[who]
                call(who, f"os.write(2, ({READ} + chr(10)).encode())")
            assert call(who, "os.getpid()") == process

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, people))
            ends = pool.submit(call, "alice", GONE)
            assert eventually(lambda: "waits for the end" in gateway.stderr())
            process = call("alice", "os.getpid()")
            admin, key = f"{gateway.base}/admin/api/credentials", bearer(OPERATOR)
            revoked = http.delete(admin, params={"principal": "api-key:alice"}, headers=key)
            assert revoked.json() == {"revoked": 1} and ends.result(60) == "gone", "in the middle of a call"
        error = error_of(clients["alice"].tool("python", {"code": READ}))
        assert (error["code"], error["data"]["reason"]) == (-32042, "consent_needed")
        assert server.access[call("bob", READ)].subject == "ben"
        again = Person("ada", KEYS["alice"]).connect(error["data"]["elicitations"][0]["url"])
        assert again.status_code == 200 and server.access[call("alice", READ)].subject == "ada"
        assert call("alice", "os.getpid()") == process
        told = gateway.stderr()
    assert not any(token in told for token in (*server.access, *server.refresh))


@requirement("cred.refresh")
def test_a_task_of_a_process_ends_with_its_result_although_there_is_no_token_meanwhile(
    own_issuer: Issuer, http: httpx.Client, tmp_path: Path
) -> None:
    token, own_issuer.lives_s = own_issuer.token("ada"), 1
    servers = {"local": command((*TASKS, "modern"), env=SERVERS["local"]["env"])}
    with (
        in_process_gateway(servers, options=exchange_settings(own_issuer, tmp_path)) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        client = Legacy(f"{gateway.base}/servers/local/mcp", http, headers=bearer(token)).open()
        before = len(own_issuer.exchanged)
        call = pool.submit(client.tool, "work", {"for_s": 5.0})
        # The first may be for the call itself, which needs one. The second is made while the process works.
        assert eventually(lambda: len(own_issuer.exchanged) >= before + 2)
        own_issuer.revoked.add(token)
        given = len(own_issuer.exchanged)
        assert tool_text(call.result(60)) == "work is done"
        assert len(own_issuer.exchanged) > given, "a token was refused while the process worked"


@requirement("cred.refresh", "pol.sandbox")
def test_a_launcher_shows_the_folder_to_the_process_of_its_session_alone(own_issuer: Issuer, tmp_path: Path) -> None:
    if not can_unshare():
        pytest.skip("this kernel lets nobody make namespaces, so no sandbox of this kind can run here")
    launcher = bubblewrap()
    shown = [*launcher[:-1], "--ro-bind", "{secret_dir}", "{secret_dir}", "--"]
    entry = {**SERVERS["local"], "sandbox": {"launcher": shown}}
    with (
        in_process_gateway({"local": entry}, options=exchange_settings(own_issuer, tmp_path)) as gateway,
        httpx.Client(timeout=120) as one,
        httpx.Client(timeout=120) as other,
    ):
        ada, ben = (
            Legacy(f"{gateway.base}/servers/local/mcp", http, headers=bearer(own_issuer.token(name))).open()
            for http, name in ((one, "ada"), (other, "ben"))
        )
        paths = [tool_text(client.tool("python", {"code": "os.environ['TOKEN_FILE']"})) for client in (ada, ben)]
        first, second = json.loads(tool_text(ada.tool("python", {"code": f"__import__('json').dumps({LONG})"})))
        assert first != second and subject_of(first) == subject_of(second) == ("ada", AUDIENCE)
        assert tool_text(ada.tool("python", {"code": f"open({paths[1]!r}).read()"})) == "FileNotFoundError"
        assert subject_of(tool_text(ben.tool("python", {"code": READ}))) == ("ben", AUDIENCE)
