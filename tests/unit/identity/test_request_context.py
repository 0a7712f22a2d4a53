"""Whose request it is, as one value."""

import pytest

from gateway.identity.request_context import RequestContext
from session_store import ANONYMOUS
from tests.requirements import requirement


@requirement("wall.authority")
def test_nobody_changes_what_a_request_may_do() -> None:
    with pytest.raises(AttributeError):
        RequestContext(ANONYMOUS, None, "c").claims = None  # type: ignore[misc]  # that it is frozen is the point
