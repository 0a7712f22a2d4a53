"""How requests carry their session."""

from typing import Any

import msgspec
import pytest

from gateway.context.session_facts import SESSION_KEY
from gateway.sessions.token_carriers import (
    Carriers,
    brings_token,
    client_facts,
    cookies_of,
    explicit_token,
    modern_client,
    names_token,
    same_client,
    without_tokens,
)
from session_store import KeyRing
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.sessions.parts import request
from transports.era import Era

CLOCK = FakeClock()


def test_explicit_tokens_come_in_the_order_of_their_carriers_of_which_a_modern_client_has_two() -> None:
    meta = {SESSION_KEY: "meta"}
    all_of_them: dict[str, Any] = {"mcp_session_id": "legacy", "mcp_gateway_session": "own"}
    assert explicit_token(request(meta=meta, **all_of_them)) == "legacy"
    assert explicit_token(request(Era.MODERN, **all_of_them)) == "own"
    assert explicit_token(request(mcp_gateway_session="own", meta=meta)) == "own"
    assert explicit_token(request(meta=meta)) == "meta"
    assert explicit_token(request()) is explicit_token(request(Era.MODERN, mcp_session_id="legacy")) is None


@requirement("wall.authority")
def test_the_body_names_the_session_only_where_no_header_does() -> None:
    meta = {SESSION_KEY: "meta"}
    own = [request(era, mcp_gateway_session="a") for era in Era]
    assert all(names_token(named) for named in (*own, request(mcp_session_id="a")))
    for left in (request(meta=meta), request(mcp_gateway_session="new"), request(Era.MODERN, mcp_session_id="a")):
        assert not names_token(left)


@pytest.mark.parametrize(
    ("header", "plain", "behind_tls"),
    [
        ("mcp_session_id=a", ["a"], []),
        ("x=1; mcp_session_id=a; __Host-mcp_session_id=b", ["a"], ["b"]),
        ("mcp_session_id=a; mcp_session_id=b", ["a", "b"], []),
        ("; ".join(f"mcp_session_id={n}" for n in range(9)), ["0", "1", "2", "3"], []),
        ("", [], []),
    ],
)
def test_cookies_are_ours_by_name_and_four_at_most(header: str, plain: list[str], behind_tls: list[str]) -> None:
    assert cookies_of(request(cookie=header)) == plain
    assert cookies_of(request(cookie=header, secure=True)) == behind_tls


def test_what_a_client_says_of_itself_may_be_anything_and_is_cut() -> None:
    anything: list[Any] = [None, [], "x", {"name": None}, {}]
    assert [client_facts(info, "1").name for info in anything] == [""] * 5
    meta = {"io.modelcontextprotocol/clientInfo": {"name": "n" * 1_000, "version": "v" * 1_000}}
    facts = modern_client(request(Era.MODERN, meta=meta))
    assert (len(facts.name), len(facts.version)) == (128, 64)


def test_a_client_is_the_same_by_its_name_at_one_endpoint_in_the_legacy_era() -> None:
    session, facts = a_session(CLOCK), client_facts({"name": "tests"}, "1")
    assert same_client(session, request(), facts)
    assert not same_client(session, request(), client_facts({"name": "other"}, "1"))
    assert not same_client(a_session(CLOCK, endpoint="/servers/x/mcp"), request(), facts)
    assert not same_client(a_session(CLOCK, era="modern"), request(), facts)


@requirement("id.cookie-flags")
def test_a_client_learns_of_its_session_by_headers_and_once_by_a_cookie() -> None:
    carriers, session = Carriers(KeyRing.ephemeral(), cookie=True), a_session(CLOCK)
    told = dict(carriers.headers(session, request(), cookie_held=False))
    assert carriers.tokens.verify(told[b"mcp-gateway-session"].decode()) == session.id
    assert told[b"mcp-session-id"] == told[b"mcp-gateway-session"] and told[b"cache-control"] == b"no-store"
    name, _, value = told[b"set-cookie"].decode().partition("=")
    value, _, flags = value.partition(";")
    assert name == "mcp_session_id" and carriers.cookies.verify(value) == session.id
    assert flags == " Path=/; HttpOnly; SameSite=Strict"
    assert b"set-cookie" not in dict(carriers.headers(session, request(), cookie_held=True))
    modern = dict(carriers.headers(session, request(Era.MODERN, secure=True), cookie_held=False))
    assert b"mcp-session-id" not in modern and modern[b"set-cookie"].startswith(b"__Host-mcp_session_id=")
    assert modern[b"set-cookie"].endswith(b"; Secure")
    elsewhere = msgspec.structs.replace(request(Era.MODERN), same_site=False)
    told = dict(carriers.headers(session, elsewhere, cookie_held=False))
    assert b"mcp-gateway-session" in told and b"set-cookie" not in told, "it would replace that of the user's session"


def test_the_token_of_a_session_within_another_is_that_of_the_one_around_it() -> None:
    carriers, parent = Carriers(KeyRing.ephemeral(), cookie=False), a_session(CLOCK)
    assert carriers.tokens.verify(carriers.token(a_session(CLOCK, parent=parent.id))) == parent.id


@requirement("id.result-token")
def test_the_result_has_the_token_of_a_new_session_whose_client_has_no_other_way_to_it() -> None:
    ours, without_cookies = (
        Carriers(KeyRing.ephemeral(), cookie=cookie, key_headers=("X-Key",)) for cookie in (True, False)
    )
    asked, keyed = request(Era.MODERN), request(Era.MODERN, x_key="k")
    for shown in (asked, request(Era.MODERN, user_agent=""), request(Era.MODERN, meta={SESSION_KEY: "new"})):
        assert ours.is_in_result(shown, opened=True)
    assert not ours.is_in_result(asked, opened=False), "it is not new"
    assert not ours.is_in_result(keyed, opened=True), "the client has its key"
    assert not ours.is_in_result(request(Era.MODERN, mcp_gateway_session="new"), opened=True), "it reads headers"
    for keeps_cookies in (request(Era.MODERN, cookie="a=b"), request(Era.MODERN, user_agent="python-httpx2/2.0")):
        assert not ours.is_in_result(keeps_cookies, opened=True)
        assert without_cookies.is_in_result(keeps_cookies, opened=True)


@requirement("rep.sealed")
def test_tokens_stay_with_the_replica_that_has_verified_them() -> None:
    sent = [
        (b"mcp-session-id", b"id.secret"),
        (b"mcp-gateway-session", b"id.secret"),
        (b"cookie", b"mcp_session_id=secret; other=secret; __Host-mcp_session_id=secret"),
        (b"accept", b"application/json"),
    ]
    blank = [(b"mcp-session-id", b""), (b"mcp-gateway-session", b"")]
    assert without_tokens(sent) == [*blank, (b"cookie", b"__Host-mcp_session_id=; mcp_session_id="), sent[3]]
    for name, value in without_tokens(sent)[:3]:
        sent_again: dict[str, Any] = {name.decode().replace("-", "_"): value.decode()}
        assert brings_token(request(**sent_again)), "it has brought one"
    new = [(b"mcp-gateway-session", b"new")]
    assert without_tokens([*new, (b"cookie", b"other=secret")]) == [*new, (b"cookie", b"")]
