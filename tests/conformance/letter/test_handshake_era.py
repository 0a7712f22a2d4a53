"""What servers and clients of 2025-03-26 to 2025-11-25 have to do, and rules of the bridge between the eras."""

import re
import sys
from typing import Any

import httpx
import pytest

from gateway.bridge.request_state import STATE_TTL_S, Binding, RequestDigest, RequestStateSeal
from session_store import KeyRing, Principal
from session_store.testing import FakeClock
from tests.conformance.letter.conftest import Letter
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import PROBE, ROOT, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, events, result_of, tool_text
from tests.support.recording_server import messages_of
from tests.support.scripted_http_server import running_http_probe
from transports.inbound_port import Refused
from transports.jsonrpc import decode_object

pytestmark = requirement("spec.letter")

VISIBLE = re.compile(r"[\x21-\x7e]+")


def test_session_ids_are_random_and_visible_ascii(letter: Letter, http: httpx.Client) -> None:
    ids = {Legacy(letter.url("old"), http).open().session for _ in range(3)}
    assert len(ids) == 3
    for session in ids:
        assert VISIBLE.fullmatch(session) and len(session.partition(".")[0]) >= 22, "128 bits and a signature"


def test_a_stream_that_is_cut_says_when_to_come_back(http: httpx.Client) -> None:
    with running_gateway({"p": server(PROBE)}, options={"limits": {"poll_after_s": 0.2}}) as gateway:
        client = Legacy(gateway.url, http).open()
        params = {"name": "hang", "arguments": {"say": True}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        with http.stream("POST", gateway.url, json=body, headers=client.request_headers()) as stream:
            text = "".join(stream.iter_text())
        first = text.split("\n\n")[0]
        assert "retry: " in first and next(events(text))[0], "an id to come back with, and the time"
        assert not any('"result"' in data for _, data in events(text))
        assert client.delete().status_code == 200, "or the gateway would wait for the call when it stops"


def test_a_modern_client_is_asked_in_answer_to_calls_reads_and_prompts_only(http: httpx.Client) -> None:
    """A legacy server may ask during any request. What it asks during another one is refused to it."""
    with running_gateway({"p": server((sys.executable, "-c", ASKING), env={"PYTHONPATH": str(ROOT)})}) as gateway:
        client = Modern(gateway.url, http)
        params = {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "b"}}
        completed = result_of(client.send("completion/complete", params))
        assert completed["resultType"] == "complete" and "code" in completed["completion"]["values"][0]
        asked = result_of(client.send("prompts/get", {"name": "p"}))
        assert asked["resultType"] == "input_required" and asked["inputRequests"]
        wrong = {"name": "p", "requestState": asked["requestState"], "inputResponses": 7}
        refused = client.send("prompts/get", wrong)
        assert refused.status_code == 400 and refused.json()["error"]["code"] in (-32600, -32602)


ASKING = """
from tests.support.stdio_server import StdioServer

def ask(_=None):
    params = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
    return str(server.ask("q", "elicitation/create", params))

answers = {
    "completion/complete": lambda _: {"completion": {"values": [ask()]}},
    "prompts/get": lambda _: {"messages": [], "description": ask()},
}
server = StdioServer("asking", answers, {"completions": {}, "prompts": {}}, era="legacy", threads=True)
server.run()
"""


def test_answers_that_cannot_be_read_are_an_error(letter: Letter, http: httpx.Client) -> None:
    client = Modern(letter.url("old"), http)
    asked = result_of(client.tool("ask_once"))
    key = next(iter(asked["inputRequests"]))
    for wrong in ("no object", [1], 7):
        params = {"name": "ask_once", "arguments": {}, "requestState": asked["requestState"], "inputResponses": wrong}
        answer = client.send("tools/call", params)
        assert answer.status_code == 400 and answer.json()["error"]["code"] in (-32600, -32602)
    good = {key: {"action": "accept", "content": {}}}
    params = {"name": "ask_once", "arguments": {}, "requestState": asked["requestState"], "inputResponses": good}
    assert tool_text(client.send("tools/call", params)), "the state is not used up by them"


def test_what_a_client_says_of_its_roots_reaches_the_server(letter: Letter, http: httpx.Client) -> None:
    client = Legacy(letter.url("old"), http).open(capabilities={"roots": {"listChanged": True}})
    refusal = {"code": -32603, "message": "no access"}
    with client.streaming("tools/call", {"name": "roots"}) as coming:
        seen = []
        for message in coming:
            seen.append(message)
            if message.get("method") == "roots/list":
                client.reply(message, error=refusal)
    assert client.notify("notifications/roots/list_changed").status_code == 202
    assert client.tool("pid").status_code == 200, "later messages have come by then"

    def told() -> list[Any]:
        records = [messages_of(path) for path in letter.records("old")]
        (own,) = (sent for sent in records if any(m.get("error") == refusal for m in sent))
        return own

    assert "notifications/roots/list_changed" in [message.get("method") for message in told()]
    hello = next(message for message in told() if message.get("method") == "initialize")
    assert hello["params"]["capabilities"]["roots"] == {"listChanged": True}


def test_documents_have_what_receivers_of_tasks_are_to_document() -> None:
    """MCP 2025-11-25, Tasks: what the id of a task grants, the greatest time to live, the most tasks at once."""
    tasks, settings = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("tasks.md", "tuning.md"))
    assert "Among anonymous clients, whoever has the id has the task." in tasks
    assert "which the gateway keeps between one minute and `ttl_s`" in tasks
    assert "has 100 tasks already, or its\n  principal 1,000," in tasks
    assert "| `ttl_s` |" in settings


def test_a_state_lapses() -> None:
    clock = FakeClock()
    seal = RequestStateSeal(KeyRing(["k" * 40]), clock)
    params = decode_object(b'{"name":"t","arguments":{}}', "params")
    binding = Binding(Principal(issuer="i", subject="s"), "mcp", RequestDigest("tools/call", params))
    sealed = seal.seal({}, session_id="s-1", binding=binding)["requestState"]
    clock.pass_time(STATE_TTL_S - 1)
    assert seal.open(sealed, binding).session == "s-1"
    clock.pass_time(2)
    with pytest.raises(Refused):
        seal.open(sealed, binding)


def test_the_token_of_a_client_goes_to_no_server(http: httpx.Client) -> None:
    with running_http_probe() as remote:
        options = {"api_keys": {"alice": sha256("a-key-of-alice")}}
        with running_gateway({"remote": {"url": remote.url}}, options=options) as gateway:
            for client in (
                Legacy(gateway.url, http, headers=bearer("a-key-of-alice")).open(),
                Modern(gateway.url, http, headers=bearer("a-key-of-alice")),
            ):
                assert tool_text(client.tool("echo", {"text": "hi"})) == "hi"
        assert remote.headers and not any("authorization" in headers for headers in remote.headers)
        assert "a-key-of-alice" not in str(remote.headers)
