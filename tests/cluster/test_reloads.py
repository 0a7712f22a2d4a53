"""Replicas whose configuration files differ for a while."""

import json
import signal
from pathlib import Path

import httpx
import pytest

from session_store.redis import keys
from tests.cluster.chaos import loaded, phase, reloaded
from tests.cluster.test_replicas import in_background
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, replicas, server, with_patience
from tests.support.mcp_clients import Legacy, error_of, restarted, tool_text
from tests.support.redis_server import running_redis
from tests.support.waiting import descendants, eventually

pytestmark = requirement("live.reload")

SERVERS = {"probe": server(PROBE, sandbox="off")}  # calls tell the probe of files to leave a note in


def load_another(gateway: RunningGateway, store: str) -> None:
    """Give a gateway the same other file as each other gateway that is given it."""
    options = with_patience({"store": store, "policy": {"slow_s": 7.0}})
    gateway.config.write_text(json.dumps({"mcpServers": SERVERS, "gateway": options}), encoding="utf-8")
    gateway.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: "settings changed: gateway.policy.slow_s" in gateway.stderr()), gateway.stderr()


@requirement("rep.takeover", "rep.honest", "rep.no-retry")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("owner_is", ["older", "newer", "stopped"])
def test_a_replica_with_an_older_file_has_a_newer_one_claim_the_sessions_of_a_dead_owner(
    owner_is: str, http: httpx.Client, tmp_path: Path
) -> None:
    with running_redis() as redis, replicas(redis.url, SERVERS, 3) as (front, newer, owner):
        clients = [Legacy(owner.at("probe"), http).open() for _ in range(3)]
        pids = [tool_text(client.tool("pid")) for client in clients]
        for gateway in (newer, owner) if owner_is == "newer" else (newer,):
            load_another(gateway, redis.url)
        assert eventually(lambda: "is older than that of replica" in front.stderr()), front.stderr()
        for client, pid in zip(clients, pids, strict=True):
            client.url = front.at("probe")
            assert tool_text(client.tool("pid")) == pid, "it is forwarded"
        note = tmp_path / "note"
        begun = in_background(lambda: clients[0].tool("sleep", {"seconds": 60, "note": str(note)}))
        assert eventually(note.exists)
        if owner_is == "stopped":
            owner.process.send_signal(signal.SIGSTOP)
            assert eventually(lambda: len(redis.client().keys(keys.lease("*"))) == 2)
        else:
            owner.kill()
        try:
            for client in clients[1:]:
                answer = client.tool("pid")
                assert restarted(answer) == {"reason": "takeover"}
                assert int(tool_text(answer)) in [p.pid for p in descendants(newer.pid)]
            assert error_of(begun.result(30))["code"] == -32014 and note.read_text() == "called\n"
        finally:
            if owner_is == "stopped":
                owner.process.send_signal(signal.SIGCONT)


@pytest.mark.timeout(180)
async def test_reloads_of_three_replicas_under_load_lose_nothing() -> None:
    rows: dict[str, dict[str, object]] = {}
    with running_redis() as redis:
        async with loaded(redis.url, redis.client, rows) as arena:
            await phase(arena, "reloads", reloaded(16), rows)
    row = rows["reloads"]
    counts = arena.load.outcome.counts
    assert counts["sent"] == counts["answered"] > 100, (counts, arena.load.outcome.wrong)
    assert not row["contradictions"], row
