"""Builds what makes tasks of slow calls, and what becomes of them."""

from gateway.identity.standing_rights import StandingRights
from gateway.relay.intake import Intake
from gateway.serving.parts import Foundation, Resolution, Servers, SessionParts, TaskParts
from gateway.tasks.handles import TaskHandles
from gateway.tasks.made.continuation import TaskContinuation
from gateway.tasks.made.made_tasks import MadeTasks, TaskVisibility
from gateway.tasks.made.maker import TaskMaker
from gateway.tasks.made.quotas import BoundedTasks, RunningNames, TaskQuotas, names_kept_s
from gateway.tasks.made.recovery import TaskRecovery
from gateway.tasks.made.table import TaskTable
from gateway.tasks.notices import TaskNotices
from session_store import Task

__all__ = ["build_tasks"]

ONLY_REPLICA = "only"
"""The name of the replica in a store that serves one gateway: its next process finds what it has left."""


def build_tasks(
    base: Foundation,
    sessions: SessionParts,
    servers: Servers,
    resolution: Resolution,
    intake: Intake,
    handles: TaskHandles,
) -> TaskParts:
    """The tasks that this gateway makes. Where it makes none (`gateway.tasks.enabled`), earlier ones are still
    answered."""
    settings, backend, cluster = base.settings.gateway.tasks, base.backend, base.cluster
    kept_s = names_kept_s(settings)

    def noted(task: Task, what: str) -> None:
        base.metrics.counters["tasks"][what] += 1
        base.audit.task(task, what)

    table = TaskTable(
        settings,
        BoundedTasks(backend.tasks, backend.quotas, settings.principal_bytes, kept_s),
        RunningNames(backend.quotas, ONLY_REPLICA if cluster is None else cluster.replica, kept_s),
        backend.bus,
        noted=noted,
        clock=base.clock,
        is_kept=backend.is_durable or backend.is_shared,
    )

    options = base.settings.gateway
    rights = StandingRights(
        sessions.rules, api_keys=options.api_keys, auth=options.auth, allow_anonymous=options.allows_anonymous
    )
    continuation = TaskContinuation(
        table,
        base.live,
        sessions.attacher,
        calls=intake,
        endpoints=servers.endpoints,
        handles=handles,
    )
    recovery = TaskRecovery(
        table,
        continuation,
        sessions=backend.sessions,
        attacher=sessions.attacher,
        cluster=cluster,
        rights=rights,
    )
    quotas = TaskQuotas(settings, backend.quotas, backend.tasks)
    made = MadeTasks(
        table,
        recovery,
        sessions=backend.sessions,
        resolver=resolution.resolver,
        quotas=quotas,
        rates=base.rates,
        audit=base.audit,
        may_see=TaskVisibility(sessions.rules, servers.endpoints, servers.policy).may_see,
    )
    maker = TaskMaker(table, quotas, handles) if settings.enabled else None
    notices = TaskNotices(made, backend.tasks, backend.bus)
    return TaskParts(
        table=table,
        recovery=recovery,
        made=made,
        notices=notices,
        maker=maker,
    )
