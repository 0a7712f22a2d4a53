"""Name client implementations, and which of them send a response's session back in later requests. Pure.

Only a client that certainly sends nothing back gets its principal's default session. A client that keeps cookies, or
that is not in the table, gets a session of its own: a wrong guess would merge two clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gateway.sessions.client_chosen_keys import KEY_META
from transports.inbound_port import Request

MAX_AGENT_CHARS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """The behaviour of clients built on one HTTP library, unless their authors have changed it. No SDK sends back
    `MCP-Gateway-Session` or the session in `_meta` by itself; every SDK sends back `requestState` within a call."""

    keeps_cookies: bool
    """True if a client sends cookies back as long as it runs."""
    line: str
    """Sample code that sends a session key in the header `{header}` (a placeholder). Each run needs another key,
    because two instances must not share one."""


# The text in angle brackets is refused as a key (`client_chosen_keys.checked_key`) until somebody replaces it.
_KEY: Final = "<A RANDOM UUID FOR EACH CLIENT>"
_HEADER: Final = f"{{header}}: {_KEY}"
_PYTHON: Final = (
    'httpx2.AsyncClient(headers={{**your_headers, "{header}": str(uuid.uuid4())}}, '
    "timeout=httpx2.Timeout(30, read=300))"
)
_FETCH: Final = Implementation(
    keeps_cookies=False,
    line="new StreamableHTTPClientTransport(url, "
    '{{ requestInit: {{ headers: {{ ...yourHeaders, "{header}": crypto.randomUUID() }} }} }})',
)
_OTHER: Final = Implementation(keeps_cookies=False, line=_HEADER)

KNOWN: Final[Mapping[str, Implementation]] = MappingProxyType(
    {
        # By the product in the User-Agent header. The sources for the cookies: the documents of these libraries, and
        # tests/clients/test_client_table.py for those that MCP clients in wide use are built on.
        "python-httpx2": Implementation(keeps_cookies=True, line=_PYTHON),
        "python-httpx": Implementation(keeps_cookies=True, line=_PYTHON.replace("httpx2", "httpx")),
        **dict.fromkeys(("node", "Bun", "Deno", "node-fetch", "axios"), _FETCH),
        "curl": Implementation(keeps_cookies=False, line=f"curl -H '{_HEADER}'"),
        **dict.fromkeys(("Go-http-client", "Java-http-client", "okhttp"), _OTHER),
    }
)

_MCP_REMOTE: Final = Implementation(keeps_cookies=True, line=f"mcp-remote URL --header '{{header}}:{_KEY}'")


def agent_of(request: Request) -> str:
    """Return the first product name in the request's `User-Agent`, without its version; empty if there is none."""
    return request.headers.get("user-agent", "").partition(" ")[0].partition("/")[0][:MAX_AGENT_CHARS]


def implementation_of(agent: str, name: str) -> Implementation | None:
    """Return the implementation of a client; None if unknown. `agent` is the product in its `User-Agent`, and `name`
    the name that it reports about itself. If `name` says that the client is behind mcp-remote, return that of
    mcp-remote, whatever HTTP library mcp-remote uses."""
    return _MCP_REMOTE if "(via mcp-remote " in name else KNOWN.get(agent)


def session_key_line(agent: str, name: str, header: str) -> str:
    """Return a line of code or configuration that makes a client send a session key, so that it keeps one session.
    `agent` and `name` are as for `implementation_of`. `header` is the header for the key; if empty, only `_meta` can
    have the key."""
    if not header:
        return f'"_meta": {{"{KEY_META}": "{_KEY}"}}'
    implementation = implementation_of(agent, name)
    return (_HEADER if implementation is None else implementation.line).format(header=header)
