"""Define the command line's list of commands. Each command is in its own module; `__main__` adds `demo-server`."""

import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from gateway.version import __version__

app = typer.Typer(
    name="mcp-session-gateway",
    help="One durable, isolated session for every MCP client, in front of any MCP server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mcp-session-gateway {__version__}")
        raise typer.Exit


@app.callback()
def gateway(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", "-v", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """One durable, isolated session for every MCP client, in front of any MCP server."""


# What `--help` lists, in its order: where each command is, and the first paragraph of its help. Its module is imported
# when it is used: together they load the whole gateway.
_PANELS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Serve": {
        "run": ("serve:run", "Serve MCP over Streamable HTTP."),
        "stdio": ("serve:stdio", "Serve MCP on stdin and stdout, for one client on this machine."),
    },
    "Set up": {
        "init": (
            "setup_commands:init",
            "Write a commented configuration, with the servers that clients on this machine have.",
        ),
        "add": ("setup_commands:add", "Add a server to a configuration."),
        "connect": (
            "setup_commands:connect",
            "Print how a client connects to the gateway, or write it into the client's file.",
        ),
        "keygen": ("setup_commands:keygen", "Print a new signing key for MCP_GATEWAY_KEYS."),
    },
    "Check": {
        "check": (
            "check:check",
            "Check a configuration file, and that its policy matches what the servers list. Exit status 1 if servers "
            "cannot be used, 2 if the file is invalid.",
        ),
        "lock": (
            "lock:lock",
            "Approve the tools, prompts and resource templates that servers list: print how they differ from the lock, "
            "and write it. Exit status 1, and nothing is written, if a server cannot be locked.",
        ),
        "doctor": (
            "doctor:doctor",
            "Check configuration, keys, store, clocks, limits, servers, balancer and clients. Exit status 1 after an "
            "error.",
        ),
        "explain": ("explain:explain", "Print what a credential and a workspace see, and why, setting by setting."),
        "manifest": (
            "explain:show_manifest",
            "Print all tools of all servers with their schemas, as JSON. With a credential or principal, only those "
            "that it sees. Exit status 1 if the tools of a server are missing.",
        ),
        "sandbox": ("sandbox:app", "Explain the sandboxes of servers."),
    },
    "Operate": {
        "top": ("replicas_top_tail:top", "Show replicas, failing sessions and busy sessions, updated continuously."),
        "tail": (
            "replicas_top_tail:tail",
            "Follow the session events of all replicas. With gateway.audit.calls, tool calls are included.",
        ),
        "sessions": ("sessions:app", "List sessions and end them."),
        "credentials": ("connected_accounts:app", "List and revoke accounts that people have connected to servers."),
        "tasks": ("tasks:app", "List and cancel tasks: calls that go on after their clients have left."),
        "reload": (
            "replicas_top_tail:reload",
            "Have all replicas of a running gateway load their configuration again. Exit status 1 if one of them "
            "refuses it: nothing has changed there.",
        ),
        "replicas": ("replicas_top_tail:app", "List replicas, drain them and admit them again."),
    },
}


class _Listed(TyperCommand):
    """A command or group that `--help` lists without importing its module. The module is imported when the command is
    used."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        return self.loaded().make_context(info_name, args, parent, **extra)

    def loaded(self) -> Any:
        """Import and return the command with its options, or the group with its commands."""
        assert self.callback is not None
        return self.callback()


def _from(where: str, name: str) -> Callable[[], Any]:
    def load() -> Any:
        module, _, attribute = where.partition(":")
        with uncollected():
            found = getattr(importlib.import_module(f"gateway.cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            command, found = found, typer.Typer(add_completion=False)
            found.command(name)(command)
        return typer.main.get_command(found)

    return load


for _panel, _commands in _PANELS.items():
    for _name, (_where, _help) in _commands.items():
        app.command(_name, cls=_Listed, help=_help, rich_help_panel=_panel)(_from(_where, _name))


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off for the time of the block, in which modules are imported. The collector would
    visit all new objects again and again, which takes a tenth of the start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
