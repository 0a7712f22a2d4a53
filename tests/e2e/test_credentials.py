"""Secrets of principals: each in its own server, and nowhere else, and servers that answer nobody without one."""

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gateway.config.secrets import SecretSettings
from gateway.context.principal_secrets import PrincipalSecrets
from session_store import Principal
from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import API_KEYS, KEYS, bearer, sha256
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, PROBE, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.issuer import Issuer, running_issuer
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text
from tests.support.scripted_http_server import (
    Reply,
    Seen,
    discovered,
    result_of,
    running_http_probe,
    running_scripted_server,
)

WORDS = {"alice": "alices-very-secret-word", "bob": "bobs-very-secret-word"}


@requirement("ctx.credentials", "ops.redact")
def test_each_principal_has_its_own_and_nobody_else_sees_it(http: httpx.Client, tmp_path: Path) -> None:
    for name, word in WORDS.items():
        (tmp_path / name).write_text(word + "\n")
    echo = "import sys; print({'alice': 'from-a-command'}.get(sys.argv[1], ''))"
    database = tmp_path / "sessions.db"
    with running_http_probe() as remote:
        servers = {
            "local": server(PROBE, env={"TOKEN": "Bearer ${secret:word}", "PLAIN": "plain"}),
            "remote": {"url": remote.url, "headers": {"X-Token": "${secret:made}", "X-Team": "blue"}},
        }
        options = {
            "store": f"sqlite:///{database}",
            "api_keys": API_KEYS,
            "secrets": {
                "word": {"file": str(tmp_path / "{subject}")},
                "made": {"command": [sys.executable, "-c", echo, "{subject}"]},
            },
            "log_level": "debug",
        }
        with in_process_gateway(servers, options=options) as gateway:
            for name, word in WORDS.items():
                client = Legacy(f"{gateway.base}/servers/local/mcp", http, headers=bearer(KEYS[name])).open()
                env = json.loads(tool_text(client.tool("env")))
                assert env["TOKEN"] == f"Bearer {word}" and env["PLAIN"] == "plain"
            alice, bob, other = (
                Legacy(f"{gateway.base}/servers/remote/mcp", http, headers=bearer(KEYS[name]))
                for name in ("alice", "bob", "alice-new")
            )
            alice.open()
            assert tool_text(alice.tool("count")) == "1"
            assert remote.headers[-1]["x-token"] == "from-a-command" and remote.headers[-1]["x-team"] == "blue"
            for client in (bob, other):
                error = messages(client.initialize())[-1]["error"]
                assert error["code"] == -32013 and "no credential 'made'" in error["message"]
            told = gateway.stderr() + database.read_bytes().decode("latin-1")
            assert not any(word in told for word in (*WORDS.values(), "from-a-command"))


@requirement("ctx.credentials")
def test_a_subject_that_is_no_name_reaches_nothing(issuer: Issuer, http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "outside").write_text("not for you")
    options = {
        "auth": issuer.settings(),
        "secrets": {"word": {"file": str(tmp_path / "own" / "{subject}")}},
    }
    servers = {"local": server(PROBE, env={"TOKEN": "${secret:word}"})}
    with in_process_gateway(servers, options=options) as gateway:
        for subject in ("../outside", "..", "a/../../outside", "", "x" * 200, "nobody", "-word", "@word"):
            answer = Modern(gateway.url, http, headers=bearer(issuer.token(subject))).tool("env")
            assert "error" in messages(answer)[-1] and "not for you" not in answer.text, subject


@requirement("wall.secrets")
def test_a_name_vouched_for_by_another_issuer_is_another_principal(
    issuer: Issuer, http: httpx.Client, tmp_path: Path
) -> None:
    (tmp_path / "alice").write_text("the-issuers-alice")
    (tmp_path / "api-key").mkdir()
    (tmp_path / "api-key" / "alice").write_text("the-keys-alice")
    print_own = [sys.executable, "-c", "import sys; print(' '.join(sys.argv[1:]))", "{issuer}", "{subject}"]
    with running_issuer() as other:
        jwt = [*issuer.settings()["jwt"], *other.settings()["jwt"]]
        options = {
            "auth": {"resource": issuer.settings()["resource"], "jwt": jwt},
            "api_keys": {"alice": sha256(KEYS["alice"])},
            "secrets": {
                "own": {"file": str(tmp_path / "{subject}"), "issuer": issuer.url},
                "each": {"file": str(tmp_path / "{issuer}" / "{subject}")},
                "made": {"command": print_own},
            },
        }
        servers = {name: server(PROBE, env={"TOKEN": f"${{secret:{name}}}"}) for name in ("own", "each", "made")}
        with in_process_gateway(servers, options=options) as gateway:

            def found(name: str, credential: str) -> str:
                url = f"{gateway.base}/servers/{name}/mcp"
                answer = messages(Modern(url, http, headers=bearer(credential)).tool("env", {"prefix": "TOKEN"}))[-1]
                if "error" in answer:
                    assert "no credential" in answer["error"]["message"]
                    return ""
                return str(json.loads(answer["result"]["content"][0]["text"])["TOKEN"])

            hers, theirs, key = issuer.token("alice"), other.token("alice"), KEYS["alice"]
            assert [found("own", who) for who in (hers, theirs, key)] == ["the-issuers-alice", "", ""]

            assert [found("each", who) for who in (hers, theirs, key)] == ["", "", "the-keys-alice"]
            encoded = [quote(url, safe="") for url in (issuer.url, other.url)]
            made = [found("made", who) for who in (hers, theirs, key)]
            assert made == [f"{encoded[0]} alice", f"{encoded[1]} alice", "api-key alice"]
            assert found("made", issuer.token("--help")) == "", "an option is no name"


# -- servers behind URLs that answer no request without a credential, so that only sessions can ask them anything


def modern_only(seen: Seen) -> Reply:
    """Answers 401 to whoever has no valid token, and has a tool of its own for each user."""
    whose = seen.headers.get("authorization", "").removeprefix("Bearer token-of-")
    if whose not in ("alice", "bob"):
        return Reply(status=401, headers={"www-authenticate": "Bearer"})
    if "mcp-method" not in seen.headers:
        error = {"code": -32601, "message": "Method not found"}
        return Reply(status=404, body={"jsonrpc": "2.0", "id": (seen.body or {}).get("id"), "error": error})
    results: dict[str, Any] = {
        "server/discover": {**discovered(), "instructions": f"Instructions for {whose}"},
        "tools/list": {"tools": [{"name": f"tool_of_{whose}", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": f"{whose} called"}]},
    }
    hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    return Reply(body=result_of(seen, {**hints, **results[seen.body["method"]]}))


@requirement("up.era-credentials", "ctx.credentials", "spec.bridge")
@pytest.mark.parametrize("first", [Legacy, Modern])
def test_a_server_that_refuses_the_gateway_itself_serves_users_with_credentials(
    tmp_path: Path, http: httpx.Client, first: Any
) -> None:
    """The first user of either era has the gateway learn what the server is, for the others as well."""
    tokens = {"alice": "token-of-alice", "bob": "token-of-bob", "alice-new": "revoked"}
    for name, token in tokens.items():
        (tmp_path / name).write_text(token)
    options = {
        "api_keys": API_KEYS,
        "secrets": {"token": {"file": str(tmp_path / "{subject}")}},
    }
    with running_scripted_server(modern_only) as remote:
        entry = {"url": remote.url, "headers": {"Authorization": "Bearer ${secret:token}"}}
        with in_process_gateway({"new": entry}, options=options) as gateway:
            refused = Modern(gateway.url, http, headers=bearer(KEYS["alice-new"])).send("tools/list")
            assert "server 'new' answered 401 Unauthorized" in messages(refused)[-1]["error"]["message"]
            other: Any = Modern if first is Legacy else Legacy
            calls: list[tuple[str, Any]] = [("alice", first), ("bob", other), ("alice", other)]
            for name, kind in calls:
                client = kind(gateway.url, http, headers=bearer(KEYS[name]))
                shaken = client.initialize().text if kind is Legacy else client.send("server/discover").text
                assert "Instructions for" not in shaken, "they are for whoever has asked"
                listed = client.call("tools/list") if kind is Legacy else client.send("tools/list")
                assert [tool["name"] for tool in messages(listed)[-1]["result"]["tools"]] == [f"tool_of_{name}"]
                assert tool_text(client.tool(f"tool_of_{name}")) == f"{name} called"
            assert not any(token in gateway.stderr() for token in tokens.values())
        asked = {seen.headers.get("authorization") for seen in remote.posted("server/discover")}
        assert asked == {None, "Bearer revoked", "Bearer token-of-alice"}, "what she has learned counts for bob"


# -- keys and passwords out of files


KEY = "k" * 40


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    return path


@requirement("wall.secrets", "ops.config")
def test_the_doctor_looks_at_the_files_modes(secret: Path, tmp_path: Path) -> None:
    secret.write_text(KEY, encoding="utf-8")
    config = tmp_path / "mcp.json"
    given = {"gateway": {"port": free_port()}, "mcpServers": {"demo": server(DEMO)}}
    config.write_text(json.dumps(given), encoding="utf-8")
    env = {**os.environ, "MCP_GATEWAY_KEYS_FILE": str(secret)}
    for mode, is_told in ((0o600, False), (0o644, True)):
        secret.chmod(mode)
        ran = run_command("doctor", "--json", "--config", str(config), env=env)
        assert ("secrets" in [one["check"] for one in json.loads(ran.stdout)]) is is_told, ran.stdout


@requirement("wall.secrets", "ctx.credentials")
async def test_a_command_that_prints_a_secret_is_given_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_GATEWAY_KEYS", KEY)
    monkeypatch.setenv("CLOUD_SECRET", "cloud")
    program = "import json, os; print(json.dumps(sorted(os.environ)))"
    command = (sys.executable, "-c", program)
    alice = Principal(issuer="api-key", subject="alice")
    credentials = PrincipalSecrets({"word": SecretSettings(command=command)}, ())
    given = (await credentials.current({"T": "${secret:word}"}, alice)).values
    names = set(json.loads(given["T"]))
    assert "PATH" in names and not names & {"MCP_GATEWAY_KEYS", "CLOUD_SECRET"}
