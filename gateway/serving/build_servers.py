"""Build the servers, their sandboxes, and the endpoints that serve them."""

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic, time
from typing import Any

from gateway.bridge.state_cipher import StateCipher
from gateway.calls.live_session import LiveSession
from gateway.config.configuration_errors import ConfigurationError, missing_extra
from gateway.config.endpoint_paths import ALL, NOWHERE, path_of
from gateway.config.settings import GatewaySettings
from gateway.config.upstreams import OBJECT, UpstreamSettings
from gateway.context.child_environment import ChildEnvironment
from gateway.context.consented_tokens import ConsentedTokens
from gateway.context.principal_secrets import PrincipalSecrets, without_templates
from gateway.context.resources_for_links import LinkResourceProvider
from gateway.context.session_assertions import ISSUER, Assertions
from gateway.policy.access_policy import Policy
from gateway.policy.changed_tools import ChangedTools
from gateway.policy.tool_policy import ToolPolicy
from gateway.policy.unapproved_items import UnapprovedItems
from gateway.protocol.input_schemas import Schemas
from gateway.relay.endpoint_servers import EndpointServers
from gateway.relay.extension_methods import ExtensionRelay
from gateway.relay.late_servers import LateServers
from gateway.relay.merged_servers import MergedServers
from gateway.relay.policy_admission import Admission, VisibleServers
from gateway.sandbox.gate_channels import SandboxGates
from gateway.sandbox.package_fetch import PackageFetcher
from gateway.sandbox.refusal_reports import Refusals, SessionRefusals
from gateway.sandbox.sandboxes_by_trust import TRUSTS, SandboxesByTrust, own_listeners, sandboxes_of
from gateway.sandbox.shared_package_fetches import Packages
from gateway.sandbox.walls_from_profile import WallsOfFetches
from gateway.serving.build_sessions import SessionParts
from gateway.serving.foundation import Foundation
from gateway.serving.workers import worker_count
from gateway.sessions.sessions_by_handle import ChildSessions
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.factory import UpstreamFactory
from gateway.upstreams.former_servers import FormerServers
from gateway.upstreams.link_env_and_headers import SessionResources
from gateway.upstreams.prestart import PrestartedProcesses
from gateway.upstreams.process_sandbox import SandboxedResources
from session_store import TimelineEntry
from session_store.redaction import scrubbed_text
from session_store.session import redact
from session_store.token_signing import Purpose
from transports.upstream.cgroup_delegation import OFF
from transports.upstream.fork_server_client import ForkServer


class Servers:
    """The servers, the parts that start their processes, the policy for them, and the endpoints that serve them.

    `given`: server objects by name, beside the servers of the settings.
    """

    def __init__(self, base: Foundation, sessions: SessionParts, given: Mapping[str, Any]) -> None:
        options, entries = base.settings.gateway, base.settings.mcpServers
        objects = _objects(base, sessions, given)
        self._base = base
        self._sessions = sessions
        self.refused = SessionRefusals(base.clock)
        self.prestarted = PrestartedProcesses()
        self.policy = Policy(options.policy, with_objects(entries, objects))
        self.link_resources = LinkResourceProvider(
            sessions.tools, base.backend.state, base.limits, base.metrics.limited
        )
        issuer = options.public_url.rstrip("/") or ISSUER
        self.assertions = Assertions(base.ring, issuer=issuer, clock=base.clock, fields=base.facts.fields_for_servers)
        cipher = StateCipher(base.ring.derive(Purpose.CONSENT))
        self.consented = ConsentedTokens(base.backend.sealed, cipher, options.browser_url, base.clock)
        self.credentials = PrincipalSecrets(options.secrets, options.issuers, self.consented)
        sandboxes = sandboxes_by_name(entries, options)
        self.sandboxes = {name: sandboxes[name] for name, entry in entries.items() if entry.kind == "command"}
        """The sandboxes of servers that have a command, by name."""
        self.fetch_walls = WallsOfFetches(
            reach=options.packages.reach,
            closed=own_listeners(options, workers=worker_count()),
            required=any_is_required(sandboxes.values()),
        )
        # Without any sandbox, the gateway does not move into its own cgroup.
        walled = any(each.sandbox(trust).has_walls for each in sandboxes.values() for trust in TRUSTS)
        refusals = Refusals(base.metrics.counters["sandbox_refusals"], base.audit.blocked, monotonic, self.refused)
        self.fork_server = ForkServer(SandboxGates(refusals), options.cgroup if walled else OFF)
        # Before the start of the server counts as too late, so that who waits is told of the fetch.
        wait_s = options.limits.start_timeout_s * 0.8
        fetcher = PackageFetcher(self.fork_server, self.fetch_walls)
        self.packages = Packages(fetcher, wait_s=wait_s)
        self.upstreams = [*self.make(entries, sandboxes).values()]
        self.upstreams += [self._factory({}).of_object(name, server) for name, server in objects.items()]
        self.former = FormerServers(base.live)
        self.late = LateServers(wait_s=options.limits.list_timeout_s, read_s=options.limits.start_timeout_s)
        sessions.closed.append(self._forget)
        unapproved = UnapprovedItems(self.policy, base.audit, base.metrics.counters["lock_refusals"])
        self.tool_calls = ToolPolicy(self.policy, base.audit, Schemas(), options.policy, base.facts, unapproved)
        changed = ChangedTools(
            base.audit,
            options.policy,
            base.metrics.counters["changed_tools"],
            self._tool_changed,
            sessions.records.remember_shown,
        )
        self.admission = Admission(self.policy, self.tool_calls, base.audit, options.policy, changed)
        self._children = ChildSessions(lifecycle=sessions.lifecycle, attacher=sessions.attacher, clock=base.clock)
        self.endpoints = {ALL: self.serving(self.upstreams)}
        """The servers and policy behind each path: one for all servers, and one for each server alone."""
        self.endpoints |= {path_of(one.name): self.serving([one]) for one in self.upstreams}
        # Unless everyone may see every server, unknown and hidden servers are answered alike.
        if not (self.policy.is_open and options.allows_anonymous):
            self.endpoints[NOWHERE] = self.serving([])

    def make(
        self, entries: Mapping[str, UpstreamSettings], sandboxes: Mapping[str, SandboxesByTrust]
    ) -> dict[str, ConfiguredUpstream]:
        """Make the servers of the settings `entries`, and return them by name. `sandboxes`: their sandboxes, by name.
        A server that cannot be served is returned, too: each attempt to open a link to it fails with the error that it
        is left out."""
        factory, made = self._factory(sandboxes), {}
        for name, entry in entries.items():
            try:
                made[name] = factory.of_left_out(name, entry) if entry.faults else factory.of_entry(name, entry)
            except ConfigurationError as error:
                # A module that cannot be imported may have a credential in its words.
                made[name] = factory.of_left_out(name, entry.without_server(scrubbed_text(str(error))))
        return made

    def _factory(self, sandboxes: Mapping[str, SandboxesByTrust]) -> UpstreamFactory:
        options = self._base.settings.gateway
        unwalled = sandboxes_of("", OBJECT, options, workers=worker_count())
        return UpstreamFactory(
            options.limits,
            self.fork_server,
            gateway=self._base.hops[0],
            resources=lambda name, entry: self._resources(name, entry, sandboxes.get(name, unwalled)),
            records=self._sessions.records,
            permits=self.policy.permitted_uris,
            has_lock=options.policy.lock is not None,
        )

    def _resources(self, name: str, entry: UpstreamSettings, sandbox: SandboxesByTrust) -> SessionResources:
        base, folders, env = self._base, self.link_resources.folders, without_templates(entry.env)
        return SessionResources(
            entry,
            grants=self.link_resources,
            assertions=self.assertions,
            credentials=self.credentials,
            environment=ChildEnvironment(
                name,
                base.settings.environment_of(entry),
                entry.env,
                facts=base.facts,
                rules=self._sessions.rules,
                secrets=self.credentials,
                folders=folders,
            ),
            quotas=base.quotas,
            take_prestarted=lambda session: self.prestarted.take(session, name),
            sandboxed=SandboxedResources(
                name, sandbox, folders, lambda: self.packages.use(name, entry.argv, env), base.memory
            ),
        )

    def serving(self, some: Sequence[ConfiguredUpstream]) -> EndpointServers:
        visible = VisibleServers(some, self.policy)
        return EndpointServers(
            visible,
            admission=self.admission,
            handles=self._children,
            merged=MergedServers(visible, self.admission, self.late),
            late=self.late,
            extensions=ExtensionRelay(visible, self.admission, wait_s=self.late.wait_s),
        )

    def _tool_changed(self, live: LiveSession, server: str, name: str) -> None:
        """Notify a session's client that its tools have changed, and add to the session's timeline that the tool `name`
        of `server` has changed since the session was shown it."""
        self.late.changed(live, ("tools",))
        why = f"tool {name} has changed since the session was shown it"
        self._sessions.records.add_entry(
            live.session, TimelineEntry(round(time(), 3), "session", server, "changed", why=why)
        )

    def _forget(self, live: LiveSession) -> None:
        """Have all parts drop what they hold in this process of a session. Called when this replica has closed it."""
        self.prestarted.forget(live.session.id)
        self.refused.forget(redact(live.session.id))
        self.link_resources.folders.forget(live.session.id)
        self.late.forget(live)
        for each in self.upstreams:
            each.forget(live)


def with_objects(entries: Mapping[str, UpstreamSettings], objects: Iterable[str]) -> dict[str, UpstreamSettings]:
    """Return the settings of all servers by name: those in the configuration, and those for server objects in this
    process."""
    return {**entries, **dict.fromkeys(objects, OBJECT)}


def sandboxes_by_name(entries: Mapping[str, UpstreamSettings], options: GatewaySettings) -> dict[str, SandboxesByTrust]:
    """Return the sandboxes of servers, by the server's name."""
    return {name: sandboxes_of(name, entry, options, workers=worker_count()) for name, entry in entries.items()}


def any_is_required(sandboxes: Iterable[SandboxesByTrust]) -> bool:
    """Return True if the settings of at least one sandbox demand that it is enforced completely (`required`)."""
    return any(each.sandbox(trust).required for each in sandboxes for trust in TRUSTS)


def _objects(base: Foundation, sessions: SessionParts, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server objects by name: those of `given`, and the gateway's own tools if the settings ask for them.

    Raises:
        ConfigurationError: the packages for the gateway's own tools are not installed.
    """
    if not base.settings.gateway.tools:
        return dict(given)
    try:
        from gateway.sessions.session_management_tools import (  # loads the SDK, which only these tools need
            NAME,
            gateway_tools,
        )
    except ModuleNotFoundError:
        raise missing_extra("gateway.tools", "mcp") from None
    return {**given, NAME: gateway_tools(sessions.lifecycle, base.backend.sessions)}
