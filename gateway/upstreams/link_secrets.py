"""Which values in the configuration of a server, and in what its links are given, nobody may see."""

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.config.upstreams import UpstreamSettings
from session_store.metadata import secret_arguments, secret_values
from session_store.tool_session import FACTS_VARIABLE
from transports.upstream_port import ConnectOptions

__all__ = ["secrets_in", "secrets_in_command", "secrets_of_link"]


def secrets_in_command(settings: UpstreamSettings) -> set[str]:
    """The secrets in a server's command line, and those of the gateway's environment that the configuration has put
    into the command line or the environment of the server."""
    texts = (*settings.args, *settings.env.values())
    ours = {value for value in secret_values(os.environ) if any(value in text for text in texts)}
    return secret_arguments(settings.args) | ours


def secrets_in(settings: UpstreamSettings) -> set[str]:
    """As `secrets_in_command`, and the variables that are secret by their name, and all headers."""
    return secrets_in_command(settings) | secret_values(settings.env) | _of_headers(settings.headers.values())


def secrets_of_link(given: ConnectOptions) -> set[str]:
    """The values of all headers, and of all variables but those that repeat facts of the session."""
    facts = {*_texts(msgspec.json.decode(given.env.get(FACTS_VARIABLE, "{}")))}
    variables = {value for name, value in given.env.items() if name != FACTS_VARIABLE}
    return (variables - facts) | _of_headers(given.headers().values())


def _of_headers(values: Any) -> set[str]:
    """The values of headers. Of `Bearer VALUE` it is also the last word alone."""
    return {part for value in values for part in (value, value.rpartition(" ")[2])}


def _texts(value: Any) -> Iterator[str]:
    """The texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
