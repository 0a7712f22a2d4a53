"""Define options that several commands share, as dataclasses. Each field is an option of the command."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

_CONTEXT: Final = "typer_context"
"""The name of the parameter in which typer passes its context."""

Command = TypeVar("Command", bound=Callable[..., Any])

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="JSON or TOML file with mcpServers, and gateway beside it. Default: mcp.json of this folder.",
    ),
]
NamedConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="JSON or TOML file with mcpServers.")]
"""The option `--config` of commands that read a file only if it is named."""

CommandArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[-- COMMAND ARG...]", help="A stdio server to serve, without a file.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log everything, as gateway.log_level debug.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse if a server cannot be used, rather than leave it out.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtGateway:
    """Options for the running gateway to which a command sends requests."""

    url: Annotated[
        str,
        typer.Option(
            "--url",
            envvar="MCP_GATEWAY_URL",
            help="A running gateway, or its operators' listener. Default: the one that you run at a terminal.",
        ),
    ] = ""
    key: Annotated[
        str,
        typer.Option("--key", envvar="MCP_GATEWAY_ADMIN_KEY", help="An operator's key; better given as a variable."),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(AtGateway):
    """Options for a running gateway or a store, on which an operator's command works."""

    store: Annotated[
        str, typer.Option("--store", envvar="MCP_GATEWAY_STORE", help="The URL of the gateway's store.")
    ] = ""

    def preferring(self, typed: Set[str]) -> "Target":
        """Return the target without its URL if `--store` was typed on the command line: such an option wins over a URL
        from an environment variable. `typed`: the names of the options on the command line.

        Raises:
            typer.BadParameter: `--url` and `--store` are both on the command line.
        """
        if {"url", "store"} <= typed:
            raise typer.BadParameter("give --url or --store, not both")
        return replace(self, url="") if "store" in typed else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Options for the caller whose view is explained: a credential, or the name of a principal."""

    credential: Annotated[
        str,
        typer.Option(envvar="MCP_GATEWAY_CREDENTIAL", help="An API key or access token; better given as a variable."),
    ] = ""
    principal: Annotated[
        str, typer.Option(metavar="ISSUER:SUBJECT", help="A principal, as in rules: api-key:NAME, or anonymous.")
    ] = ""
    claims: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file with claims of the principal's access token.")
    ] = None
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="A header that the proxy sends; may be repeated.")
    ] = None
    workspace: Annotated[str, typer.Option(help="The workspace that the client announces.")] = ""
    trust: Annotated[str, typer.Option(help="As if the credential set this trust.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Options for settings of `gateway`, which win over the file and environment variables."""

    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None
    store: Annotated[str | None, typer.Option(help="Where sessions are kept, as a URL.")] = None
    advertise: Annotated[str | None, typer.Option(help="HOST:PORT where other gateways reach this one.")] = None
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Serve everyone who can reach it, without a credential.")
    ] = False
    allowed_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A host name that requests may use; may be repeated.")
    ] = None

    allow_eval: Annotated[
        bool, typer.Option("--allow-eval", help="Enable tools whose operation is eval (gateway.policy.eval_tools).")
    ] = False

    def given(self) -> dict[str, Any]:
        """Return the settings of `gateway` that the options give: setting → value. Options that were not given are left
        out."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ("host", "port", "store", "advertise")}
        values |= {"anonymous": self.anonymous or None, "allowed_hosts": self.allowed_host or None}
        values |= {"policy": {"eval_tools": True} if self.allow_eval else None}
        return {name: value for name, value in values.items() if value is not None}


def options(command: Command) -> Command:
    """Return a command that typer can register, made of a function whose parameters may be dataclasses.

    Each field of such a dataclass becomes an option of the command. The command refuses an option with an empty value.
    Usually it means that a script's variable is not set, and the command would apply to more than was meant.
    """
    signature = inspect.signature(command, eval_str=True)
    fields = {
        name: dataclasses.fields(parameter.annotation)
        for name, parameter in signature.parameters.items()
        if dataclasses.is_dataclass(parameter.annotation)
    }

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        context: typer.Context = given.pop(_CONTEXT)
        sources = {name: context.get_parameter_source(name) for name in given}
        typed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
        _refuse_empty(context, {name: given[name] for name in typed})
        values = {
            name: parameter.annotation(**{field.name: given[field.name] for field in fields[name]})
            if name in fields
            else given[name]
            for name, parameter in signature.parameters.items()
        }
        # A place depends on what was typed.
        values = {name: one.preferring(typed) if isinstance(one, Target) else one for name, one in values.items()}
        return command(**values)

    parameters = [inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, parameter in signature.parameters.items():
        if name in fields:
            hints = get_type_hints(parameter.annotation, include_extras=True)
            parameters += [
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
                )
                for field in fields[name]
            ]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run  # type: ignore[return-value]  # typer calls it by the names of its options


def _refuse_empty(context: typer.Context, typed: Mapping[str, Any]) -> None:
    for parameter in context.command.params:
        value, option = typed.get(parameter.name or ""), parameter.opts[0]
        # Of a repeated option, no value may be empty. Arguments of a server's command may be.
        if value in ("", Path()) or (isinstance(value, list) and option.startswith("-") and "" in value):
            problem = "the value is empty; give one, or leave it out. In a script, check that the variable is set"
            what = option if option.startswith("-") else parameter.metavar
            raise typer.BadParameter(problem, ctx=context, param_hint=f"'{what}'")
