"""Call tools for operators, in a new session or in a live one (docs/adr/0033-tried-calls.md).

Such a call takes the same steps as a client's call: policy, limits, checks of arguments, audit, sandbox, and forwarding
to the replica that owns the session.
"""

import asyncio
import contextlib
import contextvars
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec
from starlette.requests import Request

from gateway.admin.query_types import NoSuch, OperatorError, has_words
from gateway.admin.report_types import Approval, Attempt, CatalogPage, ToolRow, TriedCall, TriedOutcome, UnapprovedRow
from gateway.admin.session_list import SessionFinder
from gateway.config.auth import OPERATOR_ISSUER
from gateway.config.endpoint_paths import ALL, path_of
from gateway.identity.authenticate import Authenticated
from gateway.identity.credential_claims import CredentialClaims
from gateway.observability.escaped_text import revealed
from gateway.observability.logs import CORRELATION
from gateway.policy.unapproved_items import Unapproved, UnapprovedItems
from gateway.protocol.extensions import SPEC
from gateway.protocol.item_digests import digest_of
from gateway.protocol.merged_lists import operation_of, with_public_name
from gateway.sessions.client_chosen_keys import KEY_META, key_alias
from gateway.sessions.token_carriers import GATEWAY_HEADER, LEGACY_HEADER, NEW
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.lock_comparison import Unlockable, approve, item_difference
from gateway.version import __version__
from session_store import Principal, Session, StoreUnavailable
from session_store.session import redact
from transports.era import LEGACY, MODERN, MODERN_VERSIONS, VERSION_KEY, Era
from transports.inbound.http_requests_and_responses import read_body
from transports.inbound.in_process_client import InProcessClient, Reply
from transports.inbound.modern_request_checks import VERSION_HEADER
from transports.inbound.post_parsing import VOUCHED_FOR
from transports.inbound_port import Refused
from transports.jsonrpc import METHOD_NOT_FOUND, UNREADABLE, Object, decode_exact, encode
from transports.mirrored_headers import argument_headers, encode_value

PATIENCE_S: Final = 60.0
"""Seconds after which a tried call is cancelled. An operator's page waits for the call."""

_CANCELLED_S: Final = 1.0
"""Seconds to wait for the end of a cancelled call."""

MOST_BYTES: Final = 4 << 20
"""The largest answer that is shown, in bytes."""

_MOST_PARTS: Final = 200_000
"""The most commas and opening brackets in an answer that is decoded. A few megabytes can hold a million empty lists."""

_MOST_LINES: Final = 2_000
"""The most lines of a difference that are shown."""

_MOST_MESSAGES: Final = 50
_MOST_CHARS: Final = 500
_MOST_NAME: Final = 256
_MOST_AT_ONCE: Final = 4
"""The most concurrent calls of one operator on one replica."""

SessionScope = Literal["any", "own", "off"]
"""The sessions that an operator may use: any, only those that the operator has opened, or none."""

Left = Callable[[], Awaitable[object]]
"""A function that waits until the operator's browser or command has disconnected."""

CLIENT: Final = "mcp-session-gateway-console"
_DECLINED: Final = "An operator tries this tool from the console, where nobody answers questions."
MAX_BYTES: Final = 1 << 20
"""The largest body of a request that tries a call, in bytes."""


class ToolCatalog:
    """List the tools of all servers for operators, and approve items that the lock file hides. The tools are those that
    the gateway's probes have read, so no request is sent to a server. `upstreams`: the servers; a reload changes this
    sequence in place. `unapproved`: the hidden items; None: there are none."""

    def __init__(self, upstreams: Sequence[ConfiguredUpstream], unapproved: UnapprovedItems | None = None) -> None:
        self._upstreams = upstreams
        self._unapproved = unapproved
        self._turn = asyncio.Lock()

    def page(self, query: str = "", *, server: str = "", limit: int = 100) -> CatalogPage:
        """Return a page of the tools whose server, name, title or description has all words of `query` (empty: all
        tools). `server`: the tools of this server only; empty: of all servers. `limit`: the most tools on the page."""
        found: list[ToolRow] = []
        unknown: list[str] = []
        for upstream in self._upstreams:
            if server not in ("", upstream.name):
                continue
            tools = upstream.probed_tools
            if tools is None:
                unknown.append(upstream.name)
            else:
                rows = (_row(upstream.name, tool) for tool in tools.listed)
                found += [r for r in rows if has_words(query, (r.server, r.name, r.title, r.description))]
        return CatalogPage(tools=found[:limit], total=len(found), unknown=unknown)

    def tool(self, server: str, name: str) -> ToolRow:
        """Return one tool. Raises `NoSuch`: there is no such server, or it has listed no such tool."""
        tools = self._upstream(server).probed_tools
        if tools is None:
            raise NoSuch(f"the tools of server {server!r} are not known: it has not answered yet, or asks for secrets")
        for tool in tools.listed:
            if tool["name"] == name:
                return _row(server, tool)
        raise NoSuch(f"server {server!r} lists no tool {name[:128]!r}")

    async def unapproved(self, server: str = "", tool: str | None = None) -> list[UnapprovedRow]:
        """Return the tools, prompts and templates of a server (empty: of all servers) that this replica hides because
        the lock file does not approve them. `tool`: only the tool of this name. Definitions may have megabytes, so they
        are compared in a thread."""
        found = [] if self._unapproved is None else self._unapproved.of(server)
        wanted = [one for one in found if tool is None or (one.kind, one.name) == ("tools", tool)]
        return await asyncio.to_thread(lambda: [_hidden(one) for one in wanted]) if wanted else []

    async def approve(self, approval: Approval) -> str:
        """Approve a tool, prompt or template that the lock file hides, by writing it into the lock file. Return its
        kind, server and name.

        Raises:
            NoSuch: nothing that the lock hides has this digest.
            OperatorError: the lock cannot be written.
        """
        hidden = self._unapproved
        found = [] if hidden is None else hidden.of(approval.server)
        wanted = (approval.server, approval.kind, approval.digest)
        item = next((one for one in found if (one.server, one.kind, one.digest) == wanted), None)
        if hidden is None or item is None or not (await asyncio.to_thread(_hidden, item)).digest:
            raise NoSuch("the lock hides nothing here of which all was shown with this digest: look again")
        try:
            async with self._turn:
                await asyncio.to_thread(approve, Path(hidden.lock_file), item)
        except OSError as error:
            raise OperatorError(
                f"{hidden.lock_file} cannot be written ({error.strerror}): approve with `mcp-session-gateway lock` "
                "where the file is made"
            ) from None
        except (Unlockable, ValueError) as error:
            raise OperatorError(str(error)) from None
        return f"{item.kind.removesuffix('s')} {item.server}/{revealed(item.name)[:_MOST_NAME]}"

    def path_of(self, server: str) -> str:
        """Return the path of the endpoint that serves only the server `server`. Raises `NoSuch` if there is no such
        server."""
        return path_of(self._upstream(server).name)

    def name_at(self, path: str, server: str, tool: str) -> str:
        """Return the name of a server's tool at the endpoint `path`: with the server's prefix if the endpoint has
        several servers. Raises `OperatorError` if the endpoint does not serve the server."""
        served = [upstream.name for upstream in self._upstreams if path in (ALL, path_of(upstream.name))]
        if server not in served:
            raise OperatorError(f"the session is one of {path}, which does not serve {server!r}")
        return tool if len(served) == 1 else str(with_public_name(server, {"name": tool})["name"])

    def headers_for(self, server: str, tool: str, arguments: Object) -> dict[str, str]:
        """Return the headers that repeat arguments of a call, because the tool's input schema asks for them (MCP
        2026-07-28, Transports §Custom Headers). Empty if there are none, or if the server's tools are unknown."""
        tools = self._upstream(server).probed_tools
        schema = None if tools is None else tools.mirrored.get(tool)
        if schema is None:
            return {}
        headers = argument_headers(schema, {name: decode_exact(value) for name, value in arguments.items()})
        return {name.lower(): value for name, value in headers.items()}

    def _upstream(self, server: str) -> ConfiguredUpstream:
        for upstream in self._upstreams:
            if upstream.name == server:
                return upstream
        raise NoSuch(f"there is no server {server[:128]!r}")


def _hidden(one: Unapproved) -> UnapprovedRow:
    """Return the row of `one`, an item that the lock file hides. The row shows how the item differs from the approved
    one; a long difference is cut. The row's `digest`, by which an operator approves the item, is empty unless the whole
    difference is shown."""
    lines = item_difference(one.server, one.kind, one.name, one.approved, one.item)
    is_whole = len(lines) <= _MOST_LINES and digest_of(one.item) == one.digest
    if not is_whole:
        lines = [*lines[:_MOST_LINES], "  too large to be shown here: use the command `lock`"]
    return UnapprovedRow(
        server=one.server,
        kind=one.kind,
        name=one.name,
        digest=one.digest if is_whole else "",
        reason=one.reason,
        difference=lines,
    )


def _row(server: str, tool: Mapping[str, Any]) -> ToolRow:
    annotations = tool.get("annotations")
    return ToolRow(
        server=server,
        name=tool["name"],
        title=_text(tool.get("title")),
        description=_text(tool.get("description")),
        operation=operation_of(tool),
        annotations=annotations if isinstance(annotations, dict) else {},
        input_schema=tool.get("inputSchema"),
        output_schema=tool.get("outputSchema"),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tried call goes: into a live session, or into a new one. Exactly one of `token` and `key` is set."""

    era: Era
    """The era in which the call is sent."""
    path: str
    """The path of the session's endpoint."""
    principal: Principal
    """The principal in whose name the call is sent."""
    claims: CredentialClaims | None
    token: str = ""
    """The token of the live session; empty for a new one."""
    version: str = ""
    """The protocol version of the live session's client."""
    key: str = ""
    """The session key for a new session; empty for a live one."""


class InternalRequests:
    """Send requests of this process to its own endpoints, in the name of any principal and without a credential. They
    are handled like requests of clients. Only the composition root may create one, because whoever has one can act as
    any principal.

    `endpoints` are the ASGI apps by path. `host` goes into the `Host` header: a name that this gateway and all others
    on its store serve.
    """

    def __init__(self, endpoints: Mapping[str, Any], *, host: str) -> None:
        self._endpoints = endpoints
        self._host = host

    def __call__(
        self,
        path: str,
        principal: Principal,
        claims: CredentialClaims | None,
        headers: Mapping[str, str],
        body: bytes,
        *,
        peer: str = "",
    ) -> Reply:
        """Begin a POST of `body` to the endpoint at `path`, and return its reply. `peer`: the address of the operator's
        browser or command, for which the request is sent."""
        inside = InProcessClient(self._endpoints[path], path, {VOUCHED_FOR: Authenticated(principal, claims)})
        return inside.ask("POST", {**headers, "host": self._host}, body, peer)


class OngoingCall:
    """Send one tool call of an operator, and wait for its outcome."""

    def __init__(
        self, ask: InternalRequests, destination: Destination, name: str, attempt: Attempt, correlation: str, peer: str
    ) -> None:
        self._ask = ask
        self._destination = destination
        self._name = name
        self._attempt = attempt
        self._correlation = correlation
        self._peer = peer
        # Not the id of a call that the session's client has in flight.
        self._id = f"operator-{correlation}"
        self._messages: list[str] = []
        self._asked: list[str] = []

    async def answered(self, mirrored: dict[str, str], left: Left | None) -> TriedCall:
        """Send the call, also with the headers `mirrored` (they repeat arguments), and return its outcome. Cancel the
        call when `left` returns, because the operator has then disconnected, or after `PATIENCE_S` seconds: the outcome
        of a cancelled call is `timeout`."""
        params: dict[str, Any] = {"name": self._name, "arguments": self._attempt.arguments}
        if self._destination.era is MODERN:
            params["_meta"] = {
                VERSION_KEY: MODERN_VERSIONS[-1],
                f"{SPEC}clientInfo": {"name": CLIENT, "version": __version__},
                f"{SPEC}clientCapabilities": {},
            } | ({KEY_META: self._destination.key} if self._destination.key else {})
        trace = {"traceparent": f"00-{self._correlation}-{self._correlation[:16]}-00"}
        reply = self._send({"id": self._id, "method": "tools/call", "params": params}, trace | mirrored)
        reading = asyncio.ensure_future(self._read(reply))
        leaving = asyncio.ensure_future(left()) if left is not None else None
        waited = [reading] if leaving is None else [reading, leaving]
        try:
            await asyncio.wait(waited, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
        finally:
            for task in waited:
                task.cancel()
            if not reading.done() or reading.cancelled():
                await self._cancel(reply)
            await asyncio.gather(*waited, return_exceptions=True)
            await reply.leave()
        return self._outcome("timeout", note=f"No answer within {PATIENCE_S:.0f} s: the call was cancelled.")

    def _send(self, message: Mapping[str, Any], more: Mapping[str, str]) -> Reply:
        """Send a message with the headers that name its session, and with the headers `more`."""
        to = self._destination
        headers = {"user-agent": f"{CLIENT}/{__version__}", **more}
        if to.era is MODERN:
            headers |= {VERSION_HEADER: MODERN_VERSIONS[-1], GATEWAY_HEADER: to.token or NEW}
            headers |= {"mcp-method": "tools/call", "mcp-name": encode_value(self._name)}
        else:
            headers |= {LEGACY_HEADER: to.token} | ({VERSION_HEADER: to.version} if to.version else {})
        body = encode({"jsonrpc": "2.0", **message})
        return self._ask(to.path, to.principal, to.claims, headers, body, peer=self._peer)

    async def _cancel(self, reply: Reply) -> None:
        """Cancel the call: in a modern session by closing the connection, in a legacy session also by a
        notification."""
        if self._destination.era is LEGACY:
            params = {"requestId": self._id, "reason": "the operator no longer waits"}
            await self._post({"method": "notifications/cancelled", "params": params})
        await reply.leave(_CANCELLED_S)

    async def _post(self, message: Mapping[str, Any]) -> None:
        """Send a notification or a response to a server's question, as a legacy client does, and ignore the answer."""
        reply = self._send(message, {})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCELLED_S):
                await reply.begun()
        await reply.leave()

    async def _read(self, reply: Reply) -> TriedCall:
        async for frame in reply.frames():
            if len(frame) > MOST_BYTES or sum(map(frame.count, (b",", b"[", b"{"))) > _MOST_PARTS:
                note = f"The answer has {len(frame):,} bytes, which is more than can be shown here."
                return self._outcome("too_large", size=len(frame), note=note)
            try:
                message = msgspec.json.decode(frame)
            except UNREADABLE:
                message = None
            if not isinstance(message, dict):
                return self._outcome("unreadable", size=len(frame), note="The answer cannot be read as JSON.")
            if "method" not in message:
                return self._of_answer(message, len(frame))
            await self._heard(message, frame)
        return self._outcome("unreadable", note="The call was ended without an answer.")

    async def _heard(self, message: dict[str, Any], frame: bytes) -> None:
        """Keep the first characters of a message that the server sends before its answer, for the operator: `message`,
        encoded as `frame`. If it is a question in a legacy session, decline it."""
        heard = self._asked if "id" in message else self._messages
        if len(heard) < _MOST_MESSAGES:
            heard.append(frame.decode("utf-8", "replace")[:_MOST_CHARS])
        if "id" in message and self._destination.era is LEGACY:
            answer: dict[str, Any] = {"error": {"code": METHOD_NOT_FOUND, "message": _DECLINED}}
            if message["method"] == "elicitation/create":
                answer = {"result": {"action": "decline"}}
            await self._post({"id": message["id"], **answer})

    def _of_answer(self, message: dict[str, Any], size: int) -> TriedCall:
        if "error" in message:
            return self._outcome("error", size=size, error=message["error"])
        result = message.get("result")
        kind = result if isinstance(result, dict) else {}
        if kind.get("resultType") == "input_required":
            return self._outcome(
                "asks", size=size, result=result, note="The tool asks its user, who cannot be asked here."
            )
        return self._outcome("tool_error" if kind.get("isError") is True else "ok", size=size, result=result)

    def _outcome(self, outcome: TriedOutcome, **facts: Any) -> TriedCall:
        attempt = self._attempt
        return TriedCall(
            server=attempt.server,
            tool=attempt.tool,
            outcome=outcome,
            correlation=self._correlation,
            messages=self._messages,
            asked=self._asked,
            **facts,
        )


class Records(Protocol):
    """Record an operator's action in the audit trail."""

    def __call__(self, *, reason: str, session: Session | str = "", principal: str = "", tool: str = "") -> None: ...


class EndsSessions(Protocol):
    """End sessions on every replica."""

    async def end(self, session_id: str, reason: str, calls: int | None = None) -> bool:
        """End a session for the given reason. Return False if it had ended already. `calls`: the number of calls that
        the session's replica has answered in it, for the audit trail; None if unknown."""
        ...


@dataclass(eq=False, repr=False, kw_only=True)
class TriedCalls:
    """Call tools in the name of operators, who try them in the console or by REST."""

    catalog: ToolCatalog
    ask: InternalRequests
    finder: SessionFinder
    claims: Callable[[Session], CredentialClaims | None]
    """Returns the claims that give a call exactly the rights of the session. Returns None if they are unknown, because
    the rules have changed since the session's last request."""
    token: Callable[[Session], str]
    """Returns the token of a session."""
    record: Records
    """Writes each tried call to the audit trail."""
    ending: EndsSessions
    """Ends new sessions after the call."""
    where: SessionScope
    """The setting `admin.try_tools`: in which sessions operators may call tools."""

    def __post_init__(self) -> None:
        self._running: dict[str, int] = {}

    async def call(self, attempt: Attempt, by: str, *, peer: str = "", left: Left | None = None) -> TriedCall:
        """Call a tool in the name of the operator `by`, whose address is `peer`, and return the outcome. If `left`
        returns, the operator has disconnected, and the call is cancelled.

        Raises:
            OperatorError: the call is not allowed, or names no session, server or tool.
            StoreUnavailable: the store does not answer.
        """
        if self.where == "off":
            raise OperatorError("tools cannot be tried here: gateway.admin.try_tools is off")
        session = await self.finder.find(attempt.session) if attempt.session else None
        if session is not None and not may_use(self.where, session.principal, by):
            raise OperatorError(
                "tools are tried in sessions of your own here: leave the session out for a fresh one, or set "
                'gateway.admin.try_tools to "any"'
            )
        if self._running.get(by, 0) >= _MOST_AT_ONCE:
            raise OperatorError(f"{_MOST_AT_ONCE} calls that you have tried are not answered yet: wait for one of them")
        self._running[by] = self._running.get(by, 0) + 1
        try:
            return await self._try(attempt, by, session, peer, left)
        finally:
            self._running[by] -= 1
            if not self._running[by]:
                del self._running[by]

    async def _try(
        self,
        attempt: Attempt,
        by: str,
        session: Session | None,
        peer: str,
        left: Left | None,
    ) -> TriedCall:
        path = self.catalog.path_of(attempt.server)
        fresh = Destination(era=MODERN, path=path, principal=_principal(by), claims=None, key=secrets.token_urlsafe(24))
        destination = fresh if session is None else self._into(session)
        name = self.catalog.name_at(destination.path, attempt.server, attempt.tool)
        correlation = secrets.token_hex(16)
        self._note(attempt, by, session, destination, correlation)
        call = OngoingCall(self.ask, destination, name, attempt, correlation, peer)
        mirrored = self.catalog.headers_for(attempt.server, attempt.tool, attempt.arguments)
        began, opened, kept = monotonic(), session, session is not None
        try:
            found = await call.answered(mirrored, left)
            duration_s = round(monotonic() - began, 4)
            if session is None:
                with contextlib.suppress(StoreUnavailable):  # the tool has run: its operator gets the result
                    opened = await self._opened(destination)
                    kept = opened is not None and (attempt.keep or not await self._ended(opened, by))
        except BaseException:
            if session is None:
                await asyncio.shield(self._end_fresh(destination, by))
            raise
        begins = "" if opened is None else redact(opened.id)
        return msgspec.structs.replace(found, session=begins, kept=kept, duration_s=duration_s)

    def _into(self, session: Session) -> Destination:
        """Return the destination of a call in a live session, with the session's own rights. Raises `OperatorError` if
        the session is a child session, or its rights are unknown."""
        if session.parent:
            raise OperatorError(f"session {redact(session.id)} is part of another: name session {session.parent[:8]}")
        claims = self.claims(session)
        if claims is None:
            raise OperatorError(
                f"the rules have changed since the last request of session {redact(session.id)}, so its rights are not "
                "known: wait for the next request of its client, or try the tool in a fresh session"
            )
        return Destination(
            era=LEGACY if session.era == LEGACY else MODERN,
            path=session.endpoint,
            principal=session.principal,
            claims=claims,
            token=self.token(session),
            version=session.client.protocol_version,
        )

    def _note(
        self, attempt: Attempt, by: str, session: Session | None, destination: Destination, correlation: str
    ) -> None:
        """Record a tried call in the audit trail, before it is sent. The event has the correlation id of the call.
        `session`: the live session; None for a new one."""
        where = "in a fresh session" if session is None else f"in a session of {session.principal}"
        tool = f"{attempt.server}/{attempt.tool}"[:_MOST_NAME]

        def record() -> None:
            CORRELATION.set(correlation)
            self.record(
                session="" if session is None else session,
                principal=str(destination.principal),
                reason=f"the operator {by} has tried a tool {where}",
                tool=tool,
            )

        contextvars.copy_context().run(record)

    async def _end_fresh(self, destination: Destination, by: str) -> None:
        with contextlib.suppress(StoreUnavailable):
            session = await self._opened(destination)
            if session is not None:
                await self._ended(session, by)

    async def _ended(self, session: Session, by: str) -> bool:
        """End the session that a tried call has opened. Return False if the store does not answer; the session then
        ends after its idle time."""
        try:
            await self.ending.end(session.id, f"the operator {by} has tried a tool in it")
        except StoreUnavailable:
            return False
        return True

    async def _opened(self, destination: Destination) -> Session | None:
        """Return the session that a call has opened; None if the call was refused before a session was opened."""
        return await self.finder.sessions.named(key_alias(destination.key, destination.principal, destination.path))


def may_use(scope: SessionScope, principal: Principal, by: str) -> bool:
    """Return True if `scope` lets the operator `by` use sessions of that principal."""
    return scope == "any" or (scope == "own" and principal == _principal(by))


def _principal(by: str) -> Principal:
    """Return the principal of the sessions that the operator `by` opens."""
    return Principal(issuer=OPERATOR_ISSUER, subject=by)


T = TypeVar("T")


async def sent_in(request: Request, kind: type[T]) -> T:
    """Return the struct of the type `kind` in a JSON body. Raises `OperatorError` if the body is not such a struct."""
    try:
        return msgspec.json.decode(await body_of(request), type=kind)
    except UNREADABLE as error:
        what = "a call" if kind is Attempt else "an approval"
        raise OperatorError(f"the body is not {what}: {error}") from None


async def body_of(request: Request) -> bytes:
    """Read the body of a request. Raises `OperatorError` if it is too large or incomplete."""
    try:
        body = await read_body(request.receive, request.headers, MAX_BYTES)
    except Refused as refused:
        raise OperatorError(str(refused)) from None
    if body is None:
        raise OperatorError("the request ended before its body did")
    return body


def left(request: Request) -> Left:
    """Return a function that waits until the client of `request` has disconnected. Call the returned function only
    after the request's body was read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone
