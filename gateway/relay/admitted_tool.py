"""A tool that policy lets a session call, and what each of its calls has to meet."""

from gateway.calls.call import Call
from gateway.observability.audit import Audit
from gateway.policy.decisions import Decision
from gateway.policy.tool_calls import MAX_LOGGED_NAME, Steps, ToolCalls
from gateway.protocol.listing import Tools
from session_store import Session
from transports.jsonrpc import Object

__all__ = ["AdmittedTool"]


class AdmittedTool:
    """The decision about one tool of one server, for a session with that record and context. `tools` are those that
    the server lists: it holds as long as they and the record are the same."""

    __slots__ = ("_audit", "_calls", "_decision", "_mirrored", "_name", "_session", "tools")

    def __init__(
        self, calls: ToolCalls, audit: Audit, decision: Decision, tools: Tools, session: Session, name: str
    ) -> None:
        self._calls = calls
        self._audit = audit
        self._decision = decision
        self._session = session
        self._name = name[:MAX_LOGGED_NAME]
        self._mirrored = tools.mirrored.get(name)
        self.tools = tools

    def params(self, call: Call) -> Object | Steps:
        """The params of one call for the server, or the steps that make them (`ToolCalls.checked`).

        Raises:
            Refused, InvalidArguments: the arguments are not what headers or the schema say, or blocked.
        """
        exchange, decision = call.exchange, self._decision
        if self._mirrored is not None and call.check_mirrored is not None:
            call.check_mirrored(self._mirrored)
        exchange.calls_tool(self._name, decision.slow_s)
        if self._audit.calls:
            exchange.audit(self._audit.call_watcher(self._session, f"{decision.server}/{self._name}"))
        return self._calls.checked(decision, self.tools, self._session, call.params, exchange.note)
