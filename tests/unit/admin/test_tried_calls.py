"""The messages of a call that an operator tries."""

import json

from msgspec import Raw

from gateway.admin.tried_calls import answer_to_question, call_body, call_headers, cancel_body
from gateway.sessions.carriers import GATEWAY_HEADER, LEGACY_HEADER, NEW
from gateway.sessions.session_keys import KEY_META
from tests.requirements import requirement
from transports.era import LEGACY, MODERN
from transports.inbound.modern import VERSION_HEADER

pytestmark = requirement("ops.try-tools")


def test_a_modern_call_names_itself_in_its_headers_and_a_legacy_one_its_session() -> None:
    modern = call_headers(MODERN, token="", name="söll", correlation="0af7651916cd43dd8448eb211c80319c")
    assert (modern[GATEWAY_HEADER], modern["mcp-method"]) == (NEW, "tools/call")
    assert modern["mcp-name"].isascii() and modern["traceparent"].split("-")[1] == "0af7651916cd43dd8448eb211c80319c"
    assert call_headers(MODERN, token="t", name="x")[GATEWAY_HEADER] == "t"
    legacy = call_headers(LEGACY, token="t", name="x", version="2025-11-25")
    assert (legacy[LEGACY_HEADER], legacy[VERSION_HEADER]) == ("t", "2025-11-25")
    assert "mcp-name" not in legacy and VERSION_HEADER not in call_headers(LEGACY, token="t", name="x")


def test_a_key_names_a_new_session_of_a_modern_call_only() -> None:
    body = json.loads(call_body(MODERN, "r", "add", {"a": Raw(b"1")}, key="k"))
    assert (body["id"], body["params"]["name"], body["params"]["arguments"]) == ("r", "add", {"a": 1})
    assert body["params"]["_meta"][KEY_META] == "k"
    assert KEY_META not in json.loads(call_body(MODERN, "r", "add", {}))["params"]["_meta"]
    assert json.loads(call_body(LEGACY, "r", "add", {}, key="k"))["params"] == {"name": "add", "arguments": {}}


def test_questions_are_declined_and_what_is_no_question_of_a_user_is_an_error() -> None:
    declined = json.loads(answer_to_question({"id": 7, "method": "elicitation/create"}))
    assert declined == {"jsonrpc": "2.0", "id": 7, "result": {"action": "decline"}}
    refused = json.loads(answer_to_question({"id": 8, "method": "sampling/createMessage"}))
    assert refused["id"] == 8 and refused["error"]["code"] == -32601
    assert json.loads(cancel_body("r", "gone"))["params"] == {"requestId": "r", "reason": "gone"}
