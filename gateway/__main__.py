"""The command. The demo server is chosen before anything heavy is imported, because clients wait for its start."""

import sys


def main() -> None:
    if sys.argv[1:2] == ["demo-server"]:
        from gateway.demo_server import main as demo

        demo()
        return
    from gateway.cli import app

    app()


if __name__ == "__main__":
    main()
