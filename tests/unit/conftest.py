"""Fixtures of several rooms."""

from collections.abc import AsyncIterator

import pytest

from gateway.context.session_folders import SessionFolders


@pytest.fixture
async def folders() -> AsyncIterator[SessionFolders]:
    """The folders of sessions of one process."""
    found = SessionFolders()
    yield found
    await found.close()
