"""Build the parts that store sessions, open them and end them."""

import functools
from collections.abc import Callable

from gateway.calls.live_session import LiveSession
from gateway.config.sessions import is_usable_workspace
from gateway.config.settings import Settings
from gateway.context.announced_context import Announcements
from gateway.identity.context_rules import ContextRules
from gateway.observability.logs import CORRELATION
from gateway.serving.foundation import Foundation, notify
from gateway.sessions.client_chosen_keys import session_key
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.sessions.record_changes import SessionRecords
from gateway.sessions.session_attaching import SessionAttacher
from session_store.current_tool_session import tool_session


class SessionParts:
    """The parts that store sessions, open them and end them. `tools` returns the object by which tools in this process
    use a session."""

    def __init__(self, base: Foundation) -> None:
        options, store = base.settings.gateway, base.backend.sessions
        self.rules = ContextRules(
            options.policy.rules,
            options.session.trust,
            trust_announced=options.policy.trust_announced_workspace,
            read_only=options.policy.read_only,
            fields=options.context.fields,
            is_usable=is_usable_for(base.settings),
        )
        self.records = SessionRecords(store, base.activity.timelines.add, refusals=base.metrics.limited)
        self.closed: list[Callable[[LiveSession], object]] = []
        """Functions that are called with each live session that this replica has closed."""
        self.lifecycle = SessionLifecycle(
            store=store,
            task_records=base.backend.tasks,
            bus=base.backend.bus,
            audit=base.audit,
            live=base.live,
            quotas=base.quotas,
            cluster=base.cluster,
            on_close=functools.partial(notify, self.closed),
        )
        base.taken_over.append(self.lifecycle.taken_over)
        self.tools = functools.partial(
            tool_session,
            sessions=store,
            state=base.backend.state,
            correlation=CORRELATION.get,
        )
        key_headers = [name.lower() for name in options.session.key_headers]
        self.announcements = Announcements(
            options.session.workspace_path, options.context, lambda request: session_key(request, key_headers)
        )
        self.attacher = SessionAttacher(
            store=store,
            live=base.live,
            cluster=base.cluster,
            rules=self.rules,
            announcements=self.announcements,
            audit=base.audit,
            end_former=self.lifecycle.end_former,
        )


def is_usable_for(settings: Settings) -> Callable[[str], bool]:
    """Return a function that takes a name, and returns True if a workspace may have that name."""
    is_checked = settings.workspaces_become_variables
    return lambda workspace: not is_checked or is_usable_workspace(workspace)
