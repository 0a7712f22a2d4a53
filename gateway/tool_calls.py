"""What holds for tools and their calls: which are there, what their arguments may be, and what is put into them."""

import logging
from typing import Any, Final

import jsonschema_rs
import msgspec

from gateway.audit import Audit
from gateway.context import fact_of
from gateway.errors import invalid_arguments, unknown_tool
from gateway.exchange import Exchange
from gateway.params import text_of
from gateway.policy import Decision, Policy
from session_store import Context, Session
from session_store.session import redact
from transports.jsonrpc import Object, decode_object, encode

__all__ = ["ToolCalls", "Tools"]

logger = logging.getLogger(__name__)

_MOST_WORDS: Final = 300
_MOST_NAME: Final = 128


class Tools:
    """The tools of one server, as it has listed them, and what checks their arguments."""

    def __init__(self, listed: list[Any]) -> None:
        self.listed = [tool for tool in listed if "name" in tool]
        self.schemas: dict[str, Any] = {tool["name"]: tool.get("inputSchema") for tool in self.listed}
        self._validators: dict[str, Any] = {}

    def problem(self, tool: str, arguments: Any) -> tuple[str, str] | None:
        """Where arguments are not what the tool's schema says, and how; None when they are, or it is not known."""
        if tool not in self._validators:
            self._validators[tool] = _validator(self.schemas.get(tool), tool)
        validator = self._validators[tool]
        if validator is None or validator.is_valid(arguments):
            return None
        error = next(iter(validator.iter_errors(arguments)))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        return f"arguments{path}", str(error.message)[:_MOST_WORDS]


def _validator(schema: Any, tool: str) -> Any:
    if not isinstance(schema, dict):
        return None
    try:
        # What a schema refers to is not fetched: a server must not make us call others.
        return jsonschema_rs.validator_for(schema)
    except Exception as error:
        logger.warning("the input schema of tool %s cannot be used: %s", tool, str(error)[:200])
        return None


class ToolCalls:
    """Applies the policy to the tools of servers."""

    def __init__(self, policy: Policy, audit: Audit, *, check_arguments: bool) -> None:
        self._policy = policy
        self._audit = audit
        self.checks = check_arguments

    def shown(self, server: str, context: Context, tools: list[Any]) -> list[Any]:
        """A list of tools as that context sees it: without those it may not call, and without arguments that are bound
        among the required ones."""
        if self._policy.is_open:
            return tools
        seen = []
        for tool in tools:
            decision = self._policy.decide(context, server, str(tool.get("name")))
            if decision.allowed:
                seen.append(_unbound(tool, decision))
        return seen

    def checked(self, server: str, tools: Tools, exchange: Exchange, params: Object) -> Object:
        """A call's params as the server is to see them; the exchange learns when it is slow.

        Raises:
            Refused: no such tool, as far as this session goes; or its arguments are not good.
        """
        assert exchange.live is not None
        session, name = exchange.live.session, text_of(params, "name")
        decision = self._policy.decide(session.context, server, name)
        if not decision.allowed:
            self._audit.tell("refused", session=session, reason=decision.reason, tool=f"{server}/{name[:_MOST_NAME]}")
            raise unknown_tool(name)
        exchange.tool, exchange.slow_s = name[:_MOST_NAME], decision.slow_s
        if self._audit.calls:
            self._audit.watch(exchange, server, name[:_MOST_NAME])
        raw = params.get("arguments", msgspec.Raw(b"{}"))
        if decision.bind:
            raw = _bound(name, decision, session, raw)
            params = params | {"arguments": raw}
        for word in decision.blocked:
            if word.search(bytes(raw).decode("utf-8", "replace")):
                raise invalid_arguments(name, "arguments", "they contain what is blocked for this tool")
        if self.checks:
            problem = tools.problem(name, msgspec.json.decode(raw))
            if problem is not None:
                raise invalid_arguments(name, *problem)
        return params


def _unbound(tool: dict[str, Any], decision: Decision) -> dict[str, Any]:
    """A tool whose bound arguments need not be given."""
    schema = tool.get("inputSchema")
    bound = {name for name, _ in decision.bind}
    if not bound or not isinstance(schema, dict) or not isinstance(schema.get("required"), list):
        return tool
    return tool | {"inputSchema": schema | {"required": [name for name in schema["required"] if name not in bound]}}


def _bound(tool: str, decision: Decision, session: Session, raw: msgspec.Raw) -> msgspec.Raw:
    """Arguments with the context's values where the client gave none; what it gave stands."""
    arguments = decode_object(raw, "arguments")
    is_bound = False
    for name, field in decision.bind:
        given, fact = bytes(arguments.get(name, b"null")), fact_of(session, field)
        if given in (b"null", b'""'):
            if not fact:
                raise invalid_arguments(tool, f"arguments.{name}", f"it is missing, and the session has no {field}")
            arguments[name] = msgspec.Raw(encode(fact))
            is_bound = True
        elif msgspec.json.decode(given) != fact:
            logger.info("an argument differs from the session's %s", field, extra={"session": redact(session.id)})
    return msgspec.Raw(encode(arguments)) if is_bound else raw
