"""Build the parts that store sessions, and those that find the session of a request."""

import functools
from collections.abc import Callable, Sequence

from gateway.calls.live_session import LiveSession
from gateway.config.sessions import is_usable_workspace
from gateway.config.settings import Settings
from gateway.context.client_announcements import Announcements
from gateway.context.personal_data import scrubber
from gateway.identity.context_rules import ContextRules
from gateway.observability.logs import CORRELATION
from gateway.serving.gateway_parts import Foundation, Listeners, Resolution, Servers, SessionParts
from gateway.sessions.cached_record import CachedRecords
from gateway.sessions.client_chosen_keys import session_key
from gateway.sessions.http_sse_sessions import HttpSseSessions
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.sessions.lookup import SessionLookup
from gateway.sessions.opening import SessionOpener
from gateway.sessions.record_changes import RecordLimits, SessionRecords
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.resolve_initialize import InitializeResolver
from gateway.sessions.returning_clients import ReturnTracker
from gateway.sessions.session_aliases import Aliases
from gateway.sessions.session_loading import SessionAttacher
from gateway.sessions.token_carriers import Carriers
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.prestart import PrestartPool
from session_store import Context
from session_store.current import tool_session


def build_sessions(base: Foundation) -> SessionParts:
    """Build the parts that store sessions, open them and end them."""
    options, store = base.settings.gateway, base.backend.sessions
    policy, trust = options.policy, options.session.trust
    rules = ContextRules(
        policy.rules,
        trust,
        trust_announced=policy.trust_announced_workspace,
        read_only=policy.read_only,
        fields=options.context.fields,
        is_usable=is_usable_for(base.settings),
    )
    record_limits = RecordLimits(refusals=base.metrics.limited)
    closed: Listeners[LiveSession] = Listeners()
    lifecycle = SessionLifecycle(
        store=store,
        tasks=base.backend.tasks,
        bus=base.backend.bus,
        audit=base.audit,
        live=base.live,
        quotas=base.quotas,
        cluster=base.cluster,
        on_close=closed.notify,
    )
    base.taken_over.add(lifecycle.taken_over)
    tools = functools.partial(
        tool_session,
        sessions=store,
        state=base.backend.state,
        scrub=scrubber(options.session.scrub_metadata),
        correlation=CORRELATION.get,
    )
    key_headers = [name.lower() for name in options.session.key_headers]
    announcements = Announcements(
        options.session.workspace_path, options.context, lambda request: session_key(request, key_headers)
    )
    return SessionParts(
        rules=rules,
        record_limits=record_limits,
        records=SessionRecords(store, record_limits, base.activity.timelines.add),
        lifecycle=lifecycle,
        announcements=announcements,
        attacher=SessionAttacher(
            store=store,
            live=base.live,
            cluster=base.cluster,
            rules=rules,
            announcements=announcements,
            audit=base.audit,
            end_former=lifecycle.end_former,
        ),
        closed=closed,
        tools=tools,
    )


def is_usable_for(settings: Settings) -> Callable[[str], bool]:
    """Return a function that returns True if a workspace may have that name."""
    pattern, is_checked = settings.gateway.context.workspace_pattern, settings.workspaces_become_variables
    return lambda workspace: not is_checked or is_usable_workspace(workspace, pattern)


def build_resolution(base: Foundation, sessions: SessionParts, servers: Servers) -> Resolution:
    """Build the parts that find the session of a request, or open a new one and start processes for it in advance."""
    settings, store = base.settings.gateway.session, base.backend.sessions

    def prestartable(path: str, context: Context) -> Sequence[ConfiguredUpstream]:
        # The path of an app behind the middleware: its sessions have no servers.
        return servers.endpoints[path].prestartable(context) if path in servers.endpoints else []

    prestart = PrestartPool(servers.prestarted, prestartable)
    carriers = Carriers(
        base.ring,
        cookie=settings.cookie,
        key_headers=settings.key_headers,
        in_results=settings.token_in_results,
    )
    opener = SessionOpener(
        lifecycle=sessions.lifecycle,
        attacher=sessions.attacher,
        settings=settings,
        rules=sessions.rules,
        announcements=sessions.announcements,
        prestart=prestart,
        cluster=base.cluster,
        clock=base.clock,
    )
    returns = ReturnTracker(settings, base.backend.flags, base.audit)
    aliases = Aliases(settings, carriers, returns, servers.endpoints)
    lookup = SessionLookup(store, carriers, base.audit)
    resolver = SessionResolver(
        store=store,
        lookup=lookup,
        live=base.live,
        cached=CachedRecords(sessions.rules, base.cluster, base.clock),
        attacher=sessions.attacher,
        opener=opener,
        aliases=aliases,
        returns=returns,
    )
    initializer = InitializeResolver(
        resolver=resolver,
        lookup=lookup,
        attacher=sessions.attacher,
        aliases=aliases,
        limits=sessions.record_limits,
        settings=settings,
        audit=base.audit,
    )
    streams = HttpSseSessions(lookup=lookup, opener=opener, carriers=carriers, live=base.live, settings=settings)
    return Resolution(
        carriers=carriers,
        resolver=resolver,
        initializer=initializer,
        streams=streams,
        prestart=prestart,
        returns=returns,
    )
