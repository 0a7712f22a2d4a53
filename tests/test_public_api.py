"""What a program that imports `gateway` gets."""

import tomllib
from pathlib import Path

import pytest

import gateway


def test_every_public_name_is_there() -> None:
    assert all(getattr(gateway, name) is not None for name in gateway.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gateway.no_such_name


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert gateway.__version__ == project["project"]["version"]
