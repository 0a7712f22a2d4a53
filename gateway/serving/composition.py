"""Build all parts of a gateway from its settings. Only this package chooses concrete stores and transports."""

import functools
from collections.abc import Callable, Mapping
from time import time
from typing import TYPE_CHECKING, Any

from gateway.admin.auth import Access, OperatorHosts, SignInLink
from gateway.admin.operator_tool_calls import InternalRequests, ToolCatalog, TriedCalls
from gateway.admin.replica_queries import PeerQueries, Replicas
from gateway.admin.routes import operator_routes
from gateway.admin.session_environments import SessionEnvironments
from gateway.admin.session_list import SessionFinder
from gateway.admin.this_replica import Replica
from gateway.admin.verb_handlers import Operations
from gateway.config.addresses import is_loopback
from gateway.config.secrets import key_ring
from gateway.config.settings import Settings
from gateway.config.upstreams import OBJECT
from gateway.identity.authenticate import Authenticator, ResourceMetadata
from gateway.identity.context_rules import kept_claims
from gateway.relay.call import Senders
from gateway.serving.build_http import Http, Resolution
from gateway.serving.build_servers import Servers
from gateway.serving.build_sessions import SessionParts
from gateway.serving.drain import Drain
from gateway.serving.foundation import Foundation
from gateway.serving.pages.consent_pages import ConsentPages
from gateway.serving.readiness import Readiness
from session_store import Backend, KeyRing
from transports.inbound.host_and_origin import Guard

if TYPE_CHECKING:
    from gateway.admin.prometheus import PrometheusExporter


class Callers:
    """The parts that authenticate callers, and check `Host`, `Origin`, `Via` and proxies."""

    def __init__(self, base: Foundation) -> None:
        options, tokens = base.settings.gateway, None
        if options.auth.jwt:
            from gateway.identity.access_tokens import AccessTokens  # loads an HTTP client, and PyJWT

            tokens = AccessTokens(options.auth.jwt, base.clock)
        self.metadata = ResourceMetadata(options.auth)
        self.identity = Authenticator(
            api_keys=options.api_keys,
            allow_anonymous=options.allows_anonymous,
            auth=options.auth,
            tokens=tokens,
            metadata_url=self.metadata.url,
            fields=options.context.fields,
            keeps_tokens=options.exchanges_tokens,
        )
        self.senders = Senders(identity=self.identity, rates=base.rates, audit=base.audit, log=base.request_log)
        names, proxies_say = options.allowed_hosts, () if options.auth.proxies is None else options.auth.proxies.headers
        fields = (field.header.lower() for field in options.context.fields.values() if field.header)
        keys = (name.lower() for name in options.session.key_headers)
        self.guard = Guard(
            proxies=self.identity.proxies,
            hosts=frozenset(names),
            domains=tuple(name[1:] for name in names if name.startswith("*.")),
            origins=frozenset(options.allowed_origins),
            loopback=is_loopback(options.host),
            single=frozenset((*proxies_say, *fields, *keys)),
            hops=frozenset(base.hops),
        )


class Operating:
    """The parts for operators: the console, the REST interface, metrics, and queries to other replicas."""

    def __init__(self, parts: "Parts", link: SignInLink | None) -> None:
        base, sessions, servers = parts.foundation, parts.sessions, parts.servers
        backend, options = base.backend, base.settings.gateway
        admin, record = options.admin, functools.partial(base.audit.record, "operated")
        self.environments = SessionEnvironments(
            replica=base.name,
            settings=base.settings,
            upstreams=servers.upstreams,
            rules=sessions.rules,
            policy=servers.policy,
            sandboxes=servers.sandboxes,
            delegation=servers.fork_server.delegation,
            unusable=servers.tool_calls.unusable,
        )
        self.replica = Replica(
            name=base.name,
            live=base.live,
            upstreams=servers.upstreams,
            metrics=base.metrics,
            memory=base.memory,
            activity=base.activity,
            cluster=base.cluster,
            serving=parts.drain,
            environments=self.environments,
            watches=base.watches,
            warnings=parts.resolution.returns.warnings,
            refused=servers.refused.of,
            stop_task=parts.http.tasks.table.cancel,
        )
        self.queries = PeerQueries(backend.bus, base.name, self.replica.answer)
        self.operations = Operations(
            backend=backend,
            replicas=Replicas(backend, self.replica, self.queries),
            ending=sessions.lifecycle,
            record=record,
            clock=base.clock,
            tried=TriedCalls(
                catalog=ToolCatalog(servers.upstreams, servers.tool_calls.unapproved),
                ask=InternalRequests(parts.http.endpoints, host=parts.callers.guard.served_host),
                finder=SessionFinder(backend.sessions, base.clock),
                claims=functools.partial(kept_claims, rules=sessions.rules),
                token=parts.resolution.carriers.token,
                record=record,
                ending=sessions.lifecycle,
                where=admin.try_tools or ("any" if options.is_of_one_person else "own"),
            ),
            settings=base.settings,
            consented=servers.consented,
        )
        self.access = Access(
            admin.keys,
            base.ring,
            guard=parts.callers.guard,
            flags=backend.flags,
            audit=base.audit,
            link=link,
            hosts=OperatorHosts((*options.allowed_hosts, *admin.allowed_hosts)),
        )

        def exposition() -> "PrometheusExporter":
            from gateway.admin.prometheus import PrometheusExporter  # loads prometheus_client

            return PrometheusExporter(self.replica, base.audit)

        self.routes = operator_routes(
            operations=self.operations,
            access=self.access,
            exposition=exposition,
            backend=backend,
            open_metrics=bool(admin.listen),
        )


class Parts:
    """All parts of a gateway process, in groups, each built from those before it.

    `store`: replaces that of the settings. `objects`: server objects by name, in addition to those of the settings.
    `ring`: the keys; None: those of the environment or of the key file. `link`: a one-time sign-in to the console.

    Raises:
        ConfigurationError: the settings cannot be served.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store: Backend | None = None,
        objects: Mapping[str, Any] | None = None,
        ring: KeyRing | None = None,
        clock: Callable[[], float] = time,
        link: SignInLink | None = None,
    ) -> None:
        ring = key_ring(settings.gateway.store) if ring is None else ring
        self.foundation = base = Foundation(settings, ring, clock, store)
        self.callers = callers = Callers(base)
        self.sessions = sessions = SessionParts(base)
        self.servers = servers = Servers(base, sessions, objects or {})
        self.resolution = Resolution(base, sessions, servers)
        self.http = Http(base, callers.guard, callers.senders, sessions, servers, self.resolution)

        def can_answer() -> bool:
            """Return True once a server of the configuration has answered. If the configuration has no servers, one
            of the server objects has to answer, such as the gateway's own tools. Without any server, return True."""
            configured = [upstream for upstream in servers.upstreams if upstream.settings is not OBJECT]
            counted = configured or servers.upstreams
            return not counted or any(upstream.has_answered for upstream in counted)

        self.drain = Drain(
            state=base.state,
            readiness=Readiness(
                base.state.may_serve, base.backend.try_write, can_answer, is_shared=base.backend.is_shared
            ),
            live=base.live,
            lifecycle=sessions.lifecycle,
            cluster=base.cluster,
            tasks=self.http.tasks.table,
            rates=base.rates,
        )
        self.operating = Operating(self, link)
        self.consent = ConsentPages(
            servers.consented,
            servers.credentials,
            identity=callers.identity,
            guard=callers.guard,
            rates=base.rates,
            audit=base.audit,
            is_known=self.http.tasks.rights.is_known,
        )
