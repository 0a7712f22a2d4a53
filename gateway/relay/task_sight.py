"""Who may see a task that the gateway has made: whoever may call its tool today."""

from collections.abc import Mapping

from gateway.identity.context_rules import ContextRules
from gateway.identity.request_context import RequestContext
from gateway.policy.decisions import Policy
from gateway.relay.endpoint import Endpoint
from session_store import Session, Task
from transports.inbound_port import Refused

__all__ = ["TaskSight"]


class TaskSight:
    """Decides by the credential of the request, as for a call. `endpoints` are by path."""

    def __init__(self, rules: ContextRules, endpoints: Mapping[str, Endpoint], policy: Policy) -> None:
        self._rules = rules
        self._endpoints = endpoints
        self._policy = policy

    def may_see(self, task: Task, session: Session | None, who: RequestContext) -> bool:
        """Whether a request of the task's principal may learn of the task. `session` is that of the task. If it has
        ended, what its client had announced counts no more."""
        try:
            if session is None:
                context = self._rules.context(who.principal, who.claims, "")
            else:
                context = self._rules.renewed(session, who.claims)
        except Refused:
            return False
        endpoint = self._endpoints.get(task.endpoint)
        if endpoint is None or endpoint.server(task.server, context) is None:
            return False
        return self._policy.decide(context, task.server, task.tool, task.operation).allowed
