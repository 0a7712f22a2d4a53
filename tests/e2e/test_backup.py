"""The commands of docs/backup.md bring sessions back, and what is lost without the keys is what it says."""

import os
import subprocess
import sys
from pathlib import Path

import httpx

from tests.requirements import requirement
from tests.support.commands import ROOT
from tests.support.credentials import bearer, sha256
from tests.support.document_blocks import blocks
from tests.support.gateway_process import SIGNED, RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy, Modern, tool_text
from tests.support.redis_server import RunningRedis, settled
from tests.tools.programs import program

BACK_UP, VERIFY, RESTORE, BACK_UP_REDIS, WRITE_ANEW = (
    block.text for block in blocks("sh") if block.note == "elsewhere: tests/e2e/test_backup.py"
)
KEYED = {**bearer("bob"), "MCP-Gateway-Session-Key": "bobs"}


def run(commands: str, folder: Path) -> str:
    found = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euc", commands], cwd=folder, check=True, timeout=60, env=found, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def options(store: str) -> dict[str, object]:
    return {"store": store, "api_keys": {name: sha256(name) for name in ("alice", "bob")}}


def two_clients(gateway: RunningGateway, http: httpx.Client) -> tuple[Legacy, Modern]:
    """One that has a token, and one that has a session key. Both have stored something."""
    one, other = Legacy(gateway.url, http, headers=bearer("alice")).open(), Modern(gateway.url, http, headers=KEYED)
    for client in (one, other):
        assert tool_text(client.tool("remember", {"key": "k", "value": "before"})) == "Remembered."
    return one, other


@requirement("ops.backup")
def test_a_file_is_restored_with_its_keys(tmp_path: Path, http: httpx.Client) -> None:
    chosen = options(f"sqlite:///{tmp_path}/sessions.db")
    with running_gateway(options=chosen, must_stop=False) as gateway:
        one, other = two_clients(gateway, http)
        run(BACK_UP, tmp_path)
        listed = run(VERIFY.replace("mcp-session-gateway", f"'{sys.executable}' -m gateway"), tmp_path)
        assert "api-key:alice" in listed and "api-key:bob" in listed
        assert {file.name for file in tmp_path.glob("backup.*")} == {"backup.db", "backup.db.keys"}
        one.tool("remember", {"key": "k", "value": "after"})
        gateway.kill()  # leaves changes in sessions.db-wal
    assert (tmp_path / "backup.db").stat().st_mode & 0o077 == 0
    (tmp_path / "sessions.db").write_bytes(b"broken")
    (tmp_path / "sessions.db.keys").unlink()
    run(RESTORE, tmp_path)
    with running_gateway(options=chosen) as gateway:
        one.url = other.url = gateway.url
        assert [tool_text(client.tool("recall", {"key": "k"})) for client in (one, other)] == ["before", "before"]
    (tmp_path / "sessions.db.keys").unlink()
    with running_gateway(options=chosen) as gateway:
        one.url = other.url = gateway.url
        assert one.tool("recall", {"key": "k"}).status_code == 404, "the token is signed with a lost key"
        assert tool_text(other.tool("recall", {"key": "k"})) == "before"


@requirement("ops.backup")
def test_a_snapshot_of_redis_is_restored(tmp_path: Path, http: httpx.Client) -> None:
    (data := tmp_path / "redis").mkdir()
    redis = RunningRedis(data)

    def with_redis(commands: str) -> None:
        client = str(program("redis-cli", "redis-tools"))
        run(commands.replace("redis-cli", client).replace("redis://localhost:6379/0", redis.url), tmp_path)

    try:
        redis.start()
        with running_gateway(options=options(redis.url), env=SIGNED) as gateway:
            one, other = two_clients(gateway, http)
            with_redis(BACK_UP_REDIS)
            one.tool("remember", {"key": "k", "value": "after"})
        redis.client().flushall()
        redis.stop()
        run("rm -r appendonlydir && cp ../backup.rdb dump.rdb", data)
        redis.start("--appendonly", "no")
        with_redis(WRITE_ANEW)
        settled(lambda: redis.client().info("persistence")["aof_rewrite_in_progress"] == 0)
        redis.stop()
        os.unlink(data / "dump.rdb")
        redis.start()
        with running_gateway(options=options(redis.url), env=SIGNED) as gateway:
            one.url = other.url = gateway.url
            assert [tool_text(client.tool("recall", {"key": "k"})) for client in (one, other)] == ["before", "before"]
    finally:
        redis.close()
