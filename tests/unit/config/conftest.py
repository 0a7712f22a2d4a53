"""A configuration that is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.settings import load

Refusal = Callable[..., str]


@pytest.fixture
def refusal(tmp_path: Path) -> Refusal:
    """Why a file with this document does not load. The answer calls the file `mcp.json`."""

    def refused(document: Any, overrides: dict[str, Any] | None = None) -> str:
        path = tmp_path / "mcp.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(ConfigurationError) as caught:
            load(path, overrides)
        return str(caught.value).replace(str(path), "mcp.json")

    return refused
