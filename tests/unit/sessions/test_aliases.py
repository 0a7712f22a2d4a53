"""Names by which the store finds a session without its id."""

from typing import Any

import pytest

from gateway.sessions.aliases import Alias, default_alias, reattach_alias
from session_store import ANONYMOUS, Principal
from session_store.testing import ALICE, BOB
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts
from transports.era import Era
from transports.inbound_port import Request
from transports.soon import arrived


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


@requirement("cli.session-key-bound")
def test_a_key_holds_for_all_paths_of_an_app_and_for_one_endpoint_of_the_gateway() -> None:
    aliases = Parts().aliases
    at = {
        path: aliases.of_key(Request(era=Era.MODERN, endpoint=path, headers={"mcp-gateway-session-key": "k"}), ALICE)
        for path in ("/mcp", "/servers/a/mcp", "/basket", "/pay")
    }
    assert at["/basket"] == at["/pay"] and len(set(at.values())) == 3


def of_agent(agent: str, **headers: str) -> Request:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    meta = {"io.modelcontextprotocol/clientInfo": {"name": "agent"}}
    return Request(era=Era.MODERN, endpoint="/mcp", headers={"user-agent": agent, **given}, meta=meta)


async def default_of(asked: Request, parts: Parts | None = None, **settings: Any) -> Alias | None:
    return await arrived((parts or Parts(**settings)).aliases.of_default(asked, ALICE))


@pytest.mark.anyio
@requirement("cli.isolated", "cli.default")
async def test_only_a_client_that_certainly_brings_nothing_back_has_a_default_session() -> None:
    for agent in ("node", "curl/8.5.0", "Go-http-client/2.0"):
        assert await default_of(of_agent(agent)) is not None, agent
    for agent in ("python-httpx2/2.16.2", "python-httpx/0.28.1", "somebody's own/1", ""):
        assert await default_of(of_agent(agent)) is None, agent
    assert await default_of(of_agent("python-httpx2/2.16.2"), cookie=False) is not None, "nothing to bring back"
    assert await default_of(of_agent("somebody's own/1"), cookie=False) is None
    assert await default_of(of_agent("node"), default_session=False) is None
    assert await default_of(of_agent("node", mcp_gateway_session="new")) is None, "it will bring its token back"
    assert await default_of(of_agent("node", cookie="lang=en")) is None, "it keeps cookies"


@pytest.mark.anyio
@requirement("cli.default")
async def test_an_operator_adds_clients_that_bring_nothing_back() -> None:
    for name in ("agent", "somebody's"):
        assert await default_of(of_agent("somebody's own/1"), default_session_for=(name,)) is not None
    assert await default_of(of_agent("somebody's own/1"), default_session_for=("other",)) is None
