"""The wire above HTTP, as strangers use it: versions, tokens that are not enough, batches."""

import json
import time
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import RunningGateway
from tests.support.issuer import Issuer
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text


@requirement("wall.authority")
@pytest.mark.parametrize("version", ["2020-01-01", "nonsense", "", "2025-11-25, 2025-11-25"])
def test_a_delete_or_get_of_an_unknown_version_ends_and_opens_nothing(
    demo: RunningGateway, http: httpx.Client, version: str
) -> None:
    client = Legacy(demo.url, http).open()
    named = {**client.request_headers(), "Accept": "text/event-stream", "MCP-Protocol-Version": version}
    assert http.delete(demo.url, headers=named).status_code == 400
    assert http.get(demo.url, headers=named).status_code == 400
    assert tool_text(client.tool("count")) == "1", "it lives"
    assert client.delete().status_code == 200


@requirement("wall.authority", "pol.auth")
def test_a_token_that_does_not_go_far_enough_is_told_what_it_needs(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    for scope in ("other", "", None):
        answer = Modern(issued.at("demo"), http, headers=bearer(issuer.token(scope=scope))).tool("whoami")
        challenge = answer.headers["www-authenticate"]
        assert answer.status_code == 403 and answer.json()["error"]["code"] == -32011
        assert challenge.startswith("Bearer ") and 'error="insufficient_scope"' in challenge
        assert 'scope="mcp"' in challenge and "resource_metadata=" in challenge
    assert (
        Modern(issued.at("demo"), http, headers=bearer(issuer.token(scope="mcp other"))).tool("whoami").status_code
        == 200
    )


@requirement("wall.authority", "pol.auth")
@pytest.mark.parametrize("bound", [{"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}, {"x5t#S256": "bwc"}, {}])
def test_a_token_that_is_bound_to_a_key_is_no_bearer_token(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client, bound: dict[str, str]
) -> None:
    answer = Modern(issued.at("demo"), http, headers=bearer(issuer.token(cnf=bound))).tool("whoami")
    assert answer.status_code == 401 and 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "bound to a key" in answer.text


@pytest.fixture
def old(keyed: RunningGateway, http: httpx.Client) -> Legacy:
    """Has a session at the probe; of a result no more than 16 MiB is passed on."""
    return Legacy(keyed.at("probe"), http, version="2025-03-26", headers=bearer(KEYS["alice"])).open()


def ping(number: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "ping"}


def call(number: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@requirement("wall.before-auth")
def test_a_batch_that_is_too_long_is_refused_before_any_of_it_is_read_or_done(old: Legacy) -> None:
    assert len(old.post([ping(number) for number in range(64)]).json()) == 64
    for size in (65, 85_000):
        work = [call("first", "state", touched="yes"), *(ping(number) for number in range(size - 1))]
        began = time.monotonic()
        refused = old.post(work)
        took_s = time.monotonic() - began
        assert refused.status_code == 400 and "64 messages at most" in refused.json()["error"]["message"]
        assert took_s < 1
    assert json.loads(tool_text(old.tool("state"))) == {}, "nothing of it was done"


@requirement("wall.before-auth")
def test_nothing_of_a_batch_is_done_for_somebody_who_may_not_send_it(old: Legacy) -> None:
    work = [ping(1), call(2, "state", touched="yes")]
    for wrong, status in (
        ({"Authorization": "Bearer nobody"}, 401),
        ({"Mcp-Session-Id": "x" * 22 + "." + "y" * 43}, 404),
    ):
        assert old.post(work, headers=wrong).status_code == status
    assert json.loads(tool_text(old.tool("state"))) == {}


@requirement("wall.before-auth", "spec.legacy")
def test_each_message_of_a_batch_is_answered_on_its_own(old: Legacy) -> None:
    mixed: list[Any] = [
        ping(1),
        7,
        [ping(2)],
        {"jsonrpc": "2.0", "id": 3, "method": "ping", "params": [1]},
        {"jsonrpc": "1.0", "id": 4, "method": "ping"},
        {"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {}},
        call(6, "state", touched="yes"),
        call("n" * 2_000, "echo"),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}},
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        call(8, "echo", a=1),
    ]
    answer = old.post(mixed)
    assert answer.status_code == 200
    answers = answer.json()
    good = {m["id"]: m["result"] for m in answers if "result" in m}
    bad = [m["id"] for m in answers if "error" in m]
    assert good.keys() == {1, 6, 8} and json.loads(good[8]["content"][0]["text"]) == {"a": 1}
    assert sorted(map(str, bad)) == ["3", "4", "5", "None", "None", "None"]
    assert json.loads(tool_text(old.tool("state"))) == {"touched": "yes"}


@requirement("wall.before-auth", "spec.batch")
def test_large_answers_of_a_batch_are_sent_as_they_come(old: Legacy) -> None:
    answer = old.post([call(number, "giant", size=6 << 20) for number in range(4)])
    assert answer.headers["content-type"] == "text/event-stream", "all of them together would be too large to hold"
    answers = messages(answer)
    assert sorted(answer["id"] for answer in answers) == [0, 1, 2, 3] and all("result" in each for each in answers)
