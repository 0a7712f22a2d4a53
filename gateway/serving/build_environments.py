"""Builds what explains to operators what the servers of a session were given."""

from gateway.admin.session_environments import Given, SessionEnvironments
from gateway.serving.parts import Foundation, Servers, SessionParts
from gateway.serving.paths import served_paths

__all__ = ["build_environments"]


def build_environments(base: Foundation, sessions: SessionParts, servers: Servers) -> SessionEnvironments:
    """The explanations of the sessions of this process."""
    names = [upstream.name for upstream in servers.upstreams]
    given = Given(
        settings=base.settings,
        upstreams=servers.upstreams,
        served=served_paths(names),
        rules=sessions.rules,
        policy=servers.policy,
        enclosures=servers.enclosures,
        delegation=servers.fork_server.delegation,
        unusable=servers.tool_calls.unusable,
    )
    return SessionEnvironments(base.name, given, base.live)
