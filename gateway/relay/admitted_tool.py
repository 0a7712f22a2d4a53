"""A tool that policy lets a session call, and what each of its calls has to meet."""

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.calls.call import Call
from gateway.calls.exchange import Exchange
from gateway.observability.audit import Audit
from gateway.observability.outcome import EndedCall
from gateway.policy.decisions import Decision
from gateway.policy.tool_calls import MAX_LOGGED_NAME, Steps, ToolCalls
from gateway.protocol.listing import Tools
from session_store import Session
from transports.jsonrpc import Object

__all__ = ["AdmittedTool"]


class AdmittedTool:
    """The decision about one tool of one server, for a session with that record and context. `tools` are those that
    the server lists: it holds as long as they and the record are the same."""

    __slots__ = (
        "_audit",
        "_calls",
        "_decision",
        "_mirrored",
        "_session",
        "is_audited",
        "is_listed",
        "name",
        "slow_s",
        "tools",
    )

    def __init__(
        self, calls: ToolCalls, audit: Audit, decision: Decision, tools: Tools, session: Session, name: str
    ) -> None:
        self._calls = calls
        self._audit = audit
        self._decision = decision
        self._session = session
        self.name = name[:MAX_LOGGED_NAME]
        """As logs have it."""
        self.slow_s = decision.slow_s
        self.is_audited = audit.calls
        self.is_listed = name in tools
        self._mirrored = tools.mirrored.get(name)
        self.tools = tools

    def params(self, call: Call) -> Object | Steps:
        """The params of one call for the server, or the steps that make them (`ToolCalls.checked`).

        Raises:
            Refused, InvalidArguments: the arguments are not what headers or the schema say, or blocked.
        """
        exchange, decision = call.exchange, self._decision
        if self._mirrored is not None and call.check_mirrored is not None:
            call.check_mirrored(self._mirrored, call.params)
        self.begins(exchange)
        return self._calls.checked(decision, self.tools, self._session, call.params, exchange.note)

    def begins(self, exchange: Exchange) -> None:
        """Note in its exchange that a call of the tool begins."""
        exchange.calls_tool(self.name, self.slow_s)
        if not self.is_listed:
            exchange.calls_unlisted()
        if self._audit.calls:
            tool = f"{self._decision.server}/{self.name}"
            exchange.audit(self._audit.call_watcher(self._session, tool, exchange.began))

    def ended(self, call: EndedCall) -> None:
        """Record a call of the tool in the audit trail, if `is_audited`, that took the fast path."""
        tool = f"{self._decision.server}/{self.name}"
        self._audit.called(self._session, tool, call.outcome, call.took_s, call.correlation)

    def checker(self, check_mirrored: Callable[[Any, Object], None] | None) -> Callable[[bytes], bytes]:
        """Return what checks the arguments of further calls (`ToolCalls.checker_of`), and compares them with the
        headers of these calls (`Request.check_mirrored`)."""
        check, mirrored = self._calls.checker_of(self._decision, self.tools, self._session), self._mirrored
        if mirrored is None or check_mirrored is None:
            return check

        def compared(given: bytes) -> bytes:
            check_mirrored(mirrored, {"arguments": msgspec.Raw(given)})
            return check(given)

        return compared
