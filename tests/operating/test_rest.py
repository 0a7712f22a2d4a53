"""What operators see and do by REST and by the command line, on whatever replica they ask: sessions, tasks, figures."""

import json
import re
import threading
import time
from typing import Any

import httpx
import psutil
import pytest

from tests.operating.conftest import ADMIN, ONLY_DEMO, OPERATOR, Cli, Pair, replica
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, RunningGateway, operators_of, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.task_client import TaskClient
from tests.support.waiting import descendants, eventually, gone

FORMS = (
    "configuration/reload",
    "replicas/x/drain",
    "sessions/x/end",
    "sessions/x/frames/on",
    "tasks/x/cancel",
    "tools/probe?name=pid",
)
"""What a page of the console sends, and a page of another site must not."""


def probe(gateway: RunningGateway) -> str:
    return f"{gateway.base}/servers/probe/mcp"


def of(ops: httpx.Client, gateway: RunningGateway, path: str, **params: str) -> Any:
    response = ops.get(f"{gateway.base}/admin/api/{path}", params=params)
    assert response.status_code == 200, response.text
    return response.json()


@requirement("ops.console", "life.end")
def test_a_session_is_found_inspected_and_ended_from_another_replica(
    pair: Pair, ops: httpx.Client, http: httpx.Client
) -> None:
    here, there = pair
    client = Legacy(probe(here), http).open(name="failing-agent")
    process = psutil.Process(int(tool_text(client.tool("pid"))))
    client.tool("fail")
    client.tool("state", {"a": 1})
    [row] = of(ops, there, "sessions", q="failing-agent")["sessions"]
    assert (row["calls"], row["failed"], row["client"]) == (3, 1, "failing-agent 1")
    assert row["failures"][0]["name"] == "tools/call fail" and row["failures"][0]["why"] == "it failed"
    assert of(ops, there, "sessions", only="failing", q="failing-agent")["sessions"][0]["session"] == row["session"]
    detail = of(ops, there, f"sessions/{row['session']}")
    [shown] = detail["processes"]
    assert shown["pid"] == process.pid and shown["memory_bytes"] > 1 << 20 and shown["server"] == "probe"
    assert "no route to the database" in shown["stderr"][-1] and "abcdefgh12345678" not in json.dumps(detail)
    ended = ops.delete(f"{there.base}/admin/api/sessions/{row['session']}")
    assert ended.json() == {"ended": row["session"]}
    assert gone([process])
    assert client.tool("pid").status_code == 404
    assert ops.delete(f"{there.base}/admin/api/sessions/{row['session']}").status_code == 404
    assert eventually(
        lambda: any(
            event["event"] == "ended" and "olga" in event["reason"]
            for event in of(ops, here, "events", session=row["session"])
        )
    )


@requirement("ops.bulk-end", "ctx.correlation-right")
def test_all_sessions_of_a_client_are_ended_on_every_replica(
    pair: Pair, ops: httpx.Client, http: httpx.Client, cli: Cli
) -> None:
    here, there = pair
    doomed = [Legacy(probe(gateway), http).open(name="bulk-agent") for gateway in (here, there, here)]
    spared = Legacy(probe(here), http).open(name="bulk-agent-2")
    processes = [psutil.Process(int(tool_text(client.tool("pid")))) for client in doomed]
    wide = {"client": "bulk-agent", "principal": ""}
    for params in (
        {},
        wide,
        {"principle": "x"},
        {"client": "bulk-agent", "principle": "x"},
        {"client": ["bulk-agent", "x"]},
    ):
        assert ops.delete(f"{there.base}/admin/api/sessions", params=params).status_code == 400
    ended = ops.delete(f"{there.base}/admin/api/sessions", params={"client": "bulk-agent"})
    assert ended.json() == {"ended": 3} and gone(processes)
    assert [client.tool("pid").status_code for client in (*doomed, spared)] == [404, 404, 404, 200]

    def ends() -> list[Any]:
        return [event for event in of(ops, here, "events") if "all of client bulk-agent" in event.get("reason", "")]

    assert eventually(lambda: len(ends()) == 3)
    told = ends()
    assert [event["calls"] for event in told] == [1, 1, 1] and all(event["lasted_s"] > 0 for event in told)
    for wrong, why in ((["abcd", "--client", "bulk-agent-2"], "either the ID"), ([], "give the ID of the session")):
        refused = cli("sessions", "end", *wrong, url=here.base)
        assert refused.returncode and why in refused.stderr
    printed = cli("sessions", "end", "--client", "bulk-agent-2", url=here.base)
    assert printed.stdout == "ended 1 session\n", printed.stderr
    assert spared.tool("pid").status_code == 404


@requirement("ops.redact")
def test_nothing_that_operators_are_shown_opens_a_session(pair: Pair, ops: httpx.Client, http: httpx.Client) -> None:
    here, there = pair
    session = json.loads(tool_text(Modern(probe(here), http).tool("env")))["MCP_SESSION_ID"]
    own = f"sessions/{session[:8]}"
    paths = ("", "/sessions", f"/{own}", "/events", "/api/sessions", f"/api/{own}", "/api/replicas", "/api/events")
    urls = [f"{gateway.base}{path}" for gateway in pair for path in (*(f"/admin{path}" for path in paths), "/metrics")]
    pages = [ops.get(url).text for url in urls]
    assert any(session[:8] in page for page in pages)
    assert not any(session in page for page in pages) and not any(OPERATOR in page for page in pages)
    # Nor does the log, nor an id written in full into an address.
    assert session not in here.stderr() + there.stderr()


@requirement("ops.console", "ops.redact")
def test_without_an_operators_key_there_is_nothing_to_see(pair: Pair, ops: httpx.Client, http: httpx.Client) -> None:
    here, _ = pair
    for path in ("/admin/api/sessions", "/admin/api/replicas", "/admin/api/events", "/metrics"):
        for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Basic b2xnYTo="}):
            assert http.get(here.base + path, headers=headers).status_code == 401, path
    assert http.get(f"{here.base}/admin").headers["location"] == "/admin/sign-in"
    assert http.get(f"{here.base}/admin/live").status_code == 401
    # A cookie is good only from pages of the console's own, and only as it was signed.
    signed = http.post(f"{here.base}/admin/sign-in", data={"key": OPERATOR})
    behind_tls = http.post(f"{here.base}/admin/sign-in", data={"key": OPERATOR}, headers={"X-Forwarded-Proto": "https"})
    assert "Secure" in behind_tls.headers["set-cookie"] and "Secure" not in signed.headers["set-cookie"]
    cookie = {"Cookie": signed.headers["set-cookie"].partition(";")[0]}
    assert {"HttpOnly", "Path=/admin", "SameSite=strict"} <= set(signed.headers["set-cookie"].split("; "))
    assert http.get(f"{here.base}/admin/api/sessions", headers=cookie).status_code == 200
    for other in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://elsewhere.example"}):
        assert http.get(f"{here.base}/admin/api/sessions", headers=cookie | other).status_code == 401
        for form in FORMS:
            assert http.post(f"{here.base}/admin/{form}", headers=cookie | other).status_code == 403, form
    assert http.get(f"{here.base}/admin/api/sessions", headers={"Cookie": cookie["Cookie"][:-3]}).status_code == 401


def test_operators_are_served_only_where_a_key_is_configured(
    demo: RunningGateway, http: httpx.Client, ops: httpx.Client
) -> None:
    for path in ("/admin", "/admin/sign-in", "/admin/api/sessions", "/metrics"):
        assert ops.get(demo.base + path).status_code == http.get(demo.base + path).status_code == 404


def test_bad_questions_are_answered_with_what_to_do(pair: Pair, ops: httpx.Client) -> None:
    here, _ = pair
    api = f"{here.base}/admin/api"
    for path, status, words in (
        ("sessions?limit=0", 400, "1 to 1000"),
        ("sessions/abc", 400, "4 characters"),
        ("tasks/neverthere", 404, "expired, or never existed"),
        ("sessions/neverthere", 404, "ended, or never existed"),
    ):
        answer = ops.get(f"{api}/{path}")
        assert answer.status_code == status and words in answer.json()["detail"], answer.text
        assert answer.headers["content-type"] == "application/problem+json"
    assert ops.post(f"{api}/replicas/nobody/drain").status_code == 404


def test_the_interface_is_described_as_it_is(pair: Pair, ops: httpx.Client, http: httpx.Client) -> None:
    here, _ = pair
    Modern(probe(here), http).tool("fail")
    described = http.get(f"{here.base}/admin/api/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    known = described["components"]["schemas"]
    for path, name in (("sessions", "SessionRow"), ("replicas", "ReplicaReport")):
        answer = of(ops, here, path)
        row = answer["sessions"][0] if path == "sessions" else answer[0]
        assert row.keys() == known[name]["properties"].keys()
    for path, methods in described["paths"].items():
        for method in methods:
            there = here.base + re.sub(r"{\w+}", "none", path)
            assert http.request(method, there).status_code == 401, (method, path)


@requirement("ops.console", "rep.any")
def test_a_drained_replica_hands_over_and_can_be_admitted_again(
    pair: Pair, own_redis: RunningRedis, ops: httpx.Client, http: httpx.Client, cli: Cli
) -> None:
    other = pair[1]
    with replica(own_redis, servers=ONLY_DEMO) as one:
        client = Legacy(f"{one.base}/servers/demo/mcp", http).open()
        tool_text(client.tool("remember", {"key": "a", "value": "1"}))
        [name] = [r["replica"] for r in of(ops, one, "replicas") if r["here"]]
        drained = cli("replicas", "drain", name, url=other.base)
        assert drained.returncode == 0 and name in drained.stdout, drained.stderr
        assert http.get(f"{one.base}/readyz").status_code == 503
        reports = {r["replica"]: r for r in of(ops, other, "replicas")}
        assert (reports[name]["draining"], reports[name]["sessions"]) == (True, 0)
        client.url = f"{other.base}/servers/demo/mcp"
        assert tool_text(client.tool("recall", {"key": "a"})) == "1", "its state is the session's"
        assert cli("replicas", "admit", name[:6], url=one.base).returncode == 0
        assert http.get(f"{one.base}/readyz").status_code == 200
        assert json.loads(tool_text(Modern(f"{one.base}/servers/demo/mcp", http).tool("whoami")))["session_id"]
        assert eventually(lambda: any("has drained" in event.get("reason", "") for event in of(ops, one, "events")))


@requirement("live.reload", "ops.console")
def test_all_replicas_load_their_configuration_again_at_an_operators_request(
    ops: httpx.Client, http: httpx.Client, cli: Cli
) -> None:
    # A Redis of its own: that of other tests may know a gateway that they have just killed, and wait for its answer.
    with running_redis() as redis, replica(redis, servers=ONLY_DEMO) as one, replica(redis, servers=ONLY_DEMO) as two:
        for each in (one, two):
            found = json.loads(each.config.read_text())
            found["mcpServers"]["more"] = server(DEMO)
            each.config.write_text(json.dumps(found))
        asked = ops.post(f"{one.base}/admin/api/reload").json()["replicas"]
        assert len(asked) == 2
        assert {row["fault"] for row in asked} == {""} and all(row["difference"] for row in asked), asked
        for each in (one, two):
            Legacy(f"{each.base}/servers/more/mcp", http).open()
        two.config.write_text(json.dumps({"mcpServers": {name: {"comand": "x"} for name in ("a", "b")}}))
        refused = cli("reload", url=one.base)
        faults = [line for line in refused.stdout.splitlines() if "did you mean command?" in line]
        assert refused.returncode == 1 and len(faults) == 2, refused.stdout + refused.stderr
        Legacy(f"{two.base}/servers/more/mcp", http).open()
        page = ops.get(f"{one.base}/admin/configuration")
        assert "/admin/configuration/reload" in page.text


@requirement("ops.console")
def test_the_command_line_shows_the_same(pair: Pair, cli: Cli, http: httpx.Client) -> None:
    here, there = pair
    Legacy(probe(here), http).open(name="cli-agent").tool("fail")
    [row] = json.loads(cli("sessions", "list", "--find", "cli-agent", "--json", url=there.base).stdout)["sessions"]
    text = cli("sessions", "list", "--only", "failing", "--find", "cli-agent", url=there.url).stdout
    assert row["session"] in text and "it failed" in text
    assert "no route to the database" in cli("sessions", "show", row["session"], url=there.base).stdout
    top = cli("top", "--once", url=here.base).stdout
    assert row["session"] in top and "ready" in top
    assert row["session"] in json.dumps(json.loads(cli("top", "--json", url=here.base).stdout)["failing"])
    assert cli("sessions", "end", row["session"], url=there.base).stdout == f"ended {row['session']}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sessions", "list", "--url", "http://127.0.0.1:9"), "cannot be reached"),
        (("sessions", "list", "--store", "memory://", "--only", "busy"), "use --url with"),
    ],
)
def test_the_command_line_says_what_is_missing(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    ran = cli(*arguments)
    assert ran.returncode == 2 and words in ran.stderr


def test_a_key_that_is_none_is_said_to_be(pair: Pair, cli: Cli) -> None:
    ran = cli("replicas", "list", url=pair[0].base, key="wrong")
    assert ran.returncode == 2 and "gateway.admin.keys" in ran.stderr
    assert "not set" in cli("replicas", "list", url=pair[0].base, key="").stderr


@requirement("ops.console")
def test_what_happens_on_any_replica_is_followed_as_it_happens(
    pair: Pair, ops: httpx.Client, http: httpx.Client
) -> None:
    here, there = pair
    heard: list[Any] = []
    listening = threading.Event()

    def follow() -> None:
        accept = {"Accept": "text/event-stream"}
        with ops.stream("GET", f"{there.base}/admin/api/events", headers=accept, timeout=20.0) as stream:
            for line in stream.iter_lines():
                listening.set()
                if line.startswith("data: "):
                    heard.append(json.loads(line[6:]))
                    if heard[-1].get("tool") == "probe/fail":
                        return

    follower = threading.Thread(target=follow)
    follower.start()
    assert listening.wait(10)
    # What was there before is not news: the follower has to have looked once.
    deadline = time.monotonic() + 15
    while follower.is_alive() and time.monotonic() < deadline:
        Modern(probe(here), http).tool("fail")
        follower.join(0.5)
    assert not follower.is_alive()
    assert heard[-1]["outcome"] == "tool error" and heard[-1]["correlation"]
    assert len({json.dumps(event) for event in heard}) == len(heard), "each once"


@requirement("ops.console")
def test_operators_can_have_a_listener_of_their_own(http: httpx.Client, ops: httpx.Client) -> None:
    options = {"admin": ADMIN | {"listen": "127.0.0.1:0"}}
    with running_gateway({"demo": server(DEMO)}, options=options) as gateway:
        own = operators_of(gateway)
        assert ops.get(f"{own}/admin/api/sessions").status_code == 200
        assert http.get(f"{own}/admin/api/sessions").status_code == 401
        assert http.get(f"{own}/metrics").status_code == 200, "no key: whoever reaches it is an operator's"
        assert http.get(f"{own}/readyz").status_code == 200 and http.post(f"{own}/mcp").status_code == 404
        assert ops.get(f"{gateway.base}/admin").status_code == 404
        assert ops.get(f"{gateway.base}/metrics").status_code == 404
        foreign = {"Host": "evil.example"}
        for path in ("/healthz/", "/metrics/", "/admin/sessions/", "/admin/static"):
            assert http.get(own + path, headers=foreign).status_code == 404, "nobody is led to the host that they name"
        assert http.get(f"{own}/admin/", headers=foreign).headers["location"] == "../admin"
        pids = descendants(gateway.pid)
        taken = {"admin": ADMIN | {"listen": own.removeprefix("http://")}}
        with pytest.raises(AssertionError, match=r"gateway\.admin\.listen: 127\.0\.0\.1:\d+: Address already in use"):
            with running_gateway({"demo": server(DEMO)}, options=taken):
                pass
    assert gone(pids)


# -- tasks are found and cancelled, by REST, command line and console


def outcomes(ops: httpx.Client, gateway: RunningGateway, task: str) -> list[str]:
    """What the audit trail says of a task, newest first."""
    events = ops.get(f"{gateway.base}/admin/api/events", params={"limit": 1_000}).json()
    return [one["outcome"] for one in events if one["event"] == "task" and one["reason"].startswith(task)]


@requirement("task.operators")
def test_a_task_is_found_and_cancelled_from_another_replica(
    pair: Pair, ops: httpx.Client, http: httpx.Client, cli: Cli
) -> None:
    here, there = pair
    client = TaskClient(f"{here.base}/servers/probe/mcp", http)
    handle, other = client.begin("sleep", seconds=60.0), client.begin("sleep", seconds=60.0)
    listed: list[Any] = ops.get(f"{there.base}/admin/api/tasks", params={"status": "working"}).json()["tasks"]
    assert [(row["server"], row["tool"], row["runs"]) for row in listed[:2]] == [("probe", "sleep", 1)] * 2
    newest = listed[0]["task"]
    shown = json.loads(cli("tasks", "show", newest, "--json", url=there.base).stdout)
    assert shown["status"] == "working" and shown["session"] == listed[0]["session"]
    named = json.loads(cli("tasks", "show", other, "--json", url=there.base).stdout)
    assert named["task"] == newest, "the client's own id names the task"
    [found] = json.loads(cli("tasks", "list", "--find", other, "--json", url=there.base).stdout)["tasks"]
    assert found["task"] == newest
    assert newest in ops.get(f"{there.base}/admin/tasks/{newest}").text
    assert f'/admin/tasks/{newest}"' in ops.get(f"{there.base}/admin/sessions/{listed[0]['session']}").text

    assert cli("tasks", "cancel", newest, url=there.base).stdout == f"cancelled {newest}\n"
    done = client.until(other, "cancelled")
    assert "the operator olga cancelled the task" in done["statusMessage"]
    assert client.get(handle)["status"] == "working", "the other one goes on"
    again = ops.delete(f"{there.base}/admin/api/tasks/{newest}")
    assert again.status_code == 409 and "over already: cancelled" in again.json()["detail"]
    assert ops.delete(f"{here.base}/admin/api/tasks/{listed[1]['task']}").json() == {"cancelled": listed[1]["task"]}
    client.until(handle, "cancelled")

    assert eventually(lambda: outcomes(ops, here, newest) == ["cancelled", "made"]), (
        "newest first; replicas write their events each second"
    )
    table = cli("tasks", "list", "--find", "sleep", "--status", "cancelled", url=here.base).stdout
    assert newest in table and "olga" in table


@requirement("task.operators")
def test_operators_see_that_the_tool_of_a_completed_task_has_failed(
    pair: Pair, ops: httpx.Client, http: httpx.Client, cli: Cli
) -> None:
    here, there = pair
    client = TaskClient(f"{here.base}/servers/probe/mcp", http)
    handle = client.begin("fail", seconds=1.0)
    done = client.until(handle, "completed")
    assert done["result"]["isError"] and done["statusMessage"] == "the tool has reported an error"
    row = ops.get(f"{there.base}/admin/api/tasks/{handle}").json()
    assert (row["status"], row["tool_error"], row["error_code"]) == ("completed", True, 0)
    for status in ("tool_error", "tool error"):  # as REST has it, and as the table prints it
        shown = cli("tasks", "list", "--status", status, url=there.base).stdout
        assert row["task"] in shown and "tool error" in shown
    for page in (f"tasks/{row['task']}", "tasks?status=tool_error"):
        assert ">tool error</" in ops.get(f"{there.base}/admin/{page}").text, page
    assert 'mcp_gateway_tasks_total{event="tool error"} 1' in ops.get(f"{here.base}/metrics").text
    assert eventually(lambda: ["tool error", "made"] == outcomes(ops, here, row["task"]))


# -- what happened and how much: timelines, the history, servers


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

    assert eventually(lambda: past() == ["ended"])
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


@requirement("ops.find-request", "ops.timeline")
@pytest.mark.parametrize("calls", [False, True])
def test_a_call_with_wrong_arguments_is_found_under_its_server(
    calls: bool, ops: httpx.Client, http: httpx.Client
) -> None:
    with running_gateway(ONLY_DEMO, options={"admin": ADMIN, "audit": {"calls": calls}}) as gateway:
        assert Legacy(gateway.url, http).open().tool("slow", {"steps": "many"}).status_code == 200
        [row] = of(ops, gateway, "sessions")["sessions"]
        [failure] = row["failures"]
        assert (failure["server"], failure["name"]) == (*ONLY_DEMO, "tools/call slow")
        page = ops.get(f"{gateway.base}/admin/sessions/{row['session']}").text
        assert failure["correlation"] in page
        linked = f"/admin/events?q={failure['correlation']}" in page
        assert linked is calls, "no event has the id of a call without `audit.calls`"
