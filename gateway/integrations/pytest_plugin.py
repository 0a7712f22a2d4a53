"""Pytest fixtures for tests of apps and tools that have sessions. Registered by an entry point of the package.

Imports the gateway only when a fixture is used, because pytest loads this plugin in every test run of an environment.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from session_store import MemoryBackend, ToolSession


@pytest.fixture
def mcp_session_store(monkeypatch: pytest.MonkeyPatch) -> "Iterator[MemoryBackend]":
    """Yield a store in memory, which every `SessionMiddleware` uses during the test in place of its own store. Set the
    environment variables for store and keys, if they are not set."""
    import os

    from gateway.integrations.app_session_store import kept_in
    from session_store import MemoryBackend
    from session_store.token_signing import generate_key

    for name, value in (("STORE", "memory://"), ("KEYS", generate_key())):
        if not os.environ.get(f"MCP_GATEWAY_{name}") and not os.environ.get(f"MCP_GATEWAY_{name}_FILE"):
            monkeypatch.setenv(f"MCP_GATEWAY_{name}", value)
    store = MemoryBackend()
    with kept_in(store):
        yield store


@pytest.fixture
def mcp_session(mcp_session_store: "MemoryBackend") -> "Iterator[ToolSession]":
    """Yield a new session, and make it the current session of the test, for code that calls `current_session()` without
    a request. Requests to an app have sessions of their own."""
    from gateway.config.sessions import SessionSettings
    from gateway.integrations.app_session_store import AppSessions
    from session_store import ANONYMOUS
    from session_store.current_tool_session import bound_session, tool_session

    session = AppSessions(mcp_session_store, SessionSettings()).new(ANONYMOUS, "")
    mcp_session_store.sessions.records.write(session)
    current = tool_session(session, sessions=mcp_session_store.sessions, state=mcp_session_store.state)
    with bound_session(current):
        yield current
