"""Apply the policy to tools: which tools a session sees, and which arguments their calls may have."""

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec
from cachetools import LRUCache

from gateway.config.policy import PolicySettings
from gateway.context.session_facts import SessionFacts
from gateway.errors import invalid_arguments, malformed_arguments, unknown_tool, unusable_tool
from gateway.observability.audit import Audit
from gateway.policy.access_policy import Decision, Policy
from gateway.policy.blocked_arguments import TooMuchText, contains
from gateway.policy.unapproved_items import UnapprovedItems
from gateway.protocol.input_schemas import HELD_BYTES, Schema, Schemas, UnusableSchema
from gateway.protocol.item_digests import digests_of
from gateway.protocol.merged_lists import Tools, arguments_of, is_mirrored, operation_of
from session_store import Context, Session
from session_store.redaction import scrubbed
from session_store.session import redact
from transports.jsonrpc import Object, decode_exact, encode
from transports.mirrored_headers import annotation_fault

logger = logging.getLogger(__name__)

MAX_LOGGED_NAME: Final = 128
"""Maximum number of characters of a tool's name that are logged."""
_MOST_WARNED: Final = 10_000

_MAX_SHOWN: Final = 64
"""Maximum number of characters of an argument that are logged."""
_MAX_SCRUBBED: Final = 4_096
"""Maximum number of characters of an argument that are searched for credentials before it is cut."""

Steps = Generator[None, None, Object]

Note = Callable[[str, str], None]
"""A function that adds an attribute, name and value, to the span of a call."""

_UNLISTED: Final = Decision(allowed=False, reason="the server does not list it")


class ToolPolicy:
    """Apply the policy to the tools of servers: which tools a session sees, which it may call, and with which
    arguments."""

    def __init__(
        self,
        policy: Policy,
        audit: Audit,
        schemas: Schemas,
        settings: PolicySettings,
        facts: SessionFacts,
        unapproved: UnapprovedItems | None = None,
    ) -> None:
        self._policy = policy
        self.unapproved = unapproved or UnapprovedItems(policy, audit, Counter())
        self._audit = audit
        self._schemas = schemas
        self._facts = facts
        self.replace(settings)
        # (server, tool, digest of its schema) that were logged: the same tool is in the lists of many sessions.
        self._warned: LRUCache[tuple[str, str, bytes], None] = LRUCache(_MOST_WARNED)

    def replace(self, settings: PolicySettings) -> None:
        """Check arguments and schemas by these settings from now on."""
        self._checks = settings.check_arguments

    def shown(
        self,
        server: str,
        context: Context,
        tools: list[dict[str, Any]],
        absent: Callable[[list[dict[str, Any]]], frozenset[str]] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the tools of a server that sessions with this context may call. The returned schemas do not require
        the arguments that the policy fills in (`bind`). `absent` gets the same tools, as the server lists them, and
        returns the names of tools to leave out."""
        unusable = self.unusable(server, tools) if self._checks else {}
        seen: list[tuple[dict[str, Any], Decision]] = []
        for tool in self.approved(server, "tools", tools):
            decision = self._policy.decide_approved(context, server, tool["name"], operation_of(tool))
            if decision.allowed and tool["name"] not in unusable:
                seen.append((tool, decision))
        left_out = frozenset[str]() if absent is None else absent([tool for tool, _ in seen])
        return [_unbound(tool, decision) for tool, decision in seen if tool["name"] not in left_out]

    def approved(self, server: str, kind: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the items that the lock file approves, and tell operators of the others. `kind` is one of
        `gateway.config.tools_lock.KINDS`."""
        if not self._policy.locks(server):
            return items
        digests = zip(items, digests_of(items), strict=True)
        return [item for item, digest in digests if not self.unapproved.is_hidden(server, kind, item, digest)]

    def unusable(self, server: str, tools: list[dict[str, Any]]) -> dict[str, str]:
        """Return those of these tools whose input schemas cannot be used, each name with the reason. Each of them is
        logged once."""
        faults, held = {}, 0
        for tool in tools:
            schema = Schema.of(tool.get("inputSchema"))
            try:
                if held > HELD_BYTES // 2:
                    raise UnusableSchema("the schemas before it are too large together")
                held += 0 if schema is None else self._schemas.checker(schema).held
                # MCP clients on HTTP must leave out tools whose header annotations are invalid. To this server, the
                # gateway is such a client.
                if is_mirrored(schema) and self._policy.is_remote(server):
                    if fault_of_header := annotation_fault(tool["inputSchema"]):
                        raise UnusableSchema(fault_of_header)
            except UnusableSchema as fault:
                name = tool["name"]
                faults[name] = str(fault)
                key = (server, name, b"" if schema is None else schema.digest)
                if key not in self._warned:
                    self._warned[key] = None
                    logger.warning("the input schema of tool %s/%s is invalid: %s", server, name, fault)
        return faults

    def unchecked(self, tools: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
        """Return, by the tool's name, the regular expressions in input schemas that the gateway does not check. Tools
        without such expressions are left out."""
        found: dict[str, tuple[str, ...]] = {}
        for tool in tools:
            schema = Schema.of(tool.get("inputSchema"))
            with contextlib.suppress(UnusableSchema):
                if schema is not None and (patterns := self._schemas.checker(schema).unchecked):
                    found[tool["name"]] = patterns
        return found

    def decide(self, server: str, tools: Tools, context: Context, session: Session, name: str) -> Decision:
        """Return the policy's decision on an allowed call of a tool. `context` is the request's, and may differ from
        the session's.

        Raises:
            Refused: the tool does not exist, or is hidden from the session.
        """
        is_listed = name in tools
        # If the policy names tools, an unlisted name is unknown. Otherwise the decision is the same for all names.
        decision = self._policy.decide_listed(context, server, tools, name)
        if decision.allowed and not is_listed and "tools" in self._policy.restricts(server):
            decision = _UNLISTED
        if not decision.allowed:
            tool = f"{server}/{name[:MAX_LOGGED_NAME]}"
            raise self._audit.refused(unknown_tool(name), session, why=decision.reason, tool=tool)
        return decision

    def checked(self, decision: Decision, tools: Tools, session: Session, params: Object, note: Note) -> Object | Steps:
        """Check the arguments of a call, and fill in bound arguments. Return the params for the server, or a generator
        that computes them in steps (`transports.work_steps`). `session` must have the context of the request
        (`gateway.context.session_facts.with_context`), because its fields fill bound arguments. `note` is called with
        attributes for the call's span.

        Raises:
            InvalidArguments: the arguments are invalid or blocked.
            Refused: the arguments are not an object, or the tool's schema is unusable.
        """
        if not (decision.bind or decision.blocked or self._checks):
            return params
        return self._steps(decision, tools, session, params, note)

    def checker_of(self, decision: Decision, tools: Tools, session: Session) -> Callable[[bytes], bytes]:
        """Return a function that checks the arguments of small calls of one tool on the fast path (calls that repeat an
        earlier one). The function gets their JSON, and returns the JSON for the server, in one line.

        The function raises `InvalidArguments`, `ValueError` or `msgspec.MsgspecError` for every call that `checked`
        refuses. It also raises for arguments that the call's span must note, and for numbers that are too large for a
        float."""
        if not (decision.bind or decision.blocked or self._checks):
            return _one_value
        bound = [
            (name, self._facts.value(session, field))
            for name, field in decision.bind
            if tools.takes(decision.tool, name)
        ]
        schema, problem = tools.schemas.get(decision.tool), None
        with contextlib.suppress(UnusableSchema):
            problem = None if schema is None else self._schemas.checker(schema).problem
        check = functools.partial(self._check, schema, decision.tool)
        blocked, is_checked, lenient = decision.blocked, bool(self._checks), self._checks == "lenient"

        def again(given: bytes) -> bytes:
            arguments = msgspec.json.decode(given)
            if bound:
                _fill_in(arguments, bound)
            seen = encode(arguments)
            if blocked and contains(arguments, blocked):
                raise ValueError("blocked")
            if is_checked and (problem is None or problem(arguments, seen, lenient=lenient) is not None):
                check(arguments, seen)  # raises the violation
            return seen

        return again

    def _steps(self, decision: Decision, tools: Tools, session: Session, params: Object, note: Note) -> Steps:
        raw = params.get("arguments", msgspec.Raw(b"{}"))
        try:
            arguments, holds = msgspec.json.decode(raw), True
        except (msgspec.ValidationError, RecursionError):
            # The server gets a number that no float holds as it is. What is nested too deeply is refused.
            arguments, holds = decode_exact(raw), False
        yield
        if decision.bind:
            arguments = self._bound(decision, tools, session, arguments, note)
        # The server gets what was checked, encoded again: if a key occurs twice, it might read the other value.
        seen = encode(arguments)
        yield
        if seen != bytes(raw):
            params = params | {"arguments": msgspec.Raw(seen)}
        yield
        if decision.blocked:
            if not holds:
                problem = "they cannot be checked: a number is too large"
                raise invalid_arguments(decision.tool, "arguments", problem, "blocked")
            try:
                found = contains(arguments, decision.blocked)
            except TooMuchText as error:
                raise invalid_arguments(
                    decision.tool, "arguments", f"they cannot be checked: {error}", "blocked"
                ) from None
            if found:
                raise invalid_arguments(
                    decision.tool, "arguments", "they contain text that is blocked for this tool", "blocked"
                )
            yield
        if self._checks:
            arguments = arguments if holds else decode_exact(seen, bounded=True)
            self._check(tools.schemas.get(decision.tool), decision.tool, arguments, seen)
        return params

    def _bound(self, decision: Decision, tools: Tools, session: Session, arguments: Any, note: Note) -> Any:
        """Fill in the arguments that the policy binds to facts of the session and that the client has left out. Return
        the arguments. Arguments that the tool's schema does not have are not filled in, because a pattern may match
        several tools. If the client has sent another value than the session's, `note` is called, and the client's value
        stays."""
        bind = [(name, field) for name, field in decision.bind if tools.takes(decision.tool, name)]
        if bind and not isinstance(arguments, dict):
            raise malformed_arguments()
        for name, field in bind:
            given, value = arguments.get(name), self._facts.value(session, field)
            if _is_left_out(given):
                if not value:
                    problem = f"it is missing, and the session has no {field}"
                    raise invalid_arguments(decision.tool, f"arguments.{name}", problem, "missing")
                arguments[name] = value
            elif value and given != value:
                what = f"argument {name} is {_shown(name, given)}, the session's {field} is {_shown(field, value)}"
                note("mcp_gateway.argument_differs", what)
                where = {"server": decision.server, "tool": decision.tool[:MAX_LOGGED_NAME]}
                logger.info("%s", what, extra={"session": redact(session.id), **where})
        return arguments

    def _check(self, schema: Schema | None, name: str, arguments: Any, raw: bytes) -> None:
        if schema is None:
            return
        try:
            checker = self._schemas.checker(schema)
        except UnusableSchema as fault:
            raise unusable_tool(name, str(fault)) from None
        problem = checker.problem(arguments, raw, lenient=self._checks == "lenient")
        if problem is not None:
            raise invalid_arguments(name, *problem) if isinstance(arguments, dict) else malformed_arguments()


def _one_value(given: bytes) -> bytes:
    """Return the arguments unchanged. Used for a tool whose arguments are not checked. Raises `ValueError` or
    `msgspec.MsgspecError` for invalid JSON, more than one JSON value, or line breaks, which a message to a server must
    not have."""
    given.decode()
    value = bytes(msgspec.json.decode(given, type=msgspec.Raw))
    if b"\n" in value or b"\r" in value:
        raise ValueError("line breaks")
    return value


def _is_left_out(given: Any) -> bool:
    """Return True if the client has left an argument out. A null or a blank text counts as left out, because models
    write these."""
    return given is None or (isinstance(given, str) and not given.strip())


def _fill_in(arguments: Any, bound: list[tuple[str, str]]) -> None:
    """Set the bound arguments in `arguments`. `bound`: pairs of an argument and its value from the session. Raises
    `ValueError` if the call has to go the general way (`checked`), which refuses or logs it: a value is missing, or the
    client's value differs from the session's."""
    if not isinstance(arguments, dict):
        raise ValueError("no object")
    for name, value in bound:
        is_given = not _is_left_out(given := arguments.get(name))
        if not (value or is_given) or (value and is_given and given != value):
            raise ValueError(name)
        if value:
            arguments[name] = value


def _unbound(tool: dict[str, Any], decision: Decision) -> dict[str, Any]:
    """Return a copy of a tool whose schema does not require the arguments that the policy fills in."""
    schema = tool.get("inputSchema")
    bound = {name for name, _ in decision.bind} & arguments_of(tool).keys()
    if not bound or not isinstance(schema, dict) or not isinstance(schema.get("required"), list):
        return tool
    required = [name for name in schema["required"] if name not in bound]
    others = {key: value for key, value in schema.items() if key != "required"}
    return tool | {"inputSchema": others | ({"required": required} if required else {})}


def _shown(name: str, value: Any) -> str:
    """Return the value of the argument or field `name` for a log line: cut, and without text that looks like a
    credential."""
    text = value if isinstance(value, str) else str(value)
    return repr((scrubbed({name: text[:_MAX_SCRUBBED]})[name] or "")[:_MAX_SHOWN])
