"""Which transport a configured server needs."""

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from gateway.config.limits import LimitSettings
from gateway.config.settings import ConfigurationError
from gateway.config.upstreams import UpstreamSettings
from gateway.context.secrets import is_template
from transports.upstream.spawn import ForkServer
from transports.upstream.stdio import StdioUpstream
from transports.upstream.streamable_http import HttpUpstream
from transports.upstream_port import Upstream

__all__ = ["in_process", "load_object", "upstream_of"]


def upstream_of(name: str, entry: UpstreamSettings, limits: LimitSettings, fork_server: ForkServer) -> Upstream:
    """The server of one entry of the configuration.

    Raises:
        ConfigurationError: it cannot be served.
    """
    if entry.in_process:
        return in_process(f"mcpServers.{name}.in_process", name, load_object(name, entry.in_process))
    if entry.url:
        headers = plain(entry.headers)
        return HttpUpstream(name=name, url=entry.url, headers=headers, max_event_bytes=limits.line_bytes)
    return StdioUpstream(
        name=name,
        argv=(*entry.resources.argv, *entry.argv),
        env=plain(entry.env),
        cwd=entry.cwd,
        fork_server=fork_server,
        max_line_bytes=limits.line_bytes,
        grace_s=limits.shutdown_grace_s,
    )


def plain(values: Mapping[str, str]) -> dict[str, str]:
    """Those that are the same for everybody."""
    return {name: value for name, value in values.items() if not is_template(value)}


def in_process(where: str, name: str, server: Any) -> Upstream:
    """The upstream of an object in this process: a server object of the SDK, or an upstream of another kind, as it is.

    An `Upstream` that another package brings is how an upstream kind is added from outside: it stands in the setting
    `in_process`, or in the `servers` of `create_app`. `transports.testing` has the contract that it keeps.

    Raises:
        ConfigurationError: the object is neither.
    """
    if isinstance(server, Upstream):
        return server
    from transports.upstream.in_process import InProcessUpstream  # loads the SDK: 0.6 s that others need not wait for

    try:
        return InProcessUpstream(name, server)
    except TypeError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def load_object(name: str, path: str) -> Any:
    """The object that `module:attribute` names; modules of the working directory are found too.

    Raises:
        ConfigurationError: it cannot be imported.
    """
    module, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ConfigurationError(f"mcpServers.{name}.in_process: {path}: {type(error).__name__}: {error}") from error
    return found
