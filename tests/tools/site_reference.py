"""Makes the pages of the site that the code itself says: the command line from `--help`, the REST interface from its
description, the Python API from `gateway.__all__`."""

import inspect
from collections.abc import Iterator
from typing import Any

import click
import typer

import gateway
from gateway.admin.rest import API
from gateway.admin.verbs import openapi
from gateway.cli.main import app


def command_line() -> str:
    """All commands with their options, as Markdown."""
    root = typer.main.get_command(app)
    lines = ["# Command line", "", "What `--help` says, for every command.", ""]
    for words, command in _commands(root, ("mcp-session-gateway",)):
        with click.Context(command, info_name=words[-1]) as context:
            usage = " ".join([*words, *command.collect_usage_pieces(context)])
            lines += [f"## {' '.join(words[1:])}", "", _plain(command.help or ""), "", "```text", usage, "```", ""]
            records = [record for one in command.params if (record := one.get_help_record(context))]
        if records:
            lines += ["| option | what it does |", "|---|---|"]
            lines += [f"| `{name}` | {_cell(_plain(words))} |" for name, words in records] + [""]
    return "\n".join(lines)


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, in the order of `--help`."""
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, listed in command.commands.items():
        below = listed.loaded() if hasattr(listed, "loaded") else listed
        if not below.hidden:
            yield from _commands(below, (*words, name))


def rest_interface() -> str:
    """All operations with their parameters, as Markdown."""
    lines = ["# REST interface", ""]
    lines += ["For operators, with `Authorization: Bearer KEY`. `GET /admin/api/openapi.json` is this description in"]
    lines += ["OpenAPI 3.1, with the schemas of all answers. Errors are `application/problem+json` (RFC 9457).", ""]
    for path, ways in sorted(openapi(API)["paths"].items()):
        for method, operation in ways.items():
            lines += [f"## {method.upper()} {path}", "", f"{operation['summary']}.", ""]
            if operation["parameters"]:
                lines += ["| parameter | in | what it is |", "|---|---|---|"]
                lines += [f"| `{p['name']}` | {p['in']} | {_cell(p['description'])} |" for p in operation["parameters"]]
                lines += [""]
    return "\n".join(lines)


def python_interface() -> str:
    """The public names with their docstrings, as Markdown."""
    lines = ["# Python API", ""]
    lines += ["`import gateway` has these names. Everything else may change with any version.", ""]
    for name in gateway.__all__:
        if not name.startswith("_"):
            lines += [f"## {name}", "", *_described(getattr(gateway, name))]
    return "\n".join(lines)


def _described(thing: Any) -> Iterator[str]:
    yield from ("```python", f"{_signature(thing)}", "```", "", inspect.getdoc(thing) or "", "")
    for name, member in vars(thing).items() if inspect.isclass(thing) else ():
        if name.startswith("_") or not (callable(member) or isinstance(member, property)):
            continue
        if words := inspect.getdoc(member):
            yield from (f"### {thing.__name__}.{name}", "", "```python", _signature(member, name), "```", "", words, "")


def _signature(thing: Any, name: str = "") -> str:
    name = name or thing.__name__
    if isinstance(thing, property):
        return name
    try:
        return f"{name}{inspect.signature(thing)}"
    except ValueError:
        return name


def _plain(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
