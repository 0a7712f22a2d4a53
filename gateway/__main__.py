"""Start the command line. The demo server starts before anything heavy is imported, because clients wait for it.

For all other commands, the process first protects its memory and environment from other processes of the same user.
"""

import sys


def main() -> None:
    if sys.argv[1:2] == ["demo-server"]:
        _demo()
        return
    from gateway.serving import hidden_process

    hidden_process.open_closed()
    hidden_process.hide()
    hidden_process.take_environment()
    from gateway.cli.main import app

    what = "Be a small stdio MCP server that shows what sessions do."
    app.command("demo-server", help=what, rich_help_panel="Serve")(_demo)
    app()


def _demo() -> None:
    from gateway.demo_server import main as demo

    demo()


if __name__ == "__main__":
    main()
