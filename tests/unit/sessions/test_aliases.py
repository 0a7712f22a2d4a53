"""Names by which the store finds a session without its id."""

from gateway.sessions.aliases import default_alias, reattach_alias
from session_store import ANONYMOUS, Principal
from session_store.testing import ALICE, BOB
from transports.era import Era
from transports.inbound_port import Request


def request(era: Era, name: str = "agent") -> Request:
    meta = {"io.modelcontextprotocol/clientInfo": {"name": name}}
    return Request(era=era, endpoint="/mcp", headers={}, meta=meta)


def test_only_authenticated_modern_clients_have_a_default_session() -> None:
    assert default_alias(request(Era.MODERN), ALICE) is not None
    assert default_alias(request(Era.MODERN), ANONYMOUS) is None
    assert default_alias(request(Era.LEGACY), ALICE) is None


def test_a_default_session_is_one_principals_with_one_client() -> None:
    modern = Era.MODERN
    aliases = [default_alias(request(modern, name), who) for name in ("agent", "other") for who in (ALICE, BOB)]
    assert len(set(aliases)) == 4
    assert default_alias(request(modern), ALICE) == default_alias(request(modern), ALICE)


def test_no_two_principals_share_an_alias_by_where_their_names_are_cut() -> None:
    one, other = Principal(issuer="a", subject='b", "c'), Principal(issuer='a", "b', subject="c")
    assert reattach_alias(one, "x", "/mcp") != reattach_alias(other, "x", "/mcp")
    assert reattach_alias(one, "x", "/mcp") != default_alias(request(Era.MODERN, "x"), one)


def test_a_client_is_re_attached_at_the_endpoint_it_was_at() -> None:
    assert reattach_alias(ALICE, "x", "/mcp") != reattach_alias(ALICE, "x", "/servers/a/mcp")
    assert reattach_alias(ANONYMOUS, "x", "/mcp") is None
