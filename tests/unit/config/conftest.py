"""A configuration that is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.settings import Loaded, load

Loading = Callable[..., Loaded]
Refusal = Callable[..., str]


@pytest.fixture
def loading(tmp_path: Path) -> Loading:
    """Loads a file `mcp.json` with this document, or text."""

    def loaded(document: Any, overrides: dict[str, Any] | None = None, *, strict: bool = False) -> Loaded:
        path = tmp_path / "mcp.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return load(path, overrides, strict=strict)

    return loaded


@pytest.fixture
def refusal(loading: Loading, tmp_path: Path) -> Refusal:
    """Why a file with this document does not load. The answer calls the file `mcp.json`."""

    def refused(*given: Any, **more: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            loading(*given, **more)
        return str(caught.value).replace(str(tmp_path / "mcp.json"), "mcp.json")

    return refused
