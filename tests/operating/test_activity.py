"""What happened and how much, as operators ask for it on whatever replica: timelines, the history, servers."""

from typing import Any

import httpx

from tests.operating.test_rest import Pair, of, probe
from tests.requirements import requirement
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.waiting import eventually

SECRET = "sk-live-0123456789abcdef0123456789abcdef"


def kinds(timeline: Any) -> list[str]:
    return [entry["kind"] for entry in timeline["entries"]]


@requirement("ops.timeline", "ops.redact")
def test_a_session_is_followed_from_replica_to_replica_and_after_its_end(
    pair: Pair, ops: httpx.Client, http: httpx.Client
) -> None:
    here, there = pair
    client = Legacy(probe(here), http).open(name="timeline-agent")
    client.tool("pid", {"note": SECRET})
    client.tool("fail")
    [row] = of(ops, there, "sessions", q="timeline-agent")["sessions"]
    path = f"sessions/{row['session']}/timeline"
    seen = of(ops, there, path)
    created, ok, failed = [entry for entry in seen["entries"] if entry["kind"] in ("session", "call")]
    [started] = [entry for entry in seen["entries"] if entry["kind"] == "server"]
    assert (started["server"], started["name"]) == ("probe", "started") and started["took_s"] > 0
    assert created["name"] == "created" and (ok["server"], ok["name"], ok["outcome"]) == ("probe", "pid", "ok")
    assert (failed["name"], failed["outcome"], failed["why"]) == ("fail", "tool error", "it failed")
    assert failed["correlation"] and failed["took_s"] > 0 and ok["at"] <= failed["at"]
    assert seen["head"] | {"calls": 2, "failed": 1, "client": "timeline-agent", "ended": ""} == seen["head"]

    assert ops.post(f"{here.base}/admin/api/replicas/{row['owner']}/drain").status_code == 200
    try:
        client.url = probe(there)
        assert tool_text(client.tool("pid"))
        seen = of(ops, there, path)
        assert kinds(seen).count("move") == 1 and {"pid", "resumed", "started"} == {
            entry["name"] for entry in seen["entries"][-3:]
        }
        assert len({entry["replica"] for entry in seen["entries"]}) == 2
    finally:
        assert ops.delete(f"{here.base}/admin/api/replicas/{row['owner']}/drain").status_code == 200
    ops.delete(f"{there.base}/admin/api/sessions/{row['session']}")
    seen = of(ops, here, path)
    assert seen["head"]["ended"] == "ended" and "olga" in seen["entries"][-1]["why"]
    assert (seen["head"]["calls"], seen["head"]["failed"]) == (3, 1)
    assert SECRET not in str(seen) and client.session not in str(seen)

    def past() -> Any:
        return [one["ended"] for one in of(ops, here, "timelines", client="timeline-agent")]

    assert eventually(lambda: past() == ["ended"], 15.0)
    assert of(ops, here, "timelines", client="timeline-agent", principal="nobody") == []
    assert ops.get(f"{here.base}/admin/api/sessions/neverthere/timeline").status_code == 404


@requirement("ops.history", "ops.servers")
def test_use_is_counted_by_tool_principal_and_client_on_all_replicas(
    pair: Pair, ops: httpx.Client, http: httpx.Client
) -> None:
    here, there = pair
    for gateway in pair:
        client = Legacy(probe(gateway), http).open(name="counted-agent")
        for _ in range(3):
            client.tool("pid")
        client.tool("fail")

    def rows(by: str) -> dict[str, Any]:
        return {row["name"]: row for row in of(ops, there, "usage", by=by, range="15m")}

    assert eventually(lambda: rows("client").get("counted-agent", {}).get("calls") == 8)
    client_row = rows("client")["counted-agent"]
    assert client_row["failed"] == 2 and client_row["sessions"] == 2 and client_row["per_min"] > 0
    assert sum(row["calls"] for row in rows("principal").values()) >= 8
    tool = rows("tool")["fail"]
    assert tool["server"] == "probe" and tool["failed"] >= 2 and 0 < tool["p50_s"] <= tool["p99_s"]
    assert {row["name"] for row in of(ops, here, "tools", range="24h")} >= {"pid", "fail"}
    view = of(ops, here, "history", range="15m", server="probe", tool="fail")
    assert len(view["points"]) == 15 and sum(point["failed"] for point in view["points"]) >= 2
    assert view["points"][-1]["at"] - view["points"][0]["at"] == 14 * view["step_s"]
    long = of(ops, here, "history", range="24h")
    assert len(long["points"]) == 144 and sum(point["calls"] for point in long["points"]) >= 8
    assert max(point["sessions"] for point in long["points"]) >= 2

    found = {row["server"]: row for row in of(ops, there, "servers", range="15m")}
    row = found["probe"]
    assert row["kind"] == "command" and row["state"] == "ok" and row["states"] == {"ok": 2} and row["tools"] > 3
    assert row["processes"] >= 2 and row["started"] >= 2 and 0 < row["start_p50_s"] <= row["start_max_s"]
    assert row["calls"] >= 8 and row["failed"] >= 2 and {used["name"] for used in row["usage"]} >= {"pid", "fail"}
    for bad in ("usage?by=people", "history?range=1y"):
        assert ops.get(f"{here.base}/admin/api/{bad}").status_code == 400
