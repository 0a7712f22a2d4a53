"""Secrets of principals: each in its own server, and nowhere else."""

import json
import sys
from pathlib import Path

import httpx
import pytest

from gateway.settings import ConfigurationError, load_settings
from tests.e2e.conftest import KEYS, bearer, sha256
from tests.requirements import requirement
from tests.support.http_probe import running_http_probe
from tests.support.issuer import running_issuer
from tests.support.raw import Legacy, Modern, messages, tool_text
from tests.support.running import PROBE, running_gateway, server

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
        with running_gateway(servers, options=options) as gateway:
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
def test_a_subject_that_is_no_name_reaches_nothing(http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "outside").write_text("not for you")
    with running_issuer() as issuer:
        options = {
            "auth": issuer.settings(),
            "secrets": {"word": {"file": str(tmp_path / "own" / "{subject}")}},
        }
        servers = {"local": server(PROBE, env={"TOKEN": "${secret:word}"})}
        with running_gateway(servers, options=options) as gateway:
            for subject in ("../outside", "..", "a/../../outside", "", "x" * 200, "nobody"):
                answer = Modern(gateway.url, http, headers=bearer(issuer.token(subject))).tool("env")
                assert "error" in messages(answer)[-1] and "not for you" not in answer.text, subject


@requirement("ctx.credentials", "ops.config")
def test_what_cannot_be_is_said_at_start(tmp_path: Path) -> None:
    secret = {"word": {"env": "WORD"}}
    for entry, secrets, words in (
        ({"command": "x", "env": {"T": "${secret:word}"}}, {}, "says nothing of 'word'"),
        ({"command": "x", "shared": True, "env": {"T": "${secret:word}"}}, secret, "a shared server gets no secrets"),
        ({"command": "x"}, {"word": {}}, "give one of file, env and command"),
    ):
        config = tmp_path / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"a": entry}, "gateway": {"secrets": secrets}}))
        with pytest.raises(ConfigurationError, match=words):
            load_settings(config)
