"""Build the servers, their sandboxes, and the endpoints that serve them."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from gateway.calls.live_session import LiveSession
from gateway.config.configuration_errors import ConfigurationError, missing_extra
from gateway.config.settings import GatewaySettings
from gateway.config.upstreams import OBJECT, UpstreamSettings
from gateway.context.child_environment import ChildEnvironment
from gateway.context.link_resources import LinkResourceProvider
from gateway.context.principal_secrets import PrincipalSecrets
from gateway.context.session_assertions import Assertions
from gateway.policy.decisions import Policy
from gateway.policy.tool_policy import ToolCalls
from gateway.policy.unapproved_items import UnapprovedItems
from gateway.protocol.schemas import Schemas
from gateway.relay.endpoint_servers import EndpointServers
from gateway.relay.extension_methods import ExtensionRelay
from gateway.relay.late_servers import LateServers
from gateway.relay.merged_servers import MergedServers
from gateway.relay.policy_admission import Admission, VisibleServers
from gateway.sandbox.package_fetch import PackageFetcher
from gateway.sandbox.packages import PackageInUse, Packages, fetched_with
from gateway.sandbox.profiles import WallsOfFetches
from gateway.sandbox.refusals import Refusals, SessionRefusals
from gateway.sandbox.sandboxes_by_trust import TRUSTS, SandboxesByTrust, own_listeners, sandboxes_of
from gateway.sandbox.system_call_gates import SandboxGates
from gateway.serving.gateway_parts import Foundation, Servers, SessionParts
from gateway.serving.url_paths import ALL, NOWHERE, path_of
from gateway.serving.workers import worker_count
from gateway.sessions.child_sessions import ChildSessions
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.factory import UpstreamFactory
from gateway.upstreams.former_servers import FormerServers
from gateway.upstreams.link_options import SessionResources
from gateway.upstreams.prestart import PrestartedProcesses
from gateway.upstreams.process_sandbox import SandboxedResources
from session_store.redaction import scrubbed_text
from session_store.session import redact
from transports.upstream.cgroup_delegation import OFF
from transports.upstream.fork_server_client import ForkServer


def _gates(base: Foundation, shown: SessionRefusals) -> SandboxGates:
    return SandboxGates(Refusals(base.metrics.counters["sandbox_refusals"], base.audit.blocked, monotonic, shown))


def build_servers(base: Foundation, sessions: SessionParts, given: Mapping[str, Any]) -> Servers:
    """Build the servers of the settings and of `given` (server objects by name), and their endpoints."""
    refused = SessionRefusals(base.clock)
    options, prestarted = base.settings.gateway, PrestartedProcesses()
    entries, objects = base.settings.mcpServers, _objects(base, sessions, given)
    policy = Policy(options.policy, with_objects(entries, objects))
    link_resources = LinkResourceProvider(sessions.tools, base.backend.state, base.limits, base.metrics.limited)
    assertions = Assertions(base.ring, issuer=options.issuer, clock=base.clock, fields=base.facts.told_to_servers)
    credentials = PrincipalSecrets(options.secrets, options.issuers)

    sandboxes = sandboxes_by_name(entries, options)

    # Without any sandbox, the gateway does not move into its own cgroup.
    walled = any(each.sandbox(trust).has_walls for each in sandboxes.values() for trust in TRUSTS)
    walls = WallsOfFetches(
        reach=options.packages.reach,
        closed=own_listeners(options, workers=worker_count()),
        required=any_is_required(sandboxes.values()),
    )
    fork_server = ForkServer(_gates(base, refused), options.cgroup if walled else OFF)

    def resources(name: str, entry: UpstreamSettings, sandbox: SandboxesByTrust) -> SessionResources:
        return SessionResources(
            entry,
            grants=link_resources,
            assertions=assertions,
            credentials=credentials,
            environment=ChildEnvironment(
                name,
                base.settings.environment_of(entry),
                entry.env,
                facts=base.facts,
                rules=sessions.rules,
                secrets=credentials,
                folders=link_resources.folders,
            ),
            quotas=base.quotas,
            take_prestarted=lambda session: prestarted.take(session, name),
            sandboxed=SandboxedResources(
                name, sandbox, link_resources.folders, _package(packages, name, entry), base.memory
            ),
        )

    packages = _packages(options, walls, fork_server)

    def factory(by_name: Mapping[str, SandboxesByTrust]) -> UpstreamFactory:
        unwalled = sandboxes_of("", OBJECT, options, workers=worker_count())
        return UpstreamFactory(
            options.limits,
            fork_server,
            gateway=base.hops[0],
            resources=lambda name, entry: resources(name, entry, by_name.get(name, unwalled)),
            records=sessions.records,
            permits=policy.permitted_uris,
            quotes=options.policy.last_output,
            has_lock=options.policy.lock is not None,
        )

    def make(
        some: Mapping[str, UpstreamSettings], by_name: Mapping[str, SandboxesByTrust]
    ) -> dict[str, ConfiguredUpstream]:
        return {name: _of_entry(factory(by_name), name, entry) for name, entry in some.items()}

    upstreams = [*make(entries, sandboxes).values()]
    upstreams += [factory({}).of_object(name, server) for name, server in objects.items()]
    late = LateServers(wait_s=options.limits.list_timeout_s, read_s=options.limits.start_timeout_s)
    sessions.closed.add(lambda live: prestarted.forget(live.session.id))
    sessions.closed.add(lambda live: refused.forget(redact(live.session.id)))
    sessions.closed.add(lambda live: link_resources.folders.forget(live.session.id))
    sessions.closed.add(late.forget)

    def forget(live: LiveSession) -> None:
        for each in upstreams:  # as they are then
            each.forget(live)

    sessions.closed.add(forget)
    unapproved = UnapprovedItems(policy, base.audit, base.metrics.counters["lock_refusals"])
    tool_calls = ToolCalls(policy, base.audit, Schemas(), options.policy, base.facts, unapproved)
    admission = Admission(policy, tool_calls, base.audit, options.policy)
    serving = _serving(base, sessions, late, policy, admission)
    return Servers(
        upstreams=upstreams,
        fork_server=fork_server,
        sandboxes={name: sandboxes[name] for name, entry in entries.items() if entry.kind == "command"},
        make=make,
        fetch_walls=walls,
        credentials=credentials,
        former=FormerServers(base.live),
        refused=refused,
        prestarted=prestarted,
        link_resources=link_resources,
        packages=packages,
        assertions=assertions,
        policy=policy,
        tool_calls=tool_calls,
        admission=admission,
        late=late,
        serving=serving,
        endpoints=_endpoints(base, upstreams, policy, serving),
    )


def with_objects(entries: Mapping[str, UpstreamSettings], objects: Iterable[str]) -> dict[str, UpstreamSettings]:
    """Return the settings of all servers: those of the configuration, and those of server objects."""
    return {**entries, **dict.fromkeys(objects, OBJECT)}


def sandboxes_by_name(entries: Mapping[str, UpstreamSettings], options: GatewaySettings) -> dict[str, SandboxesByTrust]:
    """Return the sandboxes of servers, by the server's name."""
    return {name: sandboxes_of(name, entry, options, workers=worker_count()) for name, entry in entries.items()}


def any_is_required(sandboxes: Iterable[SandboxesByTrust]) -> bool:
    """Return True if one of these sandboxes must hold completely."""
    return any(each.sandbox(trust).required for each in sandboxes for trust in TRUSTS)


def _of_entry(factory: UpstreamFactory, name: str, entry: UpstreamSettings) -> ConfiguredUpstream:
    """Return the server of a configuration entry. If it cannot be served, return it as one that is left out."""
    if entry.faults:
        return factory.of_left_out(name, entry)
    try:
        return factory.of_entry(name, entry)
    except ConfigurationError as error:
        # A module that cannot be imported may have a credential in its words.
        return factory.of_left_out(name, entry.without_server(scrubbed_text(str(error))))


def _packages(options: GatewaySettings, walls: WallsOfFetches, fork_server: ForkServer) -> Packages:
    """Build the part that fetches and stores the packages of sandboxed servers. Fetches require a sandbox if any server
    does."""
    # Before the start of the server counts as too late, so that who waits is told of the fetch.
    wait_s = options.limits.start_timeout_s * 0.8
    return Packages(options.packages, PackageFetcher(fork_server, walls), wait_s=wait_s)


def _package(packages: Packages, name: str, entry: UpstreamSettings) -> Callable[[], Awaitable[PackageInUse | None]]:
    """Return a function that fetches a server's package and returns it; None if the command needs no fetch."""
    env = fetched_with(entry)
    return lambda: packages.use(name, entry.argv, env)


def _objects(base: Foundation, sessions: SessionParts, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server objects by name: those of `given`, and the gateway's own tools if the settings ask for them.

    Raises:
        ConfigurationError: the packages for the gateway's own tools are not installed.
    """
    if not base.settings.gateway.tools:
        return dict(given)
    try:
        from gateway.sessions.session_tools import NAME, gateway_tools  # loads the SDK, which only these tools need
    except ModuleNotFoundError:
        raise missing_extra("gateway.tools", "mcp") from None
    return {**given, NAME: gateway_tools(sessions.lifecycle, base.backend.sessions)}


def _serving(
    base: Foundation, sessions: SessionParts, late: LateServers, policy: Policy, admission: Admission
) -> Callable[[Sequence[ConfiguredUpstream]], EndpointServers]:
    """Return a function that makes the endpoint of some servers."""
    handles = ChildSessions(
        lifecycle=sessions.lifecycle, attacher=sessions.attacher, store=base.backend.sessions, clock=base.clock
    )

    def serving(some: Sequence[ConfiguredUpstream]) -> EndpointServers:
        visible = VisibleServers(some, policy)
        merged = MergedServers(visible, admission, late)
        return EndpointServers(
            visible,
            admission=admission,
            handles=handles,
            merged=merged,
            late=late,
            extensions=ExtensionRelay(visible, admission, wait_s=late.wait_s),
        )

    return serving


def _endpoints(
    base: Foundation,
    upstreams: Sequence[ConfiguredUpstream],
    policy: Policy,
    serving: Callable[[Sequence[ConfiguredUpstream]], EndpointServers],
) -> dict[str, EndpointServers]:
    """Return the endpoints by path: one for all servers, and one for each server alone."""
    found = {ALL: serving(upstreams)} | {path_of(one.name): serving([one]) for one in upstreams}
    # Unless everyone may see every server, unknown and hidden servers are answered alike.
    hides_names = not (policy.is_open and base.settings.gateway.allows_anonymous)
    return found | ({NOWHERE: serving([])} if hides_names else {})
