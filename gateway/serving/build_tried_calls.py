"""Builds what calls tools for operators."""

import functools

from gateway.admin.session_finder import SessionFinder
from gateway.admin.tool_catalog import ToolCatalog
from gateway.admin.tried_calls import TriedCalls, Where
from gateway.config.addresses import is_loopback
from gateway.config.settings import GatewaySettings
from gateway.identity.kept_claims import kept_claims
from gateway.serving.parts import Foundation, Http, Resolution, Servers, SessionParts
from gateway.serving.paths import served_paths

__all__ = ["build_tried_calls"]


def build_tried_calls(
    base: Foundation, sessions: SessionParts, servers: Servers, resolution: Resolution, http: Http
) -> TriedCalls:
    """Calls of tools that operators try."""
    names = [upstream.name for upstream in servers.upstreams]
    return TriedCalls(
        catalog=ToolCatalog(servers.upstreams, served_paths(names)),
        ask=http.vouched,
        finder=SessionFinder(base.backend.sessions, base.clock),
        sessions=base.backend.sessions,
        claims=functools.partial(kept_claims, rules=sessions.rules),
        token=resolution.carriers.token,
        records=(functools.partial(base.audit.record, "operated"), sessions.lifecycle),
        where=_where(base.settings.gateway),
    )


def _where(options: GatewaySettings) -> Where:
    """In whose sessions operators may try tools. On loopback without credentials all sessions are of one person."""
    is_alone = is_loopback(options.host) and not options.credentials
    return options.admin.try_tools or ("any" if is_alone else "own")
