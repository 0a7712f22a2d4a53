"""Builds the servers and the paths that serve them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.config.upstreams import UpstreamSettings
from gateway.context.assertion import Assertions
from gateway.context.link_resources import LinkResourceProvider
from gateway.context.secrets import PrincipalSecrets
from gateway.policy.decisions import Policy, server_policy
from gateway.policy.tool_calls import ToolCalls
from gateway.protocol.schemas import Schemas
from gateway.relay.admission import Admission
from gateway.relay.aggregation import Aggregation
from gateway.relay.dispatch import Dispatch
from gateway.relay.endpoint import Endpoint
from gateway.relay.visible_servers import VisibleServers
from gateway.serving.parts import Foundation, Servers, SessionParts
from gateway.serving.paths import ALL
from gateway.sessions.child_sessions import ChildSessions
from gateway.upstreams.factory import in_process, upstream_of
from gateway.upstreams.prestart import PrestartShelf
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import Context
from transports.upstream.spawn import ForkServer
from transports.upstream_port import Upstream

__all__ = ["build_servers"]

_GIVEN_OBJECT = UpstreamSettings(in_process="given:object")
"""The entry of a server that was given as an object."""


def build_servers(base: Foundation, sessions: SessionParts, given: Mapping[str, Any]) -> Servers:
    """The servers of the settings and those given as objects, and the paths that serve them."""
    options, fork_server, shelf = base.settings.gateway, ForkServer(), PrestartShelf()
    transports = _transports(base, sessions, given, fork_server)
    policy = Policy(options.policy, {name: server_policy(entry) for name, entry, _ in transports})
    link_resources = LinkResourceProvider(base.backend.sessions, base.backend.state, base.limits, base.metrics.limited)
    assertions = Assertions(base.ring, issuer=options.issuer, clock=base.clock)
    credentials = PrincipalSecrets(options.secrets, options.issuers)
    upstreams = [
        ConfiguredUpstream(
            name,
            entry,
            transport,
            options.limits,
            grants=link_resources,
            record_use=sessions.records.record_use,
            remote_session_changed=sessions.records.remote_session_changed,
            assertions=assertions,
            credentials=credentials,
            quotas=base.quotas,
            started_ahead=shelf.part,
            sandbox=options.policy.sandbox,
            permits=_permits(policy, name),
        )
        for name, entry, transport in transports
    ]
    for forget in (lambda live: shelf.forget(live.session.id), *(upstream.forget for upstream in upstreams)):
        sessions.closed.add(forget)
    tool_calls = ToolCalls(policy, base.audit, Schemas(), options.policy)
    return Servers(
        upstreams=upstreams,
        fork_server=fork_server,
        prestarted=shelf,
        link_resources=link_resources,
        assertions=assertions,
        policy=policy,
        tool_calls=tool_calls,
        endpoints=_endpoints(base, sessions, upstreams, policy, tool_calls),
    )


def _transports(
    base: Foundation, sessions: SessionParts, given: Mapping[str, Any], fork_server: ForkServer
) -> list[tuple[str, UpstreamSettings, Upstream]]:
    """Name, settings and transport of each server. Raises `ConfigurationError`: one cannot be served."""
    options = base.settings.gateway
    if options.tools:
        from gateway.sessions.tools import NAME, gateway_tools  # loads the SDK, which others need not wait for

        given = {**given, NAME: gateway_tools(sessions.lifecycle, base.backend.sessions)}
    configured = [
        (name, entry, upstream_of(name, entry, options.limits, fork_server))
        for name, entry in base.settings.mcpServers.items()
    ]
    objects = [(name, _GIVEN_OBJECT, in_process(f"servers[{name!r}]", name, server)) for name, server in given.items()]
    return [*configured, *objects]


def _permits(policy: Policy, server: str) -> Callable[[Context, frozenset[str]], frozenset[str]]:
    return lambda context, uris: policy.permitted_uris(context, server, uris)


def _endpoints(
    base: Foundation,
    sessions: SessionParts,
    upstreams: Sequence[ConfiguredUpstream],
    policy: Policy,
    tool_calls: ToolCalls,
) -> dict[str, Endpoint]:
    """One path for all servers, and one for each."""
    options = base.settings.gateway
    handles = ChildSessions(
        lifecycle=sessions.lifecycle, attacher=sessions.attacher, store=base.backend.sessions, clock=base.clock
    )
    admission = Admission(policy, tool_calls, base.audit, options.policy)
    dispatch = Dispatch(handles, admission)

    def serving(some: Sequence[ConfiguredUpstream]) -> Endpoint:
        visible = VisibleServers(some, policy)
        aggregation = Aggregation(visible, admission, call_timeout_s=options.limits.call_timeout_s)
        return Endpoint(visible, dispatch=dispatch, aggregation=aggregation, admission=admission)

    return {ALL: serving(upstreams)} | {f"/servers/{one.name}/mcp": serving([one]) for one in upstreams}
