"""A client is asked to have its person consent in the form of its era, and only if that repeats nothing."""

import json
from typing import Any

import msgspec
import pytest

from gateway.calls.consent_questions import refuse_or_ask, without_consent
from gateway.calls.exchange import Exchange
from gateway.errors import ConsentRefusal, too_many_exchanges
from gateway.protocol.client_capabilities import declaration_in_meta
from tests.requirements import requirement
from transports.inbound_port import Refused

NEEDED = ConsentRefusal("files", "https://gateway.example/oauth/connect/x")


def answer_to(method: str, capabilities: Any, params: dict[str, Any] | None = None, refused: Refused = NEEDED) -> Any:
    """What a modern client with these capabilities is answered."""
    meta = {"io.modelcontextprotocol/clientCapabilities": capabilities}
    exchange = Exchange(
        method=method, client_id=1, live=None, declaration=declaration_in_meta(msgspec.json.encode(meta))
    )
    given = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in (params or {}).items()}
    refuse_or_ask(exchange, refused, given)
    frame = exchange.replies.take()
    assert frame is not None
    return json.loads(frame.data)


@requirement("cred.consent")
def test_a_modern_client_is_asked_where_its_era_lets_it_be_asked() -> None:
    urls: Any = {"elicitation": {"url": {}}}
    for method in ("tools/call", "prompts/get", "resources/read"):
        (question,) = answer_to(method, urls)["result"]["inputRequests"].values()
        assert question["params"] == {"mode": "url", "message": NEEDED.ask, "url": NEEDED.url}
    for method, capabilities, params in (
        ("tools/list", urls, {}),
        ("tools/call", {"elicitation": {"form": {}}}, {}),
        ("tools/call", {}, {}),
        ("tools/call", urls, {"requestState": "of an earlier round"}),
        ("tools/call", urls, {"inputResponses": {"name": {"action": "accept"}}}),
        ("tools/call", urls, {"inputResponses": {}}),
    ):
        error = answer_to(method, capabilities, params)["error"]
        assert (error["code"], error["data"]["reason"], error["data"]["url"]) == (-32013, "consent_needed", NEEDED.url)
        assert NEEDED.url in error["message"] and "repeat" not in error["message"]
    assert answer_to("tools/call", urls, refused=too_many_exchanges())["error"]["code"] == -32018


@requirement("cred.consent")
@pytest.mark.parametrize(
    ("answers", "left"),
    [
        ({"gateway-consent": {"action": "accept"}}, {}),
        ({"gateway-consent": {"action": "accept"}, "name": {"action": "cancel"}}, {"name": {"action": "cancel"}}),
        ({"name": {"content": "gateway-consent"}}, {"name": {"content": "gateway-consent"}}),
    ],
)
def test_a_server_does_not_get_the_answer_to_the_gateways_question(answers: Any, left: Any) -> None:
    params = {"name": msgspec.Raw(b'"tool"'), "inputResponses": msgspec.Raw(json.dumps(answers).encode())}
    found = without_consent(params)
    assert bytes(found["name"]) == b'"tool"'
    assert json.loads(bytes(found["inputResponses"])) == left


@requirement("cred.consent")
@pytest.mark.parametrize("answer", [{"action": "decline"}, {"action": "cancel"}, {}])
def test_a_person_who_does_not_consent_is_not_asked_again(answer: Any) -> None:
    answers = {"gateway-consent": answer, "name": {"action": "accept"}}
    with pytest.raises(Refused, match="has not consented") as refused:
        without_consent({"inputResponses": msgspec.Raw(json.dumps(answers).encode())})
    assert (refused.value.code, refused.value.reason) == (-32013, "consent_needed")
