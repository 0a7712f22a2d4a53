"""The shipped table of client implementations."""

import re

import pytest

from gateway.sessions.client_chosen_keys import KEY_META, checked_key
from gateway.sessions.returning_clients import KNOWN, agent_of, implementation_of, session_key_line
from tests.requirements import requirement
from tests.unit.sessions.parts import request
from transports.inbound_port import Refused


@pytest.mark.parametrize(
    ("header", "agent"),
    [
        ("python-httpx2/2.16.2", "python-httpx2"),
        ("node", "node"),
        ("curl/8.5.0 (x86_64)", "curl"),
        ("node-fetch/1.0 (+https://github.com/node-fetch)", "node-fetch"),
        ("x" * 1_000, "x" * 64),
        ("", ""),
    ],
)
def test_an_agent_is_the_first_product_without_its_version(header: str, agent: str) -> None:
    assert agent_of(request(user_agent=header)) == agent


@requirement("cli.default")
def test_a_client_is_known_by_its_agent() -> None:
    python, node = KNOWN["python-httpx2"], KNOWN["node"]
    assert python.keeps_cookies and not node.keeps_cookies
    assert implementation_of("somebody's own", "node") is None and implementation_of("node", "agent") is node


@requirement("cli.isolated")
def test_the_name_of_a_client_wins_over_its_http_library() -> None:
    remote = implementation_of("node", "Cursor (via mcp-remote 0.15.1)")
    assert remote is not None and remote.keeps_cookies, "it keeps cookies, which Node's fetch does not"
    assert "mcp-remote URL --header 'K:<" in session_key_line("node", "x (via mcp-remote 1)", "K")
    meta = session_key_line("node", "x (via mcp-remote 1)", "")
    assert meta.startswith(f'"_meta": {{"{KEY_META}": "<'), "no header carries a key"


@requirement("cli.told")
@pytest.mark.parametrize("agent", [*sorted(KNOWN), "somebody's own"])
def test_each_client_is_told_the_header_in_its_own_words(agent: str) -> None:
    line = session_key_line(agent, "agent", "MCP-Gateway-Session-Key")
    assert "MCP-Gateway-Session-Key" in line and "{{" not in line
    assert "AsyncClient" not in line or "timeout=httpx" in line, "a tool may take longer than the 5 s of httpx"
    if (left := re.search(r"<.*>", line)) is not None:
        with pytest.raises(Refused, match="placeholder"):
            checked_key(left[0])
    else:
        assert re.search(r"\{(\.\.\.yourHeaders|\*\*your_headers), .*(randomUUID|uuid4)\(\)", line.replace("{ ", "{"))
