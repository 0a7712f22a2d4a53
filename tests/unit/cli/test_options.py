"""`gateway.cli.options`: values whose fields are options."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from gateway.admin.local_gateways import LocalGateway, announced, network_namespace
from gateway.admin.query_types import OperatorError
from gateway.cli import gateway_or_store, main, sessions
from gateway.cli.gateway_or_store import gateway_at
from gateway.cli.options import AtGateway, Overrides, Target, options
from tests.requirements import requirement


@dataclass(frozen=True, kw_only=True)
class Size:
    """Two options of a command."""

    height: Annotated[int, typer.Option(help="How high.")] = 1
    width: Annotated[int, typer.Option("--broad", help="How broad.")] = 2


def _drawn(name: str, size: Size, target: AtGateway, loud: bool = False) -> None:
    """Draw something."""
    typer.echo(f"{name} {size.height} {size.width} {target.url} {loud}")


def _looked_at(target: Target) -> None:
    typer.echo(target.url or target.store or "nowhere")


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
    monkeypatch.setattr(gateway_or_store, "open_target", asked.append)
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


# -- Which gateway a command asks: the one that is given, or the one that its user runs here


def running(port: int) -> LocalGateway:
    base = f"http://127.0.0.1:{port}"
    return LocalGateway(url=base, endpoint=f"{base}/mcp", key=f"key-{port}", pid=port, network=network_namespace())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@requirement("first.local")
def test_the_only_gateway_is_asked_with_its_own_key_unless_another_is_given() -> None:
    mine, far = AtGateway(url="http://127.0.0.1:1", key="mine"), AtGateway(url="https://mcp.example.com")
    with announced(running(1)):
        # A key that is given without an address is not sent: it is for some other gateway.
        for given in (AtGateway(), AtGateway(key="of-another-gateway"), AtGateway(url="http://localhost:1/mcp")):
            assert gateway_at(given) == AtGateway(url="http://127.0.0.1:1", key="key-1"), given
        assert (gateway_at(mine), gateway_at(far)) == (mine, far), "no key is sent elsewhere"


@requirement("first.local")
def test_without_a_gateway_the_message_says_what_to_do() -> None:
    with pytest.raises(OperatorError, match=r"none is found.*MCP_GATEWAY_ADMIN_KEY.*or --store"):
        gateway_at(AtGateway(), or_else=", or --store")


@requirement("first.local")
def test_several_gateways_are_named() -> None:
    with announced(running(1)), announced(running(2)):
        with pytest.raises(OperatorError, match="say which") as refused:
            gateway_at(AtGateway())
        assert "--url http://127.0.0.1:1 " in str(refused.value) and "--url http://127.0.0.1:2 " in str(refused.value)
        assert gateway_at(AtGateway(url="http://127.0.0.1:2")).key == "key-2"
