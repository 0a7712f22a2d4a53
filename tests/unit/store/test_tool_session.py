"""Which errors of a session the official SDK passes on, and to whom else they are what they were."""

import sys

import pytest
from mcp.server.mcpserver.exceptions import ResourceError, ToolError

from session_store import InvalidMetadata, InvalidState, SessionGone
from session_store.current_tool_session import NoSession, current_session
from session_store.tool_session import READABLE_BY_CALLERS
from tests.requirements import requirement

pytestmark = requirement("ctx.limits")


class OfAStore(InvalidState):
    """As a store of an app may raise it."""

    def __init__(self, key: str, size: int) -> None:
        super().__init__(f"{key} has {size} bytes")


@pytest.mark.parametrize("error", [InvalidState("too large"), InvalidMetadata("too large"), OfAStore("a", 7)])
def test_an_error_of_a_limit_is_one_of_the_sdk_as_well(error: ValueError) -> None:
    for _ in range(2):
        with pytest.raises(type(error)) as raised, READABLE_BY_CALLERS, READABLE_BY_CALLERS:
            raise error
        assert isinstance(raised.value, ToolError) and isinstance(raised.value, ResourceError)
        assert str(raised.value) == str(error)
        assert raised.value.__suppress_context__ and raised.traceback[-1].name != "__exit__"


@pytest.mark.parametrize(
    ("error", "has_sdk"),
    [(SessionGone("a secret id"), True), (ValueError("x"), True), (KeyError("x"), True), (InvalidState("x"), False)],
)
def test_any_other_error_and_any_without_the_sdk_stays_what_it_is(
    error: Exception, has_sdk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_sdk:
        monkeypatch.delitem(sys.modules, "mcp.server.mcpserver.exceptions")
    with pytest.raises(type(error)) as raised, READABLE_BY_CALLERS:
        raise error
    assert raised.value is error


def test_outside_of_any_session_there_is_a_clear_error() -> None:
    with pytest.raises(NoSession, match="neither for a request nor in a child"):
        current_session()
