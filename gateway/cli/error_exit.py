"""End a command with an error on stderr."""

import typer


def error_exit(message: str) -> typer.Exit:
    """Print each line of the message as an error on stderr. Return the exception by which the command exits with status
    2."""
    from gateway.cli.terminal_output import Terminal  # loads rich, which a command that succeeds may not need

    err = Terminal(stderr=True)
    for line in message.splitlines():
        err.print_labelled("error", line)
    return typer.Exit(2)
