"""What `--help` of the command lists."""

import typer

from gateway.cli.main import app
from tests.requirements import requirement


@requirement("first.help")
def test_every_command_is_listed_under_what_it_is_for() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    panels: dict[str, list[str]] = {}
    for name, command in commands.items():
        panels.setdefault(getattr(command, "rich_help_panel", ""), []).append(name)
    assert set(panels) == {"Serve", "Set up", "Check", "Operate"}
    assert panels["Serve"][:2] == ["run", "stdio"] and panels["Set up"][:3] == ["init", "add", "connect"]
    assert set(panels["Operate"]) == {"top", "tail", "ui", "sessions", "tasks", "replicas"}
