"""A head and a body become a request, or break a rule of their era."""

import json
from typing import Any

import msgspec
import pytest

from transports.era import LEGACY, MODERN
from transports.inbound.host_and_origin import Guard
from transports.inbound.http_requests_and_responses import header_map
from transports.inbound.post_parsing import (
    Head,
    LengthChecks,
    Posts,
    check_post,
    check_version,
    era_of,
    is_batch,
    preflight,
)
from transports.inbound.unauthenticated_limits import Limits, Refusals
from transports.inbound_port import Refused, Request
from transports.jsonrpc import HEADER_MISMATCH, INVALID_REQUEST, PARSE_ERROR, InvalidMessage

VERSION = "io.modelcontextprotocol/protocolVersion"
MODERN_META = {VERSION: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
BOTH = "application/json, text/event-stream"


def posts() -> Posts:
    return Posts("/mcp", Guard(), LengthChecks(Limits(), Refusals()))


def head(**headers: str) -> Head:
    raw = [
        (name.replace("_", "-").encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()
    ]
    scope = {"headers": raw, "client": ("192.0.2.1", 1), "scheme": "http"}
    return posts().head(scope, header_map(raw))


def request(head: Head, message: Any) -> Request:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    return posts().request(head, posts().read(body), len(body))


def test_a_legacy_call_has_the_facts_of_its_head() -> None:
    found = request(head(mcp_protocol_version="2025-11-25"), {"id": 1, "method": "tools/call", "params": {"name": "a"}})
    assert (found.era, found.endpoint, found.protocol_version) == (LEGACY, "/mcp", "2025-11-25")
    assert (found.peer, found.client, found.secure, found.same_site) == ("192.0.2.1", "192.0.2.1", False, True)
    assert found.check_mirrored is None and found.body_bytes > 0 and found.arrived_at > 0


def test_the_meta_of_a_message_makes_it_modern_and_its_head_agrees() -> None:
    call = {"id": 1, "method": "tools/call", "params": {"name": "a", "_meta": MODERN_META}}
    named = head(mcp_protocol_version="2026-07-28", mcp_method="tools/call", mcp_name="a")
    found = request(named, call)
    assert found.era is MODERN and found.check_mirrored is not None
    other = head(mcp_protocol_version="2026-07-28", mcp_method="tools/call", mcp_name="b")
    for wrong in (other, head(mcp_protocol_version="2025-11-25")):
        with pytest.raises(Refused) as refused:
            request(wrong, call)
        assert refused.value.code == HEADER_MISMATCH


def test_modern_responses_and_unreadable_bodies_are_refused() -> None:
    with pytest.raises(Refused) as refused:
        request(head(mcp_protocol_version="2026-07-28"), {"id": 1, "result": {}})
    assert refused.value.code == INVALID_REQUEST
    with pytest.raises(Refused) as refused:
        posts().read(b"{")
    assert (refused.value.status, refused.value.code) == (400, PARSE_ERROR)
    with pytest.raises(InvalidMessage):
        request(head(), {"id": 1, "method": "ping", "params": [1]})
    with pytest.raises(msgspec.MsgspecError):
        posts().request(head(), posts().read(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":1e999}}'), 1)


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
@pytest.mark.parametrize("accept", [BOTH, "*/*", "application/*;q=0.5, text/*", "TEXT/event-stream,application/json"])
def test_a_post_of_json_that_accepts_both_answers_is_served(kind: str, accept: str) -> None:
    check_post({"content-type": kind, "accept": accept})


@pytest.mark.parametrize(
    ("kind", "accept", "status"),
    [
        ("", BOTH, 415),
        ("text/plain", BOTH, 415),
        ("application/json", "", 406),
        ("application/json", "application/json", 406),
        ("application/json", "text/event-stream" + " " * 10_000, 406),
    ],
)
def test_other_media_types_are_refused(kind: str, accept: str, status: int) -> None:
    with pytest.raises(Refused) as refused:
        check_post({"content-type": kind, "accept": accept})
    assert refused.value.status == status


def test_the_version_header_names_the_era_and_the_first_byte_a_batch() -> None:
    assert era_of({"mcp-protocol-version": "2026-07-28"}) is MODERN
    assert {era_of(head) for head in ({}, *({"mcp-protocol-version": each} for each in ("2025-11-25", "?")))} == {
        LEGACY
    }
    assert is_batch(b" \r\n[") and not is_batch(b"{[") and not is_batch(b"")


def test_initialize_negotiates_its_version_and_other_messages_have_one() -> None:
    unknown = head(mcp_protocol_version="1999-01-01")
    check_version({})
    check_version({"mcp-protocol-version": "2025-06-18"})
    assert request(unknown, {"id": 1, "method": "initialize", "params": {}}).era is LEGACY
    with pytest.raises(Refused, match="Supported"):
        request(unknown, {"id": 1, "method": "ping"})


def test_a_preflight_permits_what_the_page_asks_for() -> None:
    allowed = dict(preflight({"access-control-request-headers": "mcp-session-id"}))
    assert allowed[b"access-control-allow-headers"] == b"mcp-session-id"
    assert b"POST" in allowed[b"access-control-allow-methods"]
