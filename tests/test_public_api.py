"""What a program that imports `gateway` gets."""

import tomllib
from pathlib import Path

import pytest

import gateway
import mcp_session_gateway
from tests.requirements import requirement


def test_every_public_name_is_there() -> None:
    assert all(getattr(gateway, name) is not None for name in gateway.__all__)


@requirement("app.names")
def test_the_name_of_the_distribution_has_the_same_names() -> None:
    assert mcp_session_gateway.__all__ == gateway.__all__
    assert all(getattr(mcp_session_gateway, name) is getattr(gateway, name) for name in gateway.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = mcp_session_gateway.no_such_name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gateway.no_such_name


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert gateway.__version__ == project["project"]["version"]
