<<<<<<< HEAD
"""Whose request it is, as one value."""
=======
"""The request context is a value that nobody changes on the way."""
>>>>>>> 5e59332 (Calls, contexts, filters and a server's era have unit tests)

import pytest

from gateway.identity.context_rules import CredentialClaims
from gateway.identity.request_context import RequestContext
from session_store import ANONYMOUS
<<<<<<< HEAD
from tests.requirements import requirement


@requirement("wall.authority")
def test_what_a_request_may_do_is_a_value_that_nobody_changes() -> None:
    one, same = (RequestContext(ANONYMOUS, CredentialClaims("direct"), "c") for _ in range(2))
    assert one == same != RequestContext(ANONYMOUS, None, "c")
    with pytest.raises(AttributeError):
        one.granted = None  # type: ignore[misc]  # that it is frozen is the point
=======


def test_nobody_changes_it_on_the_way() -> None:
    who = RequestContext(ANONYMOUS, CredentialClaims(permissions=("read",)), "c")
    with pytest.raises(AttributeError):
        who.claims = None  # type: ignore[misc]  # what this test is about
    assert who == RequestContext(ANONYMOUS, CredentialClaims(permissions=("read",)), "c")
>>>>>>> 5e59332 (Calls, contexts, filters and a server's era have unit tests)
