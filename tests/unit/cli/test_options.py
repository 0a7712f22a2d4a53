"""`gateway.cli.options`: values whose fields are options."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from gateway.cli import main, sessions, source
from gateway.cli.options import AtGateway, Overrides, Where, options
from tests.requirements import requirement


@dataclass(frozen=True, kw_only=True)
class Size:
    """Two options of a command."""

    height: Annotated[int, typer.Option(help="How high.")] = 1
    width: Annotated[int, typer.Option("--broad", help="How broad.")] = 2


def _drawn(name: str, size: Size, where: AtGateway, loud: bool = False) -> None:
    """Draw something."""
    typer.echo(f"{name} {size.height} {size.width} {where.url} {loud}")


def _looked_at(where: Where) -> None:
    typer.echo(where.url or where.store or "nowhere")


def _said(command: Callable[..., None], *arguments: str, **env: str) -> str:
    """What it prints, as one line."""
    app = typer.Typer()
    app.command()(options(command))
    return " ".join(CliRunner().invoke(app, [*arguments], env=env).output.split())


def test_each_field_of_a_value_is_an_option() -> None:
    assert _said(_drawn, "box", "--broad", "7", "--url", "u", "--loud") == "box 1 7 u True"
    assert _said(_drawn, "box", "--height", "3") == "box 3 2 False"
    assert "Draw something." in _said(_drawn, "--help") and "How broad." in _said(_drawn, "--help")


def test_only_what_was_given_overrides_settings() -> None:
    assert Overrides().given() == {}
    given = Overrides(port=0, anonymous=True, allowed_host=["a.example"]).given()
    assert given == {"port": 0, "anonymous": True, "allowed_hosts": ["a.example"]}
    assert Overrides(allow_eval=True).given() == {"policy": {"eval_tools": True}}


def test_a_store_is_one_more_place_to_look() -> None:
    assert Where(store="redis://r", url="u") == Where(url="u", store="redis://r") and isinstance(Where(), AtGateway)


@requirement("ops.precedence")
def test_an_option_wins_over_a_variable_that_names_another_place() -> None:
    url, store = {"MCP_GATEWAY_URL": "http://variable"}, {"MCP_GATEWAY_STORE": "redis://variable"}
    assert _said(_looked_at, "--store", "redis://typed", **url, **store) == "redis://typed"
    assert _said(_looked_at, "--url", "http://typed", **url, **store) == "http://typed"
    assert _said(_looked_at, **url, **store) == "http://variable" and _said(_looked_at) == "nowhere"
    assert _said(_looked_at, **store) == "redis://variable"
    assert "--url or --store, not both" in _said(_looked_at, "--store", "a", "--url", "b")


@requirement("ops.bulk-end")
@pytest.mark.parametrize(
    ("arguments", "empty"),
    [
        (("end", ""), "[ID]"),
        (("end", "--client", "c", "--principal", ""), "--principal"),
        (("show", ""), "[ID]"),
    ],
)
def test_an_empty_value_is_refused_before_anything_is_done(
    arguments: tuple[str, ...], empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(source, "source_of", asked.append)
    ran = CliRunner().invoke(sessions.app, [*arguments, "--url", "http://here"], env={"MCP_GATEWAY_STORE": ""})
    assert ran.exit_code == 2 and f"'{empty}'" in ran.output and "is empty" in ran.output and not asked, ran.output


@requirement("ops.empty-values")
def test_every_command_refuses_an_empty_value() -> None:
    def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
        for name, listed in sorted(getattr(group, "commands", {}).items()):
            command = listed.loaded() if hasattr(listed, "loaded") else listed
            yield from commands(command, *path, name)
            if not hasattr(command, "commands"):
                yield (*path, name), command

    refused = 0
    for path, command in commands(typer.main.get_command(main.app)):
        for parameter in command.params:
            if parameter.opts[0].startswith("-") and not parameter.is_flag:
                ran = CliRunner().invoke(main.app, [*path, parameter.opts[0], ""], env={"MCP_GATEWAY_STORE": ""})
                assert ran.exit_code == 2, (path, parameter.opts, ran.output)
                refused += "is empty" in ran.output
    assert refused > 30
