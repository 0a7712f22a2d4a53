"""Open, find and close child sessions: several sessions of one client at one server, named by handles (the pattern of
SEP-2567).

The server needs no support for handles. With the setting `handles`, its tools take an optional argument `session`, and
two added tools open and close child sessions. A handle names a child of the session of the call, or of any session of
the same principal. Handles of other principals are unknown.
"""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.calls.client_request import Call
from gateway.calls.exchange import Exchange
from gateway.errors import session_unknown, too_many_handles, unknown_handle
from gateway.protocol.merged_lists import Tools, arguments_of
from gateway.protocol.params import text_of
from gateway.protocol.result_translation import tool_result
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.sessions.session_attaching import SessionAttacher
from session_store import Session
from session_store.session import new_session_id
from transports.era import Era
from transports.jsonrpc import Message, Object, decode_object, encode

ARGUMENT: Final = "session"
OPEN, CLOSE = "open_session", "close_session"
MAX_CHILDREN: Final = 32
_PREFIX: Final = "hs-"
_SCHEMA: Final = {"type": "string", "description": f"Which session to work in, as {OPEN} gave it. Yours, if left out."}
_TOOLS: Final[list[dict[str, Any]]] = [
    {
        "name": OPEN,
        "description": f"Open a session of its own at this server. Give the answer to its tools as `{ARGUMENT}`.",
        "inputSchema": {"type": "object", "properties": {}},
        "outputSchema": {"type": "object", "properties": {ARGUMENT: {"type": "string"}}, "required": [ARGUMENT]},
    },
    {
        "name": CLOSE,
        "description": f"End a session that {OPEN} has opened, with everything in it.",
        "inputSchema": {"type": "object", "properties": {ARGUMENT: {"type": "string"}}, "required": [ARGUMENT]},
        "annotations": {"idempotentHint": True},
    },
]


def with_handles(tools: list[Any]) -> list[Any]:
    """Return a server's list of tools for clients: each tool has the argument `session` added, and `open_session` and
    `close_session` stand at the end. A tool that already has an argument `session` stays as it is."""
    return [*map(_with_argument, tools), *_TOOLS]


def _with_argument(tool: dict[str, Any]) -> dict[str, Any]:
    schema, properties = tool.get("inputSchema") or {"type": "object"}, arguments_of(tool)
    if ARGUMENT in properties or not isinstance(schema, dict):
        return tool
    return tool | {"inputSchema": schema | {"properties": {**properties, ARGUMENT: _SCHEMA}}}


@dataclass(eq=False, repr=False, kw_only=True)
class ChildSessions:
    """Let a client keep several sessions apart through one connection. Answer calls of `open_session` and
    `close_session`, and move any other call into the child session that its argument `session` names."""

    lifecycle: SessionLifecycle
    attacher: SessionAttacher
    clock: Callable[[], float]

    async def handle(self, call: Call, tools: Tools) -> Object | None:
        """Move a tool call into the child session that its argument `session` names, and return the params for the
        server. Leave a call without that argument in its own session, and return its params unchanged. Answer a call of
        `open_session` or `close_session` here, and return None. `tools` is the server's list of tools.

        Raises:
            InvalidArguments: the handle names no session of this principal.
            OwnedByPeer: another replica owns the child session.
        """
        exchange, era, params = call.exchange, call.era, call.params
        live = exchange.live
        if live is None or exchange.method != "tools/call":
            return params
        name = text_of(params, "name")
        arguments = decode_object(params.get("arguments", msgspec.Raw(b"{}")), "arguments")
        if name == OPEN:
            _answer(exchange, era, {ARGUMENT: await self._open(live.session)})
            return None
        if name != CLOSE and (ARGUMENT not in arguments or tools.takes(name, ARGUMENT)):
            return params
        given = msgspec.json.decode(arguments.get(ARGUMENT, b"null"))
        if not isinstance(given, str):
            raise unknown_handle(name, given)
        if name == CLOSE:
            _answer(exchange, era, {"closed": await self._close(live.session, given)})
            return None
        found = (
            await self.lifecycle.store.resume_alias(_alias(live.session, given)) if given.startswith(_PREFIX) else None
        )
        if found is None:
            raise unknown_handle(name, given)
        if found.id != live.session.id:  # else the call was forwarded here, to the owner of the child
            exchange.move_to((await self.attacher.attach(found, exchange.granted)).live)
        rest = {key: value for key, value in arguments.items() if key != ARGUMENT}
        return params | {"arguments": msgspec.Raw(encode(rest))}

    async def _open(self, within: Session) -> str:
        # A child session opens its siblings: one limit holds for all children of a parent. Read from the store: the
        # cached record may be older than the last handle that was opened or closed.
        parent = await self.lifecycle.store.peek(within.parent or within.id)
        if parent is None:
            raise session_unknown()
        if len(parent.children) >= MAX_CHILDREN:
            raise too_many_handles(MAX_CHILDREN)
        handle, now = _PREFIX + secrets.token_hex(6), self.clock()
        child = msgspec.structs.replace(
            parent,
            id=new_session_id(),
            created_at=now,
            used_at=now,
            confirmed=True,
            links=(),
            remote=(),
            children=(),
            subscriptions=(),
            parent=parent.id,
            version=0,
        )
        child = await self.lifecycle.create(child, _alias(parent, handle))
        self.lifecycle.created(child, reason="opened with open_session")
        grown = await self.lifecycle.store.change_set(parent.id, "children", add=child.id)
        if grown is None or len(grown.children) > MAX_CHILDREN:  # the parent has ended, or others were opened meanwhile
            await self._close(parent, handle)
            raise session_unknown() if grown is None else too_many_handles(MAX_CHILDREN)
        return handle

    async def _close(self, parent: Session, handle: str) -> bool:
        found = await self.lifecycle.store.named(_alias(parent, handle))
        if found is None:
            return False
        await self.lifecycle.store.change_set(found.parent, "children", remove=found.id)
        return await self.lifecycle.end(found.id, "its handle was closed")


def _alias(within: Session, handle: str) -> str:
    """Return the alias under which the store finds the child session that `handle` names. `within` is the session of
    the call. An authenticated principal can use its handles in all its sessions; an anonymous client only in the
    session in which it opened the child."""
    principal = within.principal
    whose = [within.parent or within.id] if principal.is_anonymous else [principal.issuer, principal.subject]
    return json.dumps(["handle", *whose, handle])


def _answer(exchange: Exchange, era: Era, content: dict[str, Any]) -> None:
    result = tool_result(era, str(next(iter(content.values()))), content)
    exchange.finish_translated(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(result)))
