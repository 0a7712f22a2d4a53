"""Names by which the store finds a session without its id."""

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.sessions.session_aliases import default_alias, reattach_alias
from session_store import ANONYMOUS, Principal
from session_store.testing import ALICE, BOB
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts, request
from transports.era import Era
from transports.inbound_port import Refused, Request

MODERN = Era.MODERN


def test_a_default_session_is_that_of_one_authenticated_principal_with_one_modern_client() -> None:
    asked = request(MODERN)
    aliases = {default_alias(request(MODERN, client=name), who) for name in ("tests", "other") for who in (ALICE, BOB)}
    assert len(aliases) == 4 and None not in aliases and default_alias(asked, ALICE) in aliases
    assert default_alias(asked, ANONYMOUS) is default_alias(replace(asked, era=Era.LEGACY), ALICE) is None
    newer = request(MODERN, meta={"io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "2"}})
    assert default_alias(newer, ALICE) not in aliases


def test_no_two_principals_share_an_alias_by_where_their_names_are_cut() -> None:
    one, other = Principal(issuer="a", subject='b", "c'), Principal(issuer='a", "b', subject="c")
    assert reattach_alias(one, "x", "/mcp") != reattach_alias(other, "x", "/mcp")
    assert reattach_alias(one, "x", "/mcp") != default_alias(request(MODERN, client="x"), one)


def test_a_client_is_re_attached_at_the_endpoint_it_was_at() -> None:
    assert reattach_alias(ALICE, "x", "/mcp") != reattach_alias(ALICE, "x", "/servers/a/mcp")
    assert reattach_alias(ANONYMOUS, "x", "/mcp") is None


@requirement("cli.session-key-bound")
def test_a_key_holds_for_all_paths_of_an_app_and_for_one_endpoint_of_the_gateway() -> None:
    aliases = Parts().aliases
    at = {
        path: aliases.of_key(request(MODERN, endpoint=path, mcp_gateway_session_key="k"), ALICE)
        for path in ("/mcp", "/servers/a/mcp", "/basket", "/pay")
    }
    assert at["/basket"] == at["/pay"] and len(set(at.values())) == 3


async def has_default(asked: Request, **settings: Any) -> bool:
    return await Parts(**settings).aliases.of_default(asked, ALICE) is not None


@requirement("cli.isolated", "cli.default")
async def test_only_a_client_that_certainly_brings_nothing_back_has_a_default_session() -> None:
    for agent in ("node", "curl/8.5.0", "Go-http-client/2.0"):
        assert await has_default(request(MODERN, user_agent=agent)), agent
    for agent in ("python-httpx2/2.16.2", "python-httpx/0.28.1", "somebody's own/1", ""):
        assert not await has_default(request(MODERN, user_agent=agent)), agent
    keeps_cookies = request(MODERN, user_agent="python-httpx2/2.16.2")
    assert await has_default(keeps_cookies, cookie=False), "nothing to bring back"
    assert not await has_default(request(MODERN, user_agent="somebody's own/1"), cookie=False)
    assert not await has_default(request(MODERN), default_session=False)
    assert not await has_default(request(MODERN, mcp_gateway_session="new")), "it will bring its token back"
    assert not await has_default(request(MODERN, cookie="lang=en")), "it keeps cookies"


@requirement("cli.default-shared")
async def test_a_client_that_would_share_is_refused_with_its_line_if_the_operator_says_so() -> None:
    with pytest.raises(Refused) as refusal:
        await has_default(request(MODERN, user_agent="node"), default_session="refuse")
    assert (refusal.value.status, refusal.value.data) == (400, {"reason": "session_key_needed"})
    assert '"MCP-Gateway-Session-Key": crypto.randomUUID()' in str(refusal.value)
    assert not await has_default(request(MODERN, user_agent="python-httpx2/2.16.2"), default_session="refuse")
    assert not await has_default(request(MODERN, mcp_gateway_session="new"), default_session="refuse")


@requirement("cli.default")
async def test_an_operator_adds_clients_that_bring_nothing_back() -> None:
    asked = request(MODERN, client="agent", user_agent="somebody's own/1")
    for name, expected in (("agent", True), ("somebody's", True), ("other", False)):
        assert await has_default(asked, default_session=(name,)) is expected, name
