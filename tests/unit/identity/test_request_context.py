"""Whose request it is, as one value."""

import pytest

from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from session_store import ANONYMOUS
from tests.requirements import requirement


@requirement("wall.authority")
def test_what_a_request_may_do_is_a_value_that_nobody_changes() -> None:
    one, same = (RequestContext(ANONYMOUS, CredentialClaims("direct"), "c") for _ in range(2))
    assert one == same != RequestContext(ANONYMOUS, None, "c")
    with pytest.raises(AttributeError):
        one.claims = None  # type: ignore[misc]  # that it is frozen is the point
