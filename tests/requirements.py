"""Names the required behaviours a test proves."""

import pytest


def requirement(*ids: str) -> pytest.MarkDecorator:
    """Mark a test with ids of `requirements.toml`."""
    return pytest.mark.requirement(*ids)
