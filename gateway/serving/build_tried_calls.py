"""Builds what calls tools for operators."""

import functools

from gateway.admin.session_list import SessionFinder
from gateway.admin.tried_calls import ToolCatalog, TriedCalls
from gateway.identity.context_rules import kept_claims
from gateway.serving.parts import Foundation, Http, Resolution, Servers, SessionParts
from gateway.serving.paths import served_paths

__all__ = ["build_tried_calls"]


def build_tried_calls(
    base: Foundation, sessions: SessionParts, servers: Servers, resolution: Resolution, http: Http
) -> TriedCalls:
    """Calls of tools that operators try."""
    options = base.settings.gateway
    names = [upstream.name for upstream in servers.upstreams]
    return TriedCalls(
        catalog=ToolCatalog(servers.upstreams, served_paths(names)),
        ask=http.internal,
        finder=SessionFinder(base.backend.sessions, base.clock),
        sessions=base.backend.sessions,
        claims=functools.partial(kept_claims, rules=sessions.rules),
        token=resolution.carriers.token,
        records=(functools.partial(base.audit.record, "operated"), sessions.lifecycle),
        where=options.admin.try_tools or ("any" if options.is_of_one_person else "own"),
    )
