"""The metadata that the operator's rules give a new session."""

from gateway.sessions.opening import metadata_of
from session_store.testing import FakeClock, a_session
from tests.unit.sessions.parts import refused

SESSION = a_session(FakeClock())


def test_rules_name_what_is_known_of_a_session() -> None:
    rules = {"who": "{principal}", "as": "{agent}/{workspace}/{trust}", "at": "{endpoint}", "plain": "text"}
    expected = {"who": "api-key:alice", "as": "tests/w/direct", "at": "/mcp", "plain": "text"}
    assert metadata_of(SESSION, rules, str) == expected


def test_metadata_that_is_too_large_is_refused() -> None:
    with refused(400):
        metadata_of(SESSION, {f"name{n}": "x" * 900 for n in range(200)}, str)
