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
    """The behaviour of clients built on one HTTP library, unless their authors have changed it.

    `cookies`: a client sends cookies back as long as it runs. No SDK sends back `MCP-Gateway-Session` or the session in
    `_meta` by itself; every SDK sends back `requestState` within a call. `line`: sample code that sends a session key
    in the header `{header}` (a placeholder). Each run needs another key, because two instances must not share one.
    """

    name: str
    cookies: bool
    line: str

    def carries(self, *, cookies: bool) -> bool:
        """Return True if these clients send their session back. `cookies`: the gateway sets cookies."""
        return self.cookies and cookies


# The text in angle brackets is refused as a key (`client_chosen_keys.checked_key`) until somebody replaces it.
_KEY: Final = "<A RANDOM UUID FOR EACH CLIENT>"
_HEADER: Final = f"{{header}}: {_KEY}"
_PYTHON: Final = (
    'httpx2.AsyncClient(headers={{**your_headers, "{header}": str(uuid.uuid4())}}, '
    "timeout=httpx2.Timeout(30, read=300))"
)
_SCRIPT: Final = (
    "new StreamableHTTPClientTransport(url, "
    '{{ requestInit: {{ headers: {{ ...yourHeaders, "{header}": crypto.randomUUID() }} }} }})'
)
_CURL: Final = f"curl -H '{_HEADER}'"

KNOWN: Final[Mapping[str, Implementation]] = MappingProxyType(
    {
        # By the product in the User-Agent header. The sources for `cookies`: the documents of these libraries, and
        # tests/clients/test_client_table.py for those that MCP clients in wide use are built on.
        "python-httpx2": Implementation(name="Python SDK 2 (httpx2)", cookies=True, line=_PYTHON),
        "python-httpx": Implementation(name="httpx", cookies=True, line=_PYTHON.replace("httpx2", "httpx")),
        "node": Implementation(name="Node's fetch", cookies=False, line=_SCRIPT),
        "Bun": Implementation(name="Bun's fetch", cookies=False, line=_SCRIPT),
        "Deno": Implementation(name="Deno's fetch", cookies=False, line=_SCRIPT),
        "node-fetch": Implementation(name="node-fetch", cookies=False, line=_SCRIPT),
        "axios": Implementation(name="axios", cookies=False, line=_SCRIPT),
        "curl": Implementation(name="curl", cookies=False, line=_CURL),
        "Go-http-client": Implementation(name="Go's net/http", cookies=False, line=_HEADER),
        "Java-http-client": Implementation(name="Java's HttpClient", cookies=False, line=_HEADER),
        "okhttp": Implementation(name="OkHttp", cookies=False, line=_HEADER),
    }
)

BY_NAME: Final[Mapping[str, Implementation]] = MappingProxyType(
    {
        # By a part of the client's name for itself, which counts more than the HTTP library under the client.
        "(via mcp-remote ": Implementation(
            name="mcp-remote", cookies=True, line=f"mcp-remote URL --header '{{header}}:{_KEY}'"
        ),
    }
)


def agent_of(request: Request) -> str:
    """Return the first product name in the request's `User-Agent`, without its version."""
    return request.headers.get("user-agent", "").partition(" ")[0].partition("/")[0][:MAX_AGENT_CHARS]


def implementation_of(agent: str, name: str) -> Implementation | None:
    """Return the implementation of a client, by its name and the product in its `User-Agent`; None if unknown."""
    return next((found for part, found in BY_NAME.items() if part in name), KNOWN.get(agent))


def session_key_line(agent: str, name: str, header: str) -> str:
    """Return a line of code or configuration that makes a client send a session key, so that it keeps one session.
    `header` is the header of the key; if empty, only `_meta` can have it."""
    if not header:
        return f'"_meta": {{"{KEY_META}": "{_KEY}"}}'
    implementation = implementation_of(agent, name)
    return (_HEADER if implementation is None else implementation.line).format(header=header)
