"""Configurations and stores as an operator meets them: what is read, what refuses to start, and what commands say."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from session_store.session import redact
from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.gateway_process import DEMO, ROOT, SIGNED, running_gateway, server
from tests.support.mcp_clients import Legacy
from tests.support.redis_server import RunningRedis

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
    servers = {"a": {"command": "python server.py"}, "b": {"command": "x", "arg": ["y"], "env": {"T": "${UNSET_1}"}}}
    document = {"gatway": {"port": 1}, "mcpServers": servers}
    config = tmp_path / "mcp.json"
    for arguments, code in ((("check", "--offline"), 2), (("doctor",), 1), (("run",), 2)):
        found, words = ran(tmp_path, document, *arguments, MCP_GATEWAY_PROT="1")
        assert found == code, words
        for fault in (
            f"{config}: gatway: no such key; did you mean gateway?",
            f"{config}: mcpServers.a.command: must be the program alone: write 'python' here, and what follows it as a "
            "list in args",
            f"{config}: mcpServers.b.arg: no such field; did you mean args?",
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
    found, words = ran(tmp_path, document, "check", MCP_GATEWAY_SERVICE_HOST="10.0.0.1")
    assert found == 0 and "mcp.json: ok (demo)" in words and all(line in words for line in told), words
    found, words = ran(tmp_path, document, "check", "--json", "--offline", MCP_GATEWAY_SERVICE_HOST="10.0.0.1")
    answer = json.loads(words)
    assert answer["good"] and answer["servers"] == ["demo"] and answer["unanswered"] == []
    assert [len(answer["warnings"]), len(answer["ignored"])] == [2, 3]
    found, words = ran(tmp_path, document, "doctor", MCP_GATEWAY_SERVICE_HOST="10.0.0.1")
    assert all(line in words for line in told), words


@requirement("ops.check")
def test_check_says_ok_only_of_servers_that_answered(tmp_path: Path) -> None:
    document = {"mcpServers": {"demo": DEMO_ENTRY, "broken": {"command": "/does/not/exist"}}}
    found, words = ran(tmp_path, document, "check")
    assert found == 0 and ": ok" not in words
    assert "mcp.json: valid (demo, broken), but without an answer from broken" in words
    assert "its lists were not checked" in words and "No such file or directory" in words, "and why"
    found, words = ran(tmp_path, document, "check", "--json")
    told = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert found == 0 and json.loads(words)["unanswered"] == ["broken"]
    assert "exit status is 0 if the file is valid, even if servers did not answer (`unanswered` in `--json`" in told
    found, words = ran(tmp_path, document, "check", "--offline")
    assert found == 0 and "ok (demo, broken); no server was started or contacted" in words


@requirement("ops.check")
def test_a_target_that_does_not_import_is_told_with_both_files(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import nothing_like_it\n", encoding="utf-8")
    document = {"mcpServers": {"mine": {"in_process": "mine:app"}}}
    for arguments, code in ((("check", "--offline"), 2), (("run", "--port", "0"), 2), (("doctor",), 1)):
        found, words = ran(tmp_path, document, *arguments)
        assert found == code, words
        assert f"{tmp_path / 'mcp.json'}: mcpServers.mine.in_process: mine:app: ModuleNotFoundError" in words, words
        assert f"({tmp_path / 'mine.py'}, line 1)" in words, words


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


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////no/such/folder/x.db", "x.db"),
        ("memory://", "in the gateway's memory"),
        ("mysql://x", "unknown kind"),
    ],
)
def test_the_command_line_says_why_it_cannot_look(url: str, words: str, cli: Any) -> None:
    ran = cli("list", store=url)
    assert ran.returncode == 2 and words in ran.stderr and "Traceback" not in ran.stderr


def test_a_file_that_is_no_store_of_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but somebody's notes " * 100)
    before = path.read_bytes()
    assert "cannot be used as a session store" in refused("run", "--store", f"sqlite:///{path}", "--", "true")
    assert path.read_bytes() == before


@requirement("life.default-only", "ops.redact")
def test_the_command_line_pages_and_never_guesses(tmp_path: Path, http: httpx.Client, cli: Any) -> None:
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    with running_gateway({"demo": server(DEMO)}, options={"store": store}) as gateway:
        ids = sorted(Legacy(gateway.url, http).open().session.partition(".")[0] for _ in range(5))
        assert "no session is live" not in cli("show", store=store).stderr
        several = cli("end", store=store)
        assert several.returncode == 2 and "more characters" in several.stderr
        assert all(redact(session_id) in several.stderr for session_id in ids)
        first = json.loads(cli("list", "--json", "--limit", "3", store=store).stdout)
        rest = json.loads(cli("list", "--json", "--limit", "3", "--after", first["after"], store=store).stdout)
        assert [s["session"] for s in first["sessions"] + rest["sessions"]] == [redact(i) for i in ids]
        assert rest["after"] is None
        shown = cli("show", ids[0][:8], "--json", store=store)
        assert json.loads(shown.stdout)["upstreams"] == [] and ids[0] not in shown.stdout
        assert cli("show", "xx", store=store).returncode == 2
        for session_id in ids:
            assert cli("end", session_id[:8], store=store).returncode == 0
        assert "no session is live" in cli("show", store=store).stderr
        text = cli("list", store=store).stdout + gateway.stderr()
        assert not any(session_id in text for session_id in ids)
