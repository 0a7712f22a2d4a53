"""Handle the messages of modern clients (MCP 2026-07-28), and translate results for them.

A client sends back the encrypted `requestState` of an earlier result to resume a call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.bridge.call_suspension import answer_suspended
from gateway.bridge.request_state import (
    Binding,
    OpenedState,
    RequestDigest,
    RequestStateSeal,
    is_input_required,
    with_inner_state,
)
from gateway.calls.client_request import IncomingCall, id_of, message_of
from gateway.calls.consent_questions import without_consent
from gateway.calls.exchange import Exchange
from gateway.calls.immediate_reply import ImmediateReply
from gateway.context.session_facts import SESSION_KEY, SHARED_KEY, with_context, with_meta, with_trace
from gateway.errors import OUTCOME_UNKNOWN, bad_request_state
from gateway.identity.request_context import RequestContext
from gateway.protocol.cache_hints import of_one_session
from gateway.protocol.client_capabilities import capability_for, declaration_in_meta, may_be_asked
from gateway.protocol.input_requests import questions_of
from gateway.protocol.methods import ABOUT_TASKS, CACHEABLE, MAY_ASK, METHODS
from gateway.protocol.params import meta_of
from gateway.protocol.reserved_meta import without_reserved_below
from gateway.protocol.subscription_filter import SUBSCRIPTION_ID
from gateway.protocol.tasks import declares_tasks, is_task, names_tasks
from gateway.relay.call import FoundSession, Intake
from gateway.relay.endpoint_servers import EndpointServers
from gateway.relay.late_servers import Asker
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.session_attaching import Resolved
from gateway.tasks.modern_clients import ModernTasks
from session_store import Context
from transports.era import MODERN, SESSIONLESS, Era
from transports.inbound_port import Answer, HeaderList, Refused, Request
from transports.jsonrpc import (
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    InvalidMessage,
    Message,
    Object,
    decode_object,
    encode,
    encode_result,
)

_SHARED: Final = (
    "Another client with this credential, name and version uses this session too, or this program was started again. "
    "With a session key, a client has a session of its own."
)


def _check_declared(exchange: Exchange, result: Object) -> None:
    """Check that the client has declared the capabilities that all questions in a server's result need (MCP 2026-07-28,
    Multi Round-Trip Requests §Server Requirements). Raises `Refused` if a capability is missing, or if a question
    cannot be read."""
    if exchange.declaration is None or "inputRequests" not in result:
        return
    missing: dict[str, Any] = {}
    try:
        for method, params in questions_of(result).values():
            if not may_be_asked(exchange.declaration.capabilities, method, params or {}):
                for name, kinds in capability_for(method, params or {}).items():
                    missing[name] = missing.get(name, {}) | kinds
    except (InvalidMessage, msgspec.MsgspecError, RecursionError) as error:
        raise Refused(
            200,
            OUTCOME_UNKNOWN,
            f"Server {exchange.server!r} asks what cannot be read: {error}",
            reason="outcome_unknown",
        ) from None
    if missing:
        names = ", ".join(sorted(missing))
        text = f"Server {exchange.server!r} needs a capability that the client has not declared: {names}"
        raise Refused(400, MISSING_CAPABILITY, text, data={"requiredCapabilities": missing})


@dataclass(eq=False, repr=False, kw_only=True)
class ModernClients:
    """Handle the messages of modern clients (MCP 2026-07-28)."""

    intake: Intake
    resolver: SessionResolver
    seal: RequestStateSeal
    """Encrypts and opens the `requestState` of clients."""
    tasks: ModernTasks
    result_meta: bool
    """True if each result describes its session in `_meta`."""

    # -- calls (`gateway.relay.call.Clients`)

    async def session(self, request: Request, who: RequestContext) -> FoundSession | Answer:
        if "inputResponses" in request.params:
            answers = without_reserved_below(request.params["inputResponses"])
            params = without_consent(request.params | {"inputResponses": answers})
            request = msgspec.structs.replace(request, params=params, offer=None)
        params, method = request.params, str(message_of(request).method)
        endpoint = self.intake.endpoints[request.endpoint]
        if method == "server/discover":
            return await self._discover(message_of(request), endpoint, self.resolver.opener.context_of(request, who))
        if method in ABOUT_TASKS:
            return await self.tasks.call(request, who)
        if names_tasks(method, params):
            return await self.tasks.listening.call(request, who)
        has_state = bytes(params.get("requestState", b"null")) != b"null"
        if has_state and (binding := _binding_of(request, who)) is not None:
            return await self._session_of_state(request, who, binding)
        # Some servers need the credentials of a session to answer list requests.
        if method in SESSIONLESS and not any(one.is_asked_in_sessions for one in endpoint.visible.all.values()):
            return FoundSession(await self.resolver.resume(request, who), request, params)
        return FoundSession(await self.resolver.resume_or_open(request, who), request, params)

    async def _session_of_state(self, request: Request, who: RequestContext, binding: Binding) -> FoundSession | Answer:
        """Find the session that is named in the `requestState` that the client sends back, and return it. If the state
        also names a suspended call, resume that call, and return its reply instead."""
        opened = self.seal.open(request.params["requestState"], binding)
        found = await self.resolver.resume_by_id(opened.session, who, Era.MODERN)
        if opened.call:
            return await self._resume(request, who, found, opened, binding)
        params = with_inner_state(request.params, opened)
        # No fast path: the state names the session, not the head.
        return FoundSession(found, msgspec.structs.replace(request, offer=None), params)

    async def answer(self, resolved: Resolved, request: Request, who: RequestContext) -> Answer | None:
        return None

    def exchange(self, resolved: Resolved | None, request: Request, who: RequestContext) -> Exchange:
        message = message_of(request)
        shape, keeps_complete = self._shaper(request, who, resolved, _binding_of(request, who))
        exchange = (self.tasks.exchange if _takes_tasks(request) else Exchange)(
            method=str(message.method),
            client_id=id_of(message),
            live=None if resolved is None else resolved.live,
            shape=shape,
            declaration=declaration_in_meta(request.params.get("_meta", b"{}")),
            context=self.resolver.opener.context_of(request, who) if resolved is None else resolved.context,
            granted=who.claims,
        )
        if keeps_complete:
            exchange.keep_complete()
        return exchange

    def _shaper(
        self, request: Request, who: RequestContext, resolved: Resolved | None, binding: Binding | None
    ) -> tuple[Callable[[Exchange, Object], Object], bool]:
        """Return a function that completes a server's result for the client. The function adds the session's token if
        the result must carry it, adds a notice if another client shares the session, and encrypts the `requestState`.
        Also return True if the function leaves every complete result unchanged."""
        takes_tasks, correlation = _takes_tasks(request), who.correlation
        names_session = resolved is not None and self.resolver.carriers.is_in_result(request, opened=resolved.opened)
        own_session = "" if resolved is None else resolved.own_session

        def shape(exchange: Exchange, result: Object) -> Object:
            live = exchange.live
            if binding is not None and is_task(result):
                result = self.tasks.created(exchange, result, binding.endpoint, is_declared=takes_tasks)
            if exchange.is_subscription:
                result = with_meta(result, {SUBSCRIPTION_ID: msgspec.Raw(encode(exchange.client_id))})
            asks = binding is not None and is_input_required(result)
            if live is None or (exchange.method in CACHEABLE and not asks):
                return result
            if asks and binding is not None:
                suspended = exchange.suspended if exchange.is_suspended else None
                if suspended is None:  # the result of a modern server
                    _check_declared(exchange, result)
                result = self.seal.seal(result, session_id=live.session.id, binding=binding, suspended=suspended)
            additions: Object = {}
            if names_session:
                additions[SESSION_KEY] = msgspec.Raw(encode(self.resolver.carriers.token(live.session)))
            if own_session:
                additions[SHARED_KEY] = msgspec.Raw(encode({"reason": _SHARED, "line": own_session}))
            if self.result_meta:
                result = with_trace(result, live.session, correlation)
            return with_meta(result, additions) if additions else result

        changes = names_session or own_session or self.result_meta
        return shape, binding is not None and not changes

    def with_workspace_note(self, result: Object, said: Object) -> Object:
        return with_meta(of_one_session(result), said)

    def headers(self, resolved: Resolved, request: Request) -> HeaderList:
        return self.resolver.carriers.headers(resolved.live.session, request, cookie_held=resolved.cookie_held)

    async def as_task(self, coming: IncomingCall) -> Answer | None:
        if type(coming.exchange) is Exchange:
            return None
        # `TaskMaker` awaits the second argument: it is what `Calls` would do with a call that is no task.
        return await self.tasks.answer(coming, self.intake.accept(coming))

    async def _resume(
        self, request: Request, who: RequestContext, resolved: Resolved, opened: OpenedState, binding: Binding
    ) -> Answer:
        """Resume the suspended call that `opened` names with the answers of its client, and return the reply. If the
        process that had the call is gone, send the call again."""
        live = resolved.live
        live.client_sent(message_of(request))
        headers = self.headers(resolved, request)
        responses = decode_object(request.params.get("inputResponses", msgspec.Raw(b"{}")), "inputResponses")
        if request.forwarded is not None and opened.call in live.suspended:
            await request.forwarded.before_sending()
        # No await from here until the answers are taken: of several requests with one state, only the first counts.
        exchange = live.suspended.get(opened.call)
        if exchange is None or exchange.suspended is None:
            # The process with the suspended call is gone: the call is repeated, with the answers that are known.
            exchange = self.exchange(resolved, request, who)
            exchange.replay_answers(
                dict(opened.answers)
                | {asked: bytes(responses[key]).decode() for key, asked in opened.asked.items() if key in responses}
            )
            again = msgspec.structs.replace(request, again=True)
            params = {k: v for k, v in request.params.items() if k not in ("requestState", "inputResponses")}
            coming = IncomingCall(exchange, again, who, params, headers)
            return await self.as_task(coming) or await self.intake.accept(coming)
        if opened.turn != exchange.suspended.turn:
            raise bad_request_state()
        token = meta_of(request.params).get("progressToken")
        # The binding has dropped the params of the request, which an ended call must not keep.
        shape, _ = self._shaper(request, who, resolved, binding)
        exchange.resume(id_of(message_of(request)), shape, None if token is None else token.copy())
        reply = self.intake.attach(exchange, headers, request, who.correlation)
        if exchange.replies.is_closed or exchange.conversation is None:
            live.suspended.pop(opened.call, None)  # the call has ended meanwhile, and its outcome is the answer
        answer_suspended(exchange, responses)
        return self.tasks.resumed(exchange, request, reply) if _takes_tasks(request) else reply

    async def _discover(self, message: Message, endpoint: EndpointServers, context: Context) -> Answer:
        result = await endpoint.discover(context)
        if result is None:
            raise Refused(
                404,
                METHOD_NOT_FOUND,
                "Method not found: server/discover. The server supports 2025-11-25 or older only.",
            )
        return ImmediateReply(encode_result(encode(message.id), self.tasks.declared(result)))

    # -- other messages

    async def notify(self, request: Request, who: RequestContext) -> HeaderList:
        """Forward a client's notification of an extension to the servers that take it. Ignore the notifications of core
        MCP, which defines none from clients over HTTP in 2026-07-28. Return the response headers for the client.

        Raises:
            Refused: no server gets the notification.
        """
        message, extensions = message_of(request), self.intake.endpoints[request.endpoint].extensions
        method, declaration = str(message.method), declaration_in_meta(request.params.get("_meta", b"{}"))
        if method in METHODS:
            return []
        resolved = await self.resolver.resume(request, who)
        if resolved is None:
            # Do not open a session for a notification that no server takes.
            asker = Asker(None, MODERN, declaration, who.correlation)
            await extensions.servers_for(method, self.resolver.opener.context_of(request, who), asker)
            resolved = await self.resolver.resume_or_open(request, who)
        live = resolved.live
        live.client_sent(message)
        with live.open_use():
            await self.intake.count_message(live)
            meta = self.intake.meta(request.params, with_context(live.session, resolved.context), who.correlation)
            asker = Asker(live, MODERN, declaration, who.correlation)
            await extensions.notify(asker, resolved.context, method, request.params, meta)
        return self.headers(resolved, request)


def _binding_of(request: Request, who: RequestContext) -> Binding | None:
    """Return the values to which the `requestState` of this call is bound, so that it is valid for no other call.
    Return None if servers cannot answer this method with questions."""
    method = str(message_of(request).method)
    if method not in MAY_ASK:
        return None
    return Binding(who.principal, request.endpoint, RequestDigest(method, request.params))


def _takes_tasks(request: Request) -> bool:
    """Return True if a request is a `tools/call` whose client accepts a task in place of the result."""
    return message_of(request).method == "tools/call" and declares_tasks(request.meta)
