"""What is wrong with a command, said on stderr."""

import typer

__all__ = ["complain"]


def complain(message: str) -> typer.Exit:
    """Print what is wrong, line by line. Returns what ends the command with exit code 2."""
    from gateway.cli.terminal import Terminal  # loads rich, which a command that succeeds may not need

    err = Terminal(stderr=True)
    for line in message.splitlines():
        err.complain("error", line)
    return typer.Exit(2)
