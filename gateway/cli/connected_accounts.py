"""List and revoke the accounts that people have connected to servers, at a running gateway (`credentials`)."""

from typing import Annotated

import msgspec
import typer

from gateway.admin.verbs import Operators
from gateway.cli.gateway_or_store import asks
from gateway.cli.options import AtGateway, JsonOption
from gateway.cli.output import credentials_table
from gateway.cli.terminal_output import Terminal
from gateway.observability.escaped_text import as_json

app = typer.Typer(
    help="List and revoke accounts that people have connected to servers.",
    no_args_is_help=True,
    add_completion=False,
)
_out = Terminal()


@app.command("list")
@asks(AtGateway)
async def list_credentials(operators: Operators, in_json: JsonOption = False) -> None:
    """List who has connected an account to which server. No token is shown."""
    found = await operators.credentials()
    if in_json:
        typer.echo(as_json({"credentials": msgspec.to_builtins(found)}))
    elif found:
        _out.print(credentials_table(found))
    else:
        _out.print(
            "nobody has connected an account: secrets from files, variables, commands and exchanges are not listed here"
        )


@app.command("revoke")
@asks(AtGateway)
async def revoke_credentials(
    operators: Operators,
    principal: Annotated[str, typer.Option(help="Whose, as `list` prints it.")] = "",
    secret: Annotated[str, typer.Option(help="Only those with this name in gateway.secrets.")] = "",
    in_json: JsonOption = False,
) -> None:
    """Remove the tokens of a principal, of a secret, or both. Servers behind URLs get none with their next request."""
    count = await operators.revoke(principal, secret)
    typer.echo(as_json({"revoked": count}) if in_json else f"revoked {count}")
