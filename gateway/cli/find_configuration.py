"""Find the configuration that a command reads: the named file, `mcp.json` of the current folder, or a server's
command."""

import os
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.config.addresses import base_url
from gateway.config.hosts.client_snippets import CREDENTIAL_VARIABLE, PLACEHOLDER
from gateway.config.hosts.server_entries import command_fault
from gateway.config.sessions import KEY_HEADER, KEY_VARIABLE
from gateway.config.settings import ConfigurationError, Settings
from gateway.config.upstreams import UpstreamSettings

FILE: Final = Path("mcp.json")
"""The file that `init` writes, `add` extends, and commands read by default."""

NO_FILE: Final = f"there is no {FILE} in this folder: give --config FILE; `mcp-session-gateway init` writes one"


def configuration(given: Path | None) -> Path | None:
    """Return the file to read: `given`, the file of `--config`; without it, `mcp.json` in the current folder. Return
    None if there is neither: then only environment variables give settings."""
    return FILE if given is None and FILE.is_file() else given


def required_configuration(given: Path | None) -> Path:
    """Return the file to read, as `configuration` does. Raises `ConfigurationError` if there is none."""
    found = configuration(given)
    if found is None:
        raise ConfigurationError(NO_FILE)
    return found


def fault_after_dashes(command: list[str]) -> str:
    """Return why the command after `--` is unusable, and what to do; empty if it is usable."""
    fault = command_fault(command[0], None)
    return fault and f"the command after -- {fault}: give its words without quotes around all of them"


def with_command(settings: Settings, command: list[str] | None) -> Settings:
    """Return settings with a single server, which the command after `--` starts, and with the `gateway` part of
    `settings`. Without a command, return `settings` unchanged.

    Raises:
        ConfigurationError: the command is unusable; there is neither a command nor a server; or there are both.
    """
    if command and settings.mcpServers:
        raise ConfigurationError("give either a command after -- or a file with mcpServers, not both")
    if command:
        if fault := fault_after_dashes(command):
            raise ConfigurationError(fault)
        entry = {"command": command[0], "args": command[1:]}
        return Settings.model_validate({"mcpServers": {"main": entry}, "gateway": settings.gateway})
    if not settings.mcpServers:
        raise ConfigurationError(
            f"nothing to serve: there is no {FILE} in this folder. Give --config FILE with mcpServers, or a server's "
            "command after --; `mcp-session-gateway init` writes a file with the servers that your clients have"
        )
    return settings


def with_url(settings: Settings, url: str, command: list[str] | None) -> Settings:
    """Return settings with a single server, the gateway at `url`, and with the `gateway` part of `settings`. Requests
    to it carry the session key and the credential from environment variables.

    Raises:
        ConfigurationError: the URL, session key or credential is unusable; or a command or a server is given, too.
    """
    if command:
        raise ConfigurationError("give either --url or a command after --, not both")
    if settings.mcpServers:
        raise ConfigurationError("give either --url or a file with mcpServers, not both")
    from session_store.tool_session import SOCKET_VARIABLE  # loads what tools use

    given = os.environ
    # Inside a session of a gateway, the variable is a fact of that session and no wish of the user.
    key = "" if SOCKET_VARIABLE in given else given.get(KEY_VARIABLE, "")
    credential = given.get(CREDENTIAL_VARIABLE, "")
    for variable, value in ((KEY_VARIABLE, key), (CREDENTIAL_VARIABLE, credential)):
        if not (value.isascii() and value.isprintable()) or "${" in value:
            raise ConfigurationError(f"{variable}: with --url it is a header: give printable ASCII text without ${{")
    if credential == PLACEHOLDER:
        raise ConfigurationError(f"{CREDENTIAL_VARIABLE}: write your API key or access token in place of {PLACEHOLDER}")
    headers = {KEY_HEADER: key} if key else {}
    headers |= {"Authorization": f"Bearer {credential}"} if credential else {}
    try:
        entry = UpstreamSettings.of_gateway(f"{base_url(url)}/mcp", headers)
        return Settings.model_validate({"mcpServers": {"gateway": entry}, "gateway": settings.gateway})
    except ValidationError as error:
        raise ConfigurationError(f"--url: {error.errors(include_url=False, include_input=False)[0]['msg']}") from None
    except ValueError as error:
        raise ConfigurationError(f"--url: {error}") from None
