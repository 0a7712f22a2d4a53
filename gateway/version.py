"""The version of the package, equal to the version in `pyproject.toml`."""

__version__ = "0.1.0"
