"""Provide a clock, principals, sessions and tasks for the contract tests."""

from dataclasses import dataclass
from typing import Any

from session_store.ports.tasks import Task
from session_store.session import ClientFacts, Context, Principal, Provenance, Session, new_session_id

ALICE = Principal(issuer="api-key", subject="alice")
BOB = Principal(issuer="api-key", subject="bob")


@dataclass
class FakeClock:
    """A clock in seconds that stands still, except that `pass_time` moves it."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


def a_session(clock: FakeClock, **fields: Any) -> Session:
    """Return a session for a test: opened now, with a value in most fields. `fields` replaces some of the values."""
    values: dict[str, Any] = {
        "id": new_session_id(),
        "principal": ALICE,
        "endpoint": "/mcp",
        "era": "legacy",
        "created_at": clock(),
        "used_at": clock(),
        "idle_ttl_s": 100.0,
        "max_age_s": 1_000.0,
        "client": ClientFacts(name="tests", version="1", protocol_version="2025-11-25", initialize_params=b"{}"),
        "context": Context(workspace="w", permissions=("read",), provenance=Provenance(workspace="authenticated")),
    }
    return Session(**(values | fields))


def a_task(clock: FakeClock, **fields: Any) -> Task:
    """Return a task for a test: created now, with a value in most fields. `fields` replaces some of the values."""
    values: dict[str, Any] = {
        "id": new_session_id(),
        "session_id": new_session_id(),
        "principal": ALICE,
        "origin": "0f1e2d3c",
        "endpoint": "/mcp",
        "server": "files",
        "tool": "search",
        "created_at": clock(),
        "updated_at": clock(),
        "ttl_s": 100.0,
        "poll_ms": 1_000,
        "request": b'{"name":"search","arguments":{"q":"\xc3\xbc"}}',
        "questions": b'{"q1":{}}',
        "result": b"\x00\xff",
    }
    return Task(**(values | fields))
