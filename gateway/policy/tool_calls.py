"""What holds for tools and their calls: which are there, what their arguments may be, and what is put into them."""

import contextlib
import logging
from collections.abc import Generator
from typing import Any, Final

import msgspec
from cachetools import LRUCache

from gateway.config.policy import PolicySettings
from gateway.context.facts import fact_of
from gateway.errors import invalid_arguments, unknown_tool, unusable_tool
from gateway.observability.audit import Audit
from gateway.policy.blocked_arguments import TooMuchText, contains
from gateway.policy.decisions import Decision, Policy
from gateway.protocol.listing import Tools
from gateway.protocol.schemas import HELD_BYTES, Schema, Schemas, UnusableSchema
from session_store import Context, Session
from session_store.session import redact
from transports.jsonrpc import Object, encode

__all__ = ["MAX_LOGGED_NAME", "Steps", "ToolCalls"]

logger = logging.getLogger(__name__)

MAX_LOGGED_NAME: Final = 128
"""Characters of a tool's name in logs."""
_MOST_WARNED: Final = 10_000

Steps = Generator[None, None, Object]

_UNLISTED: Final = Decision(allowed=False, reason="the server does not list it")


class ToolCalls:
    """Applies the policy to the tools of servers."""

    def __init__(self, policy: Policy, audit: Audit, schemas: Schemas, settings: PolicySettings) -> None:
        self._policy = policy
        self._audit = audit
        self._schemas = schemas
        self._checks = settings.check_arguments
        self._refuses_unusable = settings.check_arguments and settings.unusable_schemas == "refuse"
        # Servers, tools and digests of schemas of which the log has a warning: every list of every session has them.
        self._warned: LRUCache[tuple[str, str, bytes], None] = LRUCache(_MOST_WARNED)

    def shown(self, server: str, context: Context, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A list of tools as that context sees it: without those it may not call, and without arguments that are bound
        among the required ones."""
        unusable = self.unusable(server, tools) if self._refuses_unusable else {}
        seen = []
        for tool in tools:
            decision = self._policy.decide(context, server, tool["name"])
            if decision.allowed and tool["name"] not in unusable:
                seen.append(_unbound(tool, decision))
        return seen

    def unusable(self, server: str, tools: list[dict[str, Any]]) -> dict[str, str]:
        """Tools by whose schemas no arguments can be checked; why. The log has a warning for each of them, once."""
        faults, held = {}, 0
        for tool in tools:
            schema = Schema.of(tool.get("inputSchema"))
            try:
                if held > HELD_BYTES // 2:
                    raise UnusableSchema("the schemas before it are too large together")
                held += 0 if schema is None else self._schemas.checker(schema).held
            except UnusableSchema as fault:
                faults[tool["name"]] = str(fault)
                self._warn(server, tool["name"], schema, fault)
        return faults

    def _warn(self, server: str, tool: str, schema: Schema | None, fault: UnusableSchema) -> None:
        key = (server, tool, b"" if schema is None else schema.digest)
        if key not in self._warned:
            self._warned[key] = None
            logger.warning("the input schema of tool %s/%s is invalid: %s", server, tool, fault)

    def unchecked(self, tools: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
        """Tools whose schemas have patterns that no arguments are checked by, and those patterns."""
        found: dict[str, tuple[str, ...]] = {}
        for tool in tools:
            schema = Schema.of(tool.get("inputSchema"))
            with contextlib.suppress(UnusableSchema):
                if schema is not None and (patterns := self._schemas.checker(schema).unchecked):
                    found[tool["name"]] = patterns
        return found

    def decide(self, server: str, tools: Tools, context: Context, session: Session, name: str) -> Decision:
        """What holds for a call of that tool. `context` is that of the request, which may differ from the session's.

        Raises:
            Refused: no such tool, as far as this session goes.
        """
        is_listed = name in tools
        # Where names matter, one that is not listed is not there; elsewhere the decision is the same for all.
        decision = self._policy.decide(context, server, name if is_listed else "")
        if decision.allowed and not is_listed and "tools" in self._policy.restricts(server):
            decision = _UNLISTED
        if not decision.allowed:
            tool = f"{server}/{name[:MAX_LOGGED_NAME]}"
            self._audit.tell("refused", session=session, reason=decision.reason, tool=tool)
            raise unknown_tool(name)
        return decision

    def checked(self, decision: Decision, tools: Tools, session: Session, name: str, params: Object) -> Object | Steps:
        """A call's params as the server is to see them; or the steps that make them (`transports.turns`), for arguments
        may be large.

        Raises:
            Refused: the arguments are not good.
        """
        if not (decision.bind or decision.blocked or self._checks):
            return params
        return self._steps(decision, tools, session, name, params)

    def _steps(self, decision: Decision, tools: Tools, session: Session, name: str, params: Object) -> Steps:
        raw = params.get("arguments", msgspec.Raw(b"{}"))
        arguments = msgspec.json.decode(raw)
        yield
        if decision.bind:
            arguments = _bound(name, decision, session, arguments)
        # What is written anew is what was looked at: of a key that stands twice, servers may read the other one.
        seen = encode(arguments)
        yield
        if seen != bytes(raw):
            params = params | {"arguments": msgspec.Raw(seen)}
        yield
        if decision.blocked:
            _refuse_blocked(name, decision, arguments)
            yield
        if self._checks:
            self._check(tools.schemas.get(name), name, arguments, seen)
        return params

    def _check(self, schema: Schema | None, name: str, arguments: Any, raw: bytes) -> None:
        if schema is None:
            return
        try:
            checker = self._schemas.checker(schema)
        except UnusableSchema as fault:
            if self._refuses_unusable:
                raise unusable_tool(name, str(fault)) from None
            return
        problem = checker.problem(arguments, raw)
        if problem is not None:
            raise invalid_arguments(name, *problem)


def _unbound(tool: dict[str, Any], decision: Decision) -> dict[str, Any]:
    """A tool whose bound arguments need not be given."""
    schema = tool.get("inputSchema")
    bound = {name for name, _ in decision.bind}
    if not bound or not isinstance(schema, dict) or not isinstance(schema.get("required"), list):
        return tool
    return tool | {"inputSchema": schema | {"required": [name for name in schema["required"] if name not in bound]}}


def _refuse_blocked(tool: str, decision: Decision, arguments: Any) -> None:
    try:
        found = contains(arguments, decision.blocked)
    except TooMuchText as error:
        raise invalid_arguments(tool, "arguments", f"they cannot be checked: {error}") from None
    if found:
        raise invalid_arguments(tool, "arguments", "they contain text that is blocked for this tool")


def _bound(tool: str, decision: Decision, session: Session, arguments: Any) -> dict[str, Any]:
    """Arguments with the context's values where the client gave none; what it gave stands."""
    if not isinstance(arguments, dict):
        raise invalid_arguments(tool, "arguments", "they must be an object")
    for name, field in decision.bind:
        given, fact = arguments.get(name), fact_of(session, field)
        if given is None or given == "":
            if not fact:
                raise invalid_arguments(tool, f"arguments.{name}", f"it is missing, and the session has no {field}")
            arguments[name] = fact
        elif given != fact:
            logger.info("an argument differs from the session's %s", field, extra={"session": redact(session.id)})
    return arguments
