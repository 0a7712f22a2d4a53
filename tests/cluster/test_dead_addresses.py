"""What becomes of sessions and calls whose owner died behind an address that accepts, or together with the store."""

from functools import partial
from pathlib import Path

import httpx

from tests.cluster.test_lost_owners import behind_a_relay
from tests.cluster.test_replicas import LEASE_S, in_background, replica, retried, through
from tests.requirements import requirement
from tests.support.mcp_clients import Legacy, error_of, restarted, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import eventually


@requirement("rep.behind-address")
def test_a_dead_owner_is_replaced_although_its_address_accepts_and_closes(
    redis_server: RunningRedis, http: httpx.Client
) -> None:
    with behind_a_relay(redis_server) as (owner, _), replica(redis_server, "probe") as other:
        client = Legacy(f"{owner.base}/servers/probe/mcp", http).open()
        old = tool_text(client.tool("pid"))
        near = through(other, "probe", client)
        assert tool_text(near.tool("pid")) == old
        owner.kill()
        answer = retried(lambda: near.tool("pid"), within_s=3 * LEASE_S)
        assert tool_text(answer) != old and restarted(answer) == {"reason": "takeover"}


@requirement("rep.no-retry", "rep.honest")
def test_a_call_that_was_done_is_not_refused_when_its_owner_and_the_store_die(
    http: httpx.Client, tmp_path: Path
) -> None:
    with running_redis() as redis, replica(redis, "probe") as other:
        with replica(redis, "probe") as owner:
            client = Legacy(f"{owner.base}/servers/probe/mcp", http).open()
            tool_text(client.tool("pid"))
            far = through(other, "probe", client)
            notes = {tool: tmp_path / tool for tool in ("sleep", "nap")}
            calls = {
                tool: in_background(partial(far.tool, tool, {"seconds": 3, "note": str(note)}))
                for tool, note in notes.items()
            }
            assert eventually(lambda: all(note.exists() for note in notes.values()))
            redis.stop()
            owner.kill()
            assert not eventually(lambda: any(call.done() for call in calls.values()), within_s=1)
            redis.start()
            for answer in (call.result(40) for call in calls.values()):
                assert answer.status_code == 200 and "retry-after" not in answer.headers, answer.text
            assert error_of(calls["sleep"].result())["code"] == -32014
            assert notes["sleep"].read_text() == "called\n"


@requirement("rep.no-retry", "rep.honest")
def test_a_call_whose_owner_lives_behind_something_that_died_is_made_once(
    redis_server: RunningRedis, http: httpx.Client, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    with behind_a_relay(redis_server) as (owner, relay), replica(redis_server, "probe") as other:
        client = Legacy(f"{owner.base}/servers/probe/mcp", http).open()
        tool_text(client.tool("pid"))
        far = through(other, "probe", client)
        tool_text(far.tool("pid"))
        relay.loses_answers = True
        call = in_background(lambda: far.tool("sleep", {"seconds": 0, "note": str(note)}))
        assert eventually(note.exists)
        relay.close()
        assert error_of(call.result(30))["code"] == -32014, "nobody can know, so nobody says that it was not"
        assert note.read_text() == "called\n"
