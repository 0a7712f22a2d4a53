"""Rules of the headers of Streamable HTTP."""

import pytest

from transports.era import Era
from transports.inbound.headers import check_legacy, check_post, check_version, era_of, preflight
from transports.inbound_port import Refused
from transports.jsonrpc import parse

BOTH = "application/json, text/event-stream"


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


def test_the_version_header_names_the_era() -> None:
    assert era_of({"mcp-protocol-version": "2026-07-28"}) is Era.MODERN
    assert era_of({}) is era_of({"mcp-protocol-version": "2025-11-25"}) is era_of({"mcp-protocol-version": "?"})
    assert era_of({}) is Era.LEGACY


def test_initialize_negotiates_its_version_and_other_messages_have_one() -> None:
    unknown = {"mcp-protocol-version": "1999-01-01"}
    check_version({})
    check_version({"mcp-protocol-version": "2025-06-18"})
    check_legacy(unknown, parse(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}'))
    with pytest.raises(Refused, match="Supported"):
        check_legacy(unknown, parse(b'{"jsonrpc":"2.0","id":1,"method":"ping"}'))


def test_a_preflight_permits_what_the_page_asks_for() -> None:
    allowed = dict(preflight({"access-control-request-headers": "mcp-session-id"}))
    assert allowed[b"access-control-allow-headers"] == b"mcp-session-id"
    assert b"POST" in allowed[b"access-control-allow-methods"]
