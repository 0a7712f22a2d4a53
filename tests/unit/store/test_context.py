"""The current session, as code of tools sees it."""

import pytest

from session_store.context import NoSession, current_session


def test_outside_of_any_session_there_is_a_clear_error() -> None:
    with pytest.raises(NoSession, match="neither for a request nor in a child"):
        current_session()
