"""Stores as an operator meets them: what starts, what refuses to, and what the command line shows."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from session_store.session import redact
from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.gateway_process import DEMO, running_gateway, server
from tests.support.mcp_clients import Legacy
from tests.support.redis_server import RunningRedis

KEYS = {"MCP_GATEWAY_KEYS": "k" * 40}


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
    told = refused("run", "--port", "0", "--store", url, "--", "true", **KEYS)
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
    for keys in ({}, KEYS):
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
