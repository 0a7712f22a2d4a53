"""Set up a gateway and its clients (`init`, `add`, `connect`, `keygen`)."""

import asyncio
import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from gateway.admin.local_gateways import local_gateways
from gateway.admin.query_types import OperatorError
from gateway.cli.error_exit import error_exit
from gateway.cli.find_configuration import FILE, fault_after_dashes
from gateway.cli.gateway_or_store import endpoint_here
from gateway.cli.options import ConfigOption, options
from gateway.cli.terminal_output import Terminal
from gateway.config.addresses import base_url, is_of_this_machine, url_here
from gateway.config.configuration_errors import did_you_mean
from gateway.config.hosts.client_files import (
    FoundServers,
    add_entry,
    copy_of,
    found_servers,
    object_in,
    other_servers,
    session_key_of,
    write_file,
)
from gateway.config.hosts.client_snippets import (
    CLIENTS,
    CREDENTIAL_VARIABLE,
    PLACEHOLDER,
    WITH_KEY,
    ClientFile,
    Snippet,
    snippet,
    snippets,
)
from gateway.config.load import gathered
from gateway.config.settings import ConfigurationError, GatewaySettings, Settings, load
from session_store.token_signing import generate_key
from transports.upstream.child_process import ProcessFailed

_TEMPLATE: Final = """\
// The configuration of MCP Session Gateway. Comments are welcome.
//   mcp-session-gateway check{given}    finds mistakes, and starts the servers once
//   mcp-session-gateway run{given}      serves
{{
  // The servers by name. Every session of a client gets processes of its own.
  "mcpServers": {{
{servers}  }},

  "gateway": {{
    // Where to listen. Another address than this machine's needs credentials: see api_keys.
    // "host": "127.0.0.1",
    // "port": 8080,

    // Sessions end with the gateway, unless a store keeps them: a file, or a Redis for several gateways.
    // "store": "sqlite:///sessions.db",

    // What servers may touch: "standard", "strict" or "off". One server can have its own "sandbox".
    // "sandbox": "standard",

    // Who may call: name and SHA-256 of a key, from: mcp-session-gateway keygen | tee key | tr -d '\\n' | sha256sum
    // "api_keys": {{ "me": "…" }},

    // Who may use the console at /admin with a key, in the same form. Without one, `run` prints a link.
    // "admin": {{ "keys": {{ "me": "…" }} }},
  }},
}}
"""
_AS_TEXT: Final = (
    "what looks like a credential as text ({fields}): better put it in a variable, and write ${{VAR}} in its place"
)
_NOT_RUNNING: Final = (
    "no gateway is found, neither one that you run at a terminal nor at {url}, where one of this folder would listen. "
    "Start it with "
    "`mcp-session-gateway run`, or give --url if yours runs elsewhere"
)
_out = Terminal()
_err = Terminal(stderr=True)

FileOption = Annotated[Path, typer.Option("--config", "-c", help="The configuration, JSON or TOML.")]


@options
def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = FILE,
    empty: Annotated[bool, typer.Option("--empty", help="Look for no servers of other clients.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write a commented configuration, with the servers that clients on this machine have."""
    if (file.exists() or file.is_symlink()) and not force:
        do = "add a server to it with `mcp-session-gateway add`, begin in another folder, or give --force"
        raise error_exit(f"{file} exists: {do}")
    if file.suffix == ".toml":
        raise error_exit(f"{file}: init writes JSON with comments: give a name that ends with .json")
    found = FoundServers() if empty else found_servers(Path.cwd(), Path.home(), os.environ)
    for note in found.notes:
        _out.print_labelled("ignored", note)
    if not found.entries:
        found.entries["demo"] = {"command": sys.executable, "args": ["-m", "gateway", "demo-server"]}
    try:
        write_file(file, _TEMPLATE.format(given=_given(file), servers=_written(found)))
    except OSError as error:
        raise error_exit(f"{file}: {error.strerror or error}") from None
    except UnicodeError:
        raise error_exit(
            f"{file}: a file of another client has an unpaired surrogate: give --empty, and add servers"
        ) from None
    count = len(found.entries)
    _out.print(f"{file}: {count} server{'' if count == 1 else 's'}")
    no_client = "comes with the gateway, because no client here has a server: put yours in its place"
    for name in found.entries:
        _out.print(f"  {name}  {f'from {found.places[name]}' if name in found.places else no_client}")
    for name, fields in found.secrets.items():
        _out.print_labelled("warning", f"{name}: copied with {_AS_TEXT.format(fields=', '.join(fields))}")
    _tell_absent(found.entries)
    _out.print(f"Next: mcp-session-gateway run{_given(file)}")
    _tell_faults(file)


def _tell_faults(file: Path) -> None:
    """Print the faults of the configuration that was just written, mostly variables that are not set. The gateway
    leaves servers with such faults out."""
    try:
        load(file, strict=True)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            _out.print_labelled("missing", line)


def _tell_absent(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Warn of servers (`entries` by name) whose program is not on the PATH. A gateway may run with another PATH, so
    this is no fault."""
    for name, entry in entries.items():
        program = entry.get("command", "")
        env = entry.get("env") or {}
        if program and "/" not in program and shutil.which(program, path=env.get("PATH")) is None:
            fault = ProcessFailed(f"there is no program {program} on the PATH here", program, is_missing=True)
            _out.print_labelled("warning", f"{name}: {fault}")


def _written(found: FoundServers) -> str:
    """Return the found servers as JSON lines with comments, for the new configuration file."""
    lines = []
    for name, entry in found.entries.items():
        if name in found.places:
            lines.append(f"    // from {_in_comment(str(found.places[name]))}")
        if name in found.secrets:
            lines.append(f"    // has {_in_comment(_AS_TEXT.format(fields=', '.join(found.secrets[name])))}")
        body = json.dumps(entry, indent=2, ensure_ascii=False).replace("\n", "\n    ")
        lines.append(f"    {json.dumps(name)}: {body},")
    return "\n".join(lines) + "\n"


def _in_comment(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


@options
def add(
    name: Annotated[str, typer.Argument(help="What the server is called.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND ARG...]", help="The command that starts it.")
    ] = None,
    url: Annotated[str, typer.Option(help="The URL of a server that runs already, instead of a command.")] = "",
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable; may be repeated.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="For --url; may be repeated.")] = None,
    config: FileOption = FILE,
) -> None:
    """Add a server to a configuration."""
    if bool(command) == bool(url):
        raise error_exit("give a command after --, or --url: mcp-session-gateway add files -- npx -y SOME-SERVER")
    if command and (fault := fault_after_dashes(command)):
        raise error_exit(fault)
    entry: dict[str, Any] = {"url": url} if url else {}
    if command:
        entry = {"command": command[0]} | ({"args": command[1:]} if command[1:] else {})
    entry |= {"env": _pairs("--env", env, "=")} if env else {}
    entry |= {"headers": _pairs("--header", header, ":")} if header else {}
    language: Any = "toml" if config.suffix == ".toml" else "json"
    try:
        Settings.model_validate({"mcpServers": {name: entry}, "gateway": _gateway_of(config)})
        added = add_entry(config, ClientFile(path="", at=("mcpServers", name), entry=entry, language=language))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, found["loc"]))
        raise error_exit(": ".join(filter(None, (where, found["msg"].removeprefix("Value error, "))))) from None
    except ConfigurationError as error:
        raise error_exit(str(error)) from None
    _out.print(f"{config}: {name} {'added' if added else 'was there already'}")
    _tell_absent({name: entry})
    faults, others = _faults_and_others(name, config)
    for line in faults:
        _out.print_labelled("missing", line)
    if added:
        refuses = "refuses this change, and later ones, until nothing is missing for it"
        _out.print(f"A gateway that runs with this file {refuses if faults else 'loads it by itself'}.")
        if len(others) == 1:
            _out.print(f"With a second server, {others[0]}'s tools are called {others[0]}__TOOL at /mcp.")
    options = _gateway_of(config)
    if _is_served(url := f"{url_here(options.host, options.port)}/mcp"):
        _out.print(f"A gateway runs at {url} already.")
    else:
        _out.print(f"Next: mcp-session-gateway run{_given(config)}")


def _faults_and_others(name: str, file: Path) -> tuple[Iterable[str], list[str]]:
    """Return why the server `name` is left out of the file's configuration (empty if it is not left out), and the names
    of all other servers. If the whole file cannot be used, return the reasons for that, and no names."""
    try:
        settings = load(file).settings
        return settings.left_out.get(name, ()), [each for each in settings.mcpServers if each != name]
    except ConfigurationError as error:
        return str(error).splitlines(), []


def _gateway_of(config: Path) -> GatewaySettings:
    """Return the settings of `gateway` in the file to which a server is added, without `cards`. If these settings have
    faults, return the defaults: `run` reports the faults."""
    try:
        found = gathered(config if config.exists() else None, {}, GatewaySettings)
        options = GatewaySettings.model_validate(found.document.get("gateway", {}))
        options = options.model_copy(update={"cards": {}})  # they are of other servers
        return Settings.model_validate({"gateway": options}).gateway
    except (ConfigurationError, ValidationError):
        return GatewaySettings()


def _pairs(option: str, given: Iterable[str], separator: str) -> dict[str, str]:
    pairs = {}
    for one in given:
        key, found, value = one.partition(separator)
        if not (key and found):
            raise error_exit(f"{option} {one!r}: write NAME{separator}VALUE")
        pairs[key.strip()] = value.strip() if separator == ":" else value
    return pairs


def _clients(incomplete: str) -> list[str]:
    return [client for client in CLIENTS if client.startswith(incomplete)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Options of `connect` for the entry that a client's configuration file gets, by which the client finds the
    gateway."""

    name: Annotated[str, typer.Option(help="What the client calls it.")] = ""
    token: Annotated[
        bool, typer.Option("--token", help=f"Send the credential in the variable {CREDENTIAL_VARIABLE}.")
    ] = False
    session_key: Annotated[
        bool | None,
        typer.Option(
            "--session-key/--no-session-key",
            help="Give the client a session key of its own, with which it finds its session again when it is opened "
            f"again. Default: for {', '.join(sorted(WITH_KEY))}.",
        ),
    ] = None


@options
def connect(
    entry: Entry,
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help=f"One of {', '.join(CLIENTS)}.", autocompletion=_clients)
    ] = "",
    url: Annotated[
        str,
        typer.Option(
            envvar="MCP_GATEWAY_URL", help="The URL of the endpoint. Default: where your gateway runs, or is to listen."
        ),
    ] = "",
    config: ConfigOption = None,
    write: Annotated[bool, typer.Option("--write", help="Write it into the client's file.")] = False,
) -> None:
    """Print how a client connects to the gateway, or write it into the client's file."""
    url = _endpoint(url, config)
    if not client:
        for one in snippets(url, name=entry.name, needs_token=entry.token):
            _out.print(f"{one.client:<14} {one.title}")
        _out.print("Next: mcp-session-gateway connect CLIENT")
        return
    if client not in CLIENTS:
        known = ", ".join(CLIENTS)
        raise error_exit(f"there is no client {client!r}{did_you_mean(client, CLIENTS)}\nknown are {known}")
    found = _snippet(client, url, entry)
    if write:
        _write(found, url)
        return
    if found.file is not None and found.text == found.file.text:
        _err.print_labelled("file", found.file.path)
    typer.echo(found.text, nl=False)


def _endpoint(given: str, config: Path | None) -> str:
    """Return the URL that a client is to use: `given`, or that of the running or configured gateway (`endpoint_here`).
    In the second case, warn if no gateway runs there, and name other gateways that run here. Errors end the command."""
    try:
        url = f"{base_url(given or endpoint_here(config))}/mcp"
    except ConfigurationError as error:
        raise error_exit(f"{error}\nso the gateway's address is not known: fix this, or give --url") from None
    except (OperatorError, ValueError) as error:
        raise error_exit(str(error)) from None
    if given:
        return url
    if others := ", ".join(one.endpoint for one in local_gateways() if not one.is_at(url)):
        _err.print_labelled("ignored", f"{others}, where you run a gateway too: choose by --url")
    if not _is_served(url):
        _err.print_labelled("warning", _NOT_RUNNING.format(url=url))
    return url


def _is_served(url: str) -> bool:
    """Return True if a gateway runs at the URL."""
    from gateway.doctor.running_gateways import is_gateway

    # A gateway that was not started at a terminal writes no file to find it.
    return any(one.is_at(url) for one in local_gateways()) or asyncio.run(is_gateway(url))


def _write(found: Snippet, url: str) -> None:
    """Add the entry of `found` to the client's file, after a copy of the file is made. Print what was done, and what
    the person still has to do. Errors end the command."""
    if (file := found.file) is None:
        raise error_exit(
            f"{found.title} has no file: run `mcp-session-gateway connect {found.client}`, and use what it prints"
        )
    path = Path(file.path).expanduser().absolute()
    try:
        others, before = other_servers(path, file), object_in(path, file.at)
        copy = copy_of(path) if path.exists() and path.stat().st_size else None
        written = add_entry(path, file, copy=copy, url=url)
    except ConfigurationError as error:
        raise error_exit(str(error)) from None
    except OSError as error:
        raise error_exit(f"{path}: {error.strerror}: let your user read it, or add the entry by hand") from None
    kept = f"; {copy} has the file as it was" if written and copy else ""
    done = (f"leads to {url} now" if before else "added") if written else "was there already"
    where = "" if file.path.startswith("~/") else f", only for the folder {Path.cwd()}"
    _out.print(f"{path}: {file.at[-1]} {done}{where}{kept}")
    if others:
        _out.print_labelled(
            "warning",
            f"{', '.join(others)} {'stays' if len(others) == 1 else 'stay'} in the file: {found.title} still starts "
            "what stands there itself, and sees each tool twice that the gateway serves too. Remove these entries "
            "there",
        )
    if PLACEHOLDER in file.text:
        _out.print(f"Next: write your API key or access token there, in place of {PLACEHOLDER}")


def _snippet(client: str, url: str, entry: Entry) -> Snippet:
    """Return how the client connects. If the client gets a session key, reuse the key that its file already has for
    this gateway: for this URL, or for another URL of this machine if this URL is of this machine, too. Otherwise make a
    new key. A key from a file in the current folder is never reused: whoever wrote the file would know the key."""
    script = Path(sys.executable).with_name("mcp-session-gateway")
    program = (str(script),) if script.is_file() else (sys.executable, "-m", "gateway")
    found = partial(snippet, client, url, name=entry.name, needs_token=entry.token, program=program)
    if not (client in WITH_KEY if entry.session_key is None else entry.session_key):
        return found()
    file, kept = found().file, ""
    if file is not None and (path := Path(file.path).expanduser()).is_absolute():
        try:
            before = object_in(path, file.at)
        except ConfigurationError as error:
            raise error_exit(str(error)) from None
        kept = session_key_of(before) if _is_for(url, before) else ""
    return found(session_key=kept or secrets.token_hex(16))


def _is_for(url: str, entry: Any) -> bool:
    """Return True if a value in the client's entry is the URL, with or without `/mcp`, or if the value and the URL both
    lead to this machine."""
    if isinstance(entry, Mapping):
        return any(_is_for(url, value) for value in entry.values())
    if isinstance(entry, list):
        return any(_is_for(url, value) for value in entry)
    if not isinstance(entry, str):
        return False
    return entry.removesuffix("/mcp") == url.removesuffix("/mcp") or all(map(is_of_this_machine, (entry, url)))


def _given(file: Path) -> str:
    """Return the option that makes other commands read this file, as ` --config FILE` with a space before it; empty for
    the file that they read by default."""
    return "" if file == FILE else f" --config {shlex.quote(str(file))}"


@options
def keygen() -> None:
    """Print a new signing key for MCP_GATEWAY_KEYS."""
    typer.echo(generate_key())
