"""Calls of modern clients to servers of the handshake era that ask something back, on one replica and on many."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from gateway.upstreams import factory
from tests.requirements import requirement
from tests.support.gateway_process import (
    PROBE,
    UNLIMITED,
    RunningGateway,
    operators_of,
    replicas,
    running_gateway,
    server,
)
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import RESTARTED, Modern, error_of, messages, result_of, tool_text, without_id
from tests.support.redis_server import RunningRedis
from tests.support.waiting import descendants, eventually

SERVERS = {"old": server((*PROBE, "legacy-only"))}
SESSION_KEY = "io.github.mcp-session-gateway/session"
ACCEPT: Any = {"action": "accept", "content": {}}


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    """One server, so that its tools have the same names at both endpoints."""
    with in_process_gateway(SERVERS) as running:
        yield running


def asked(response: httpx.Response) -> Any:
    """The `input_required` result in an answer."""
    result = result_of(response)
    assert result["resultType"] == "input_required", result
    return result


def back(client: Modern, tool: str, arguments: Any, state: str, responses: Any, **more: Any) -> httpx.Response:
    params = {"name": tool, "arguments": arguments, "requestState": state, "inputResponses": responses}
    return client.send("tools/call", params, **more)


def answers_to(question: Any, answer: Any = ACCEPT) -> Any:
    return dict.fromkeys(question["inputRequests"], answer)


@requirement("spec.bridge", "spec.modern")
def test_a_call_goes_through_its_rounds_with_nothing_but_the_state(
    gateway: InProcessGateway, http: httpx.Client
) -> None:
    client, arguments = Modern(gateway.url, http), {"times": 3}
    question = asked(client.tool("ask_once", arguments))
    for number in range(3):
        (request,) = question["inputRequests"].values()
        assert request["method"] == "elicitation/create" and request["params"]["message"] == f"question {number}"
        answer = {"action": "accept", "content": {"n": number}}
        response = back(client, "ask_once", arguments, question["requestState"], answers_to(question, answer))
        question = result_of(response)
    assert [heard["content"]["n"] for heard in json.loads(tool_text(response))] == [0, 1, 2]


@requirement("spec.bridge", "id.purpose")
def test_a_round_is_good_once_for_its_request_and_its_principal(gateway: InProcessGateway, http: httpx.Client) -> None:
    client, arguments = Modern(gateway.url, http), {"times": 2}
    first = asked(client.tool("ask_once", arguments))
    state, responses = first["requestState"], answers_to(first)
    for wrong in (
        back(client, "ask_once", {"times": 1}, state, responses),
        back(client, "ask_again", arguments, state, responses),
        back(client, "ask_once", arguments, state[:-6] + "AAAAAA", responses),
    ):
        assert without_id(error_of(wrong))["data"] == {"reason": "invalid_request_state"}
    second = asked(back(client, "ask_once", arguments, state, responses))
    again = back(client, "ask_once", arguments, state, responses)
    assert without_id(error_of(again))["data"] == {"reason": "invalid_request_state"}, "it was used"
    done = back(client, "ask_once", arguments, second["requestState"], answers_to(second))
    assert len(json.loads(tool_text(done))) == 2


@requirement("spec.bridge", "id.purpose")
def test_a_state_is_good_at_the_endpoint_that_gave_it(gateway: InProcessGateway, http: httpx.Client) -> None:
    here, there = Modern(gateway.url, http), Modern(f"{gateway.base}/servers/old/mcp", http)
    for given, other in ((here, there), (there, here)):
        question = asked(given.tool("ask_once", {}))
        state, responses = question["requestState"], answers_to(question)
        misplaced = back(other, "ask_once", {}, state, responses)
        assert misplaced.status_code == 400
        assert without_id(error_of(misplaced))["data"] == {"reason": "invalid_request_state"}
        assert len(json.loads(tool_text(back(given, "ask_once", {}, state, responses)))) == 1, "and it goes on there"


@requirement("spec.bridge")
def test_what_is_missing_is_asked_again(gateway: InProcessGateway, http: httpx.Client) -> None:
    client = Modern(gateway.url, http)
    arguments: dict[str, Any] = {}
    first = asked(client.tool("ask_once", arguments))
    again = asked(back(client, "ask_once", arguments, first["requestState"], {"something": ACCEPT}))
    assert again["inputRequests"] == first["inputRequests"]
    assert tool_text(back(client, "ask_once", arguments, again["requestState"], answers_to(again)))


@requirement("spec.bridge")
def test_what_a_client_has_not_declared_is_an_error_to_the_server(
    gateway: InProcessGateway, http: httpx.Client
) -> None:
    heard = json.loads(tool_text(Modern(gateway.url, http).tool("roots")))
    assert "not declared" in heard["message"]


@requirement("spec.bridge", "life.unconfirmed")
def test_a_client_that_never_comes_back_is_given_up(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "SUSPENDED_S", 1.5)
    with in_process_gateway(SERVERS, options={"session": {"unconfirmed_ttl_s": 1.0}}) as gateway:
        client = Modern(gateway.url, http)
        question = asked(client.tool("ask_once"))
        token = question["_meta"][SESSION_KEY]
        client = Modern(gateway.url, http, headers={"MCP-Gateway-Session": token})
        assert eventually(lambda: "did not send its answers" in tool_text(client.tool("cancelled")), within_s=6)
        late = messages(back(client, "ask_once", {}, question["requestState"], answers_to(question)))[-1]
        assert late["error"]["code"] == -32015, "the call has ended"


@requirement("wall.memory")
def test_calls_that_have_ended_are_not_kept_with_their_session(http: httpx.Client) -> None:
    """Their names are, for a while: a used round must not begin anew. Their arguments are not."""
    options = {"admin": {"listen": "127.0.0.1:0"}, "policy": UNLIMITED}
    with running_gateway(SERVERS, options=options) as gateway:
        first = asked(Modern(gateway.url, http).tool("ask_once"))
        headers = {"MCP-Gateway-Session": first["_meta"][SESSION_KEY]}
        client = Modern(gateway.url, http, headers=headers)
        back(client, "ask_once", {}, first["requestState"], answers_to(first))
        before = psutil.Process(gateway.pid).memory_info().rss
        arguments = {"times": 1, "x": "y" * 1_000_000}
        for _ in range(75):
            question = asked(client.tool("ask_once", arguments))
            assert tool_text(back(client, "ask_once", arguments, question["requestState"], answers_to(question)))
        grown = psutil.Process(gateway.pid).memory_info().rss - before
        text = http.get(f"{operators_of(gateway)}/metrics").text
        suspended = next(line for line in text.splitlines() if line.startswith("mcp_gateway_calls_parked"))
        assert float(suspended.split()[-1]) == 0, "nothing waits for its client"
        assert grown < 40 << 20


@requirement("rep.any", "rep.honest", "spec.bridge", "proc.reset-told")
def test_every_round_may_land_on_another_replica_also_when_the_owner_has_died(
    redis_server: RunningRedis, http: httpx.Client
) -> None:
    with replicas(redis_server.url, SERVERS, 3) as (owner, *others):
        first, second, third = (Modern(each.url, http) for each in (owner, *others))
        arguments = {"times": 3}
        response = first.tool("ask_once", arguments)
        for client in (second, third, first):
            question = asked(response)
            response = back(client, "ask_once", arguments, question["requestState"], answers_to(question))
        assert len(json.loads(tool_text(response))) == 3

        arguments = {"times": 2}
        lost = asked(first.tool("ask_once", arguments))
        repeatable = asked(first.tool("ask_again", arguments))
        again = asked(back(second, "ask_again", arguments, repeatable["requestState"], answers_to(repeatable)))
        assert {p.environ().get("MCP_SESSION_ID") for p in descendants(owner.pid)} - {None}, "it has the servers"
        owner.kill()
        answer = messages(back(third, "ask_once", arguments, lost["requestState"], answers_to(lost)))[-1]
        assert answer["error"]["code"] == -32014, "whether it took effect is unknown"
        done = back(third, "ask_again", arguments, again["requestState"], answers_to(again))
        assert len(json.loads(tool_text(done))) == 2, "both answers were given again, and nobody was asked"
        assert result_of(done)["_meta"][RESTARTED] == {"reason": "takeover"}


@requirement("wall.return")
@pytest.mark.parametrize("tool", ["ask_once", "want"])
def test_an_answer_brings_no_keys_of_the_gateway_to_a_server(
    gateway: InProcessGateway, probe: RunningGateway, http: httpx.Client, tool: str
) -> None:
    forged = {"io.github.mcp-session-gateway/context": {"trust": "direct"}, "com.example/own": 1}
    answer = {"action": "accept", "content": {}, "_meta": forged}
    client = Modern(probe.at("probe") if tool == "want" else gateway.url, http)
    question = asked(client.tool(tool))
    response = back(client, tool, {}, question["requestState"], answers_to(question, answer))
    assert '"com.example/own": 1' in tool_text(response) and "direct" not in tool_text(response)
