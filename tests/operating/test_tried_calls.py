"""Tools that operators try, by the REST interface: in whose name, within which bounds, and at which replica."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.operating.conftest import ADMIN, Pair, replica
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway
from tests.support.mcp_clients import Legacy, Modern, posted, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.waiting import eventually

pytestmark = requirement("ops.try-tools")


def tried(ops: httpx.Client, gateway: RunningGateway, tool: str, arguments: Any = None, **more: Any) -> Any:
    """The outcome of a call at a replica, of a tool of the server `probe`."""
    attempt = {"server": "probe", "tool": tool, "arguments": arguments or {}, **more}
    response = ops.post(f"{gateway.base}/admin/api/calls", json=attempt)
    assert response.status_code == 200, response.text
    return response.json()


def text_of(outcome: Any) -> str:
    assert outcome["outcome"] in ("ok", "tool_error"), outcome
    text = outcome["result"]["content"][0]["text"]
    assert isinstance(text, str)
    return text


def event_of(ops: httpx.Client, gateway: RunningGateway, correlation: str, kind: str) -> Any:
    """The event of that kind with that correlation id: the trail is written behind the calls."""
    found: list[Any] = []

    def is_there() -> bool:
        events = ops.get(f"{gateway.base}/admin/api/events").json()
        found[:] = [one for one in events if (one.get("correlation"), one["event"]) == (correlation, kind)]
        return bool(found)

    assert eventually(is_there)
    [event] = found
    return event


def test_the_catalog_has_the_tools_of_all_servers(pair: Pair, ops: httpx.Client) -> None:
    found = ops.get(f"{pair[0].base}/admin/api/catalog", params={"limit": 1000}).json()
    assert {tool["server"] for tool in found["tools"]} == {"demo", "probe"}
    assert found["total"] == len(found["tools"]) and found["unknown"] == []
    one = ops.get(f"{pair[0].base}/admin/api/catalog", params={"q": "PROBE nap"}).json()
    assert [(tool["server"], tool["name"]) for tool in one["tools"]] == [("probe", "nap")]
    assert one["tools"][0]["annotations"] == {"idempotentHint": True}
    assert one["tools"][0]["input_schema"]["type"] == "object"


def test_a_call_in_a_fresh_session_has_the_operator_as_its_principal_and_ends_with_its_session(
    pair: Pair, ops: httpx.Client
) -> None:
    outcome = tried(ops, pair[0], "meta")
    assert '"operator:olga"' in text_of(outcome)
    assert (outcome["outcome"], "kept" in outcome) == ("ok", False)
    assert ops.get(f"{pair[0].base}/admin/api/sessions/{outcome['session']}").status_code == 404
    operated = event_of(ops, pair[0], outcome["correlation"], "operated")
    assert operated["reason"] == "the operator olga has tried a tool in a fresh session"
    assert (operated["tool"], operated["principal"]) == ("probe/meta", "operator:olga")
    called = event_of(ops, pair[0], outcome["correlation"], "called")
    assert (called["principal"], called["tool"]) == ("operator:olga", "probe/meta")


def test_a_fresh_session_that_is_kept_is_the_same_process_for_the_next_call(pair: Pair, ops: httpx.Client) -> None:
    first = tried(ops, pair[0], "pid", keep=True)
    assert first["kept"]
    for gateway in pair:
        again = tried(ops, gateway, "pid", session=first["session"])
        assert text_of(again) == text_of(first) and again["kept"]
    assert ops.delete(f"{pair[0].base}/admin/api/sessions/{first['session']}").status_code == 200


@pytest.mark.parametrize(
    ("era", "path", "at"),
    [
        (Legacy, "/mcp", 1),
        (Modern, "/servers/probe/mcp", 0),
    ],
)
def test_a_call_in_a_live_session_is_made_in_its_process(
    pair: Pair, ops: httpx.Client, http: httpx.Client, era: type, path: str, at: int
) -> None:
    name = "probe__pid" if path == "/mcp" else "pid"
    if era is Legacy:
        legacy = Legacy(f"{pair[0].base}{path}", http).open(name="theirs")
        pid, session = tool_text(legacy.tool(name)), legacy.session[:8]
    else:
        new = {"MCP-Gateway-Session": "new"}
        caps: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {}}
        opened = Modern(f"{pair[0].base}{path}", http, headers=new).tool(name, meta=caps)
        pid, session = tool_text(opened), opened.headers["mcp-gateway-session"][:8]
    outcome = tried(ops, pair[at], "pid", session=session)
    assert text_of(outcome) == pid
    assert (outcome["session"], outcome["kept"]) == (session, True)
    event = event_of(ops, pair[at], outcome["correlation"], "operated")
    assert event["session"] == session
    assert event["reason"] == "the operator olga has tried a tool in a session of anonymous"
    assert ops.delete(f"{pair[at].base}/admin/api/sessions/{session}").status_code == 200


def test_what_the_server_asks_its_client_is_declined_and_shown(
    pair: Pair, ops: httpx.Client, http: httpx.Client
) -> None:
    client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name="asks", capabilities={"elicitation": {}})
    for gateway in pair:
        outcome = tried(ops, gateway, "ask_once", session=client.session[:8])
        assert '"action": "decline"' in text_of(outcome)
        [asked] = outcome["asked"]
        assert "question 0" in asked
    client.delete()


def test_answers_are_bounded(pair: Pair, ops: httpx.Client) -> None:
    outcome = tried(ops, pair[0], "giant", {"size": 6 << 20})
    assert outcome["outcome"] == "too_large" and "result" not in outcome
    assert outcome["size"] > 6 << 20
    assert "more than can be shown" in outcome["note"]
    failed = tried(ops, pair[0], "fail")
    assert (failed["outcome"], text_of(failed)) == ("tool_error", "it failed")


def test_what_the_server_says_before_its_answer_is_cut(pair: Pair, ops: httpx.Client, http: httpx.Client) -> None:
    client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name="listens")
    outcome = tried(ops, pair[1], "flood", {"megabytes": 3}, session=client.session[:8])
    assert text_of(outcome) == "flooded"
    assert [len(message) for message in outcome["messages"]] == [500] * 3
    client.delete()


@pytest.mark.parametrize("in_session", [False, True], ids=["fresh", "live"])
def test_a_call_is_cancelled_when_the_operator_leaves(
    pair: Pair, ops: httpx.Client, http: httpx.Client, in_session: bool
) -> None:
    client = Legacy(f"{pair[0].base}/servers/probe/mcp", http).open(name="hangs")
    attempt = {"server": "probe", "tool": "hang", "session": client.session[:8] if in_session else ""}

    def in_flight() -> int:
        """Calls in the client's session and in those of operators."""
        sessions = ops.get(f"{pair[0].base}/admin/api/sessions", params={"limit": 1000}).json()["sessions"]
        mine = [one for one in sessions if one["session"] == client.session[:8] or one["principal"] == "operator:olga"]
        return sum(one["in_flight"] for one in mine) if in_session else len(mine) - 1

    with posted(f"{pair[1].base}/admin/api/calls", attempt, ops.headers):
        assert eventually(lambda: in_flight() == 1)
    assert eventually(lambda: in_flight() == 0)
    if in_session:
        assert "the operator no longer waits" in tool_text(client.tool("cancelled"))
    client.delete()


@pytest.mark.parametrize(
    ("attempt", "status", "why"),
    [
        ({"server": "nowhere", "tool": "x"}, 404, "there is no server 'nowhere'"),
        ({"server": "probe", "tool": "pid", "session": "zzzzzzzz"}, 404, "no session begins with 'zzzzzzzz'"),
        ({"server": "probe"}, 400, "the body is not a call"),
        ({"server": "probe", "tool": "pid", "principal": "api-key:alice"}, 400, "the body is not a call"),
        ({"server": "probe", "tool": "pid", "arguments": "x" * (2 << 20)}, 400, "larger than"),
    ],
    ids=["server", "session", "no tool", "somebody else", "large"],
)
def test_an_attempt_that_cannot_be_made_says_why(
    pair: Pair, ops: httpx.Client, attempt: Any, status: int, why: str
) -> None:
    response = ops.post(f"{pair[0].base}/admin/api/calls", json=attempt)
    assert (response.status_code, why in response.json()["detail"]) == (status, True), response.text


def test_what_is_no_tool_or_no_argument_is_refused_as_for_every_client(pair: Pair, ops: httpx.Client) -> None:
    def at_demo(tool: str, arguments: Any) -> Any:
        attempt = {"server": "demo", "tool": tool, "arguments": arguments}
        return ops.post(f"{pair[0].base}/admin/api/calls", json=attempt).json()

    unknown = at_demo("no such tool", {})
    assert "no such tool" in str(unknown.get("error") or unknown["result"])
    wrong = at_demo("remember", {"key": 5, "value": "x"})
    assert wrong["outcome"] == "tool_error" and "kept" not in wrong, wrong


@pytest.fixture(scope="module")
def guarded(own_redis: RunningRedis) -> Iterator[RunningGateway]:
    """A gateway with host names and policy, whose operators try tools in sessions of their own only."""
    policy = {"rules": [{"principals": ["operator:*"], "trust": "sandboxed"}], "read_only": ["sandboxed"]}
    admin = ADMIN | {"try_tools": "own"}
    with replica(own_redis, admin=admin, policy=policy, allowed_hosts=["gateway.example", "127.0.0.1"]) as gateway:
        yield gateway


def test_the_setting_keeps_operators_out_of_sessions_of_others(
    guarded: RunningGateway, ops: httpx.Client, http: httpx.Client
) -> None:
    client = Legacy(f"{guarded.base}/servers/probe/mcp", http).open()
    attempt = {"server": "probe", "tool": "pid", "session": client.session[:8]}
    response = ops.post(f"{guarded.base}/admin/api/calls", json=attempt)
    assert response.status_code == 400 and "gateway.admin.try_tools" in response.json()["detail"]
    own = tried(ops, guarded, "whoami", server="demo", keep=True)
    assert text_of(tried(ops, guarded, "whoami", server="demo", session=own["session"])) == text_of(own)
    assert ops.delete(f"{guarded.base}/admin/api/sessions/{own['session']}").status_code == 200


def test_rules_for_operators_decide_what_they_may_call(guarded: RunningGateway, ops: httpx.Client) -> None:
    attempt = {"server": "demo", "tool": "remember", "arguments": {"key": "a", "value": "b"}}
    refused = ops.post(f"{guarded.base}/admin/api/calls", json=attempt).json()
    assert refused["outcome"] == "error" and "Unknown tool" in refused["error"]["message"], refused
    assert (
        ops.post(f"{guarded.base}/admin/api/calls", json={"server": "demo", "tool": "whoami"}).json()["outcome"] == "ok"
    )
