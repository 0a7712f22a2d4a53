"""Secrets of principals: each in its own server, and nowhere else."""

import json
import sys
from pathlib import Path
from urllib.parse import quote

import httpx

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import PROBE, server
from tests.support.http_probe_server import running_http_probe
from tests.support.in_process_gateway import in_process_gateway
from tests.support.issuer import Issuer, running_issuer
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text

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
            "api_keys": {name: sha256(key) for name, key in KEYS.items()},
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
                "team": {"file": str(tmp_path / "alice"), "issuer": issuer.url},
                "each": {"file": str(tmp_path / "{issuer}" / "{subject}")},
                "made": {"command": print_own},
            },
        }
        servers = {
            name: server(PROBE, env={"TOKEN": f"${{secret:{name}}}"}) for name in ("own", "team", "each", "made")
        }
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
            assert [found("team", who) for who in (hers, theirs, key)] == ["the-issuers-alice", "", ""]
            assert [found("each", who) for who in (hers, theirs, key)] == ["", "", "the-keys-alice"]
            encoded = [quote(url, safe="") for url in (issuer.url, other.url)]
            made = [found("made", who) for who in (hers, theirs, key)]
            assert made == [f"{encoded[0]} alice", f"{encoded[1]} alice", "api-key alice"]
            assert found("made", issuer.token("--help")) == "", "an option is no name"
