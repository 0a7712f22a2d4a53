"""The command `keygen`."""

import typer

from gateway.cli.options import options
from session_store.tokens import generate_key

__all__ = ["keygen"]


@options
def keygen() -> None:
    """Print a new signing key for MCP_GATEWAY_KEYS."""
    typer.echo(generate_key())
