"""How the clients of an app carry their session."""

import tracemalloc
from typing import Any

import pytest

from gateway.integrations.app_session_id_carriers import AppCarriers, has_header, with_session_headers
from session_store import KeyRing
from session_store.session import new_session_id
from tests.requirements import requirement
from transports.inbound_port import Refused

pytestmark = requirement("app.carriers")

RING = KeyRing(["k" * 40])
CARRIERS = AppCarriers(RING, cookie=True)
ID = new_session_id()


def scope(*headers: tuple[str, str], scheme: str = "http", peer: str = "192.0.2.1") -> dict[str, Any]:
    raw = [(name.encode(), value.encode()) for name, value in (("host", "app.example"), *headers)]
    return {"type": "http", "scheme": scheme, "headers": raw, "client": (peer, 1)}


def cookie_of(given: Any) -> str:
    """The `Set-Cookie` of these headers; empty if there is none."""
    return next((value.decode() for name, value in given if name == b"set-cookie"), "")


def sent_back(given: Any) -> tuple[str, str]:
    """The cookie as a browser sends it back."""
    return "cookie", "other=1; " + cookie_of(given).partition(";")[0]


@requirement("id.forged")
def test_a_session_comes_back_by_header_and_by_cookie_and_forged_ones_are_nobodys() -> None:
    given = CARRIERS.giving(scope(), ID)
    token = dict(given)[b"mcp-gateway-session"].decode()
    named = scope(("mcp-gateway-session", token))
    assert has_header(named) and not has_header(scope())
    assert CARRIERS.session_ids(scope(sent_back(given))) == CARRIERS.session_ids(named) == (ID,)
    assert CARRIERS.session_ids(scope(("mcp-gateway-session", token[:-1] + "x"), sent_back(given))) == ()
    assert CARRIERS.session_ids(scope(("cookie", f"mcp_session_id={token}"))) == (), "a token is no cookie"
    assert CARRIERS.session_ids(scope()) == ()
    with pytest.raises(Refused, match="more than once"):
        CARRIERS.session_ids(scope(("mcp-gateway-session", "a"), ("mcp-gateway-session", "b")))


@requirement("id.cookie-flags")
def test_the_cookie_is_bound_to_the_host_behind_tls() -> None:
    plain, secure = CARRIERS.giving(scope(), ID), CARRIERS.giving(scope(scheme="https"), ID)
    assert cookie_of(plain).startswith("mcp_session_id=") and "Secure" not in cookie_of(plain)
    assert cookie_of(secure).startswith("__Host-mcp_session_id=") and cookie_of(secure).endswith("; Secure")
    assert all("; Path=/; HttpOnly; SameSite=Lax" in cookie_of(given) for given in (plain, secure))
    assert cookie_of(CARRIERS.giving(scope(scheme="wss"), ID)) == cookie_of(secure)
    assert CARRIERS.session_ids(scope(sent_back(plain), scheme="https")) == (), "anybody on the network can set it"
    proxied = scope(("x-forwarded-proto", "https"), peer="127.0.0.1")
    assert cookie_of(CARRIERS.giving(proxied, ID)) == cookie_of(secure), "a proxy on this machine ends TLS"


@requirement("id.cookie-flags")
@pytest.mark.parametrize(
    "cause",
    [("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site"), ("origin", "https://evil.example")],
    ids=str,
)
def test_a_cookie_does_not_count_across_sites_and_is_not_replaced(cause: tuple[str, str]) -> None:
    held = sent_back(CARRIERS.giving(scope(), ID))
    assert CARRIERS.session_ids(scope(held, cause)) == ()
    assert not cookie_of(CARRIERS.giving(scope(held, cause), new_session_id())), "the visitor keeps the session"
    assert cookie_of(CARRIERS.giving(scope(cause), ID)), "a first visit, by a link from elsewhere"


def test_a_client_is_told_to_forget_only_what_it_holds() -> None:
    held = sent_back(CARRIERS.giving(scope(), ID))
    assert cookie_of(CARRIERS.taking(scope(held), ID)).startswith("mcp_session_id=; ")
    assert cookie_of(CARRIERS.taking(scope(held), ID)).endswith("Max-Age=0")
    assert CARRIERS.taking(scope(), ID) == [] and CARRIERS.taking(scope(held), new_session_id()) == []


def test_without_cookies_the_header_alone_carries() -> None:
    carriers = AppCarriers(RING, cookie=False)
    assert carriers.session_ids(scope(sent_back(CARRIERS.giving(scope(), ID)))) == ()
    assert [name for name, _ in carriers.giving(scope(), ID)] == [b"mcp-gateway-session"]


@requirement("app.cache-control")
@pytest.mark.parametrize(
    ("name", "said", "plain", "with_token"),
    [
        (b"cache-control", b"", b"", b"no-store"),
        (b"cache-control", b"private, max-age=9", b"private, max-age=9", b"private, max-age=9, no-store"),
        (b"cache-control", b"No-Store", b"No-Store", b"No-Store"),
        (b"vary", b"", *[b"Cookie, Mcp-Gateway-Session"] * 2),
        (b"vary", b"accept, cookie", *[b"accept, cookie, Mcp-Gateway-Session"] * 2),
        (b"vary", b"*", b"*", b"*"),
    ],
)
def test_what_the_app_says_of_caching_stays_and_what_is_missing_is_added(
    name: bytes, said: bytes, plain: bytes, with_token: bytes
) -> None:
    app_says = [(name, said)] if said else []
    for given, expected in (([], plain), ([(b"set-cookie", b"x")], with_token)):
        told = with_session_headers(app_says, given)
        assert [value for header, value in told if header == name] == ([expected] if expected else [])
        assert set(given) < {*told}


def test_headers_that_clients_make_long_or_many_are_not_held_in_memory() -> None:
    carriers = AppCarriers(RING, cookie=True)
    tracemalloc.start()
    try:
        for number in range(60):
            carriers.session_ids(scope(*[("cookie", f"{number}.{part}=" + "x" * 490) for part in range(100)]))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1 << 20, "60 requests with 50 KB of cookies each"
