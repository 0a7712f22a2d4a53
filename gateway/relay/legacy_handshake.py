"""The handshake of a legacy client: `initialize` opens its session and the servers behind the endpoint.

MCP 2025-11-25, Lifecycle.
"""

from collections.abc import Mapping

import msgspec

from gateway.calls.call import message_of
from gateway.calls.immediate_reply import ImmediateReply
from gateway.context.client_workspace import Announcements
from gateway.context.facts import traced_error, with_meta
from gateway.errors import UPSTREAM_UNAVAILABLE, error_of
from gateway.identity.request_context import RequestContext
from gateway.protocol.handshake import HandshakeRefused, at_most, negotiable, version_of
from gateway.protocol.params import meta_of
from gateway.protocol.reserved_meta import without_reserved
from gateway.relay.endpoint import Endpoint
from gateway.sessions.attach import Resolved
from gateway.sessions.carriers import Carriers, client_facts
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.sessions.reattach import InitializeResolver
from gateway.sessions.records import SessionRecords
from gateway.tasks.requested import RequestedTasks
from transports.inbound_port import Answer, Request
from transports.jsonrpc import decode_object, encode, encode_error, encode_result, error_code, splice
from transports.upstream_port import UpstreamUnavailable

__all__ = ["LegacyHandshake"]


class LegacyHandshake:
    """Answers `initialize`. A handshake that is refused leaves no session behind."""

    def __init__(
        self,
        *,
        initializer: InitializeResolver,
        records: SessionRecords,
        lifecycle: SessionLifecycle,
        carriers: Carriers,
        endpoints: Mapping[str, Endpoint],
        requested: RequestedTasks,
        announcements: Announcements,
    ) -> None:
        self._initializer = initializer
        self._records = records
        self._lifecycle = lifecycle
        self._carriers = carriers
        self._endpoints = endpoints
        self._requested = requested
        self._agreed = announcements.agreed

    async def initialize(self, request: Request, who: RequestContext) -> Answer:
        """Answer `initialize`: open the session, or find it again, and its servers with it."""
        message, endpoint = message_of(request), self._endpoints[request.endpoint]
        params = negotiable(request.params)
        info = msgspec.json.decode(params.get("clientInfo", b"null"))
        version = msgspec.json.decode(params["protocolVersion"])
        if "_meta" in params:
            params = params | {"_meta": msgspec.Raw(encode(without_reserved(meta_of(params))))}
        facts = client_facts(info, version, splice(encode(params)))
        resolved = await self._initializer.initialize(request, who, facts)
        resolved, said = await self._initializer.apply_announced(request, who, resolved)
        live = resolved.live
        meta = meta_of(params)
        agreed = self._agreed(meta, resolved.context)
        if agreed is not meta:
            facts = client_facts(info, version, splice(encode(params | {"_meta": msgspec.Raw(encode(agreed))})))
        if agreed is not meta or not resolved.opened:
            await self._records.update(live, client=facts)
        with live.in_use():
            try:
                result = self._requested.declared(at_most(await endpoint.initialize(live, who.correlation), version))
                if (negotiated := version_of(result)) != version:
                    await self._records.update(live, client=msgspec.structs.replace(facts, protocol_version=negotiated))
            except HandshakeRefused as error:
                await self._undo(resolved)
                refusal = encode_error(encode(message.id), traced_error(splice(error.error), who.correlation))
                code, why = error_code(error.error), "the server has refused the handshake"
                return ImmediateReply(refusal, error_code=code, live=live, why=why)
            except UpstreamUnavailable as error:
                await self._undo(resolved)
                failure = encode_error(encode(message.id), error_of(UPSTREAM_UNAVAILABLE, str(error), who.correlation))
                return ImmediateReply(failure, error_code=UPSTREAM_UNAVAILABLE, live=live, why=str(error))
            except BaseException:
                await self._undo(resolved)
                raise
        if said:
            result = encode(with_meta(decode_object(msgspec.Raw(result), "result"), said))
        headers = self._carriers.headers(live.session, request, cookie_held=resolved.cookie_held)
        return ImmediateReply(encode_result(encode(message.id), result), headers, live=live)

    async def _undo(self, resolved: Resolved) -> None:
        """A refused handshake leaves nothing behind."""
        if resolved.opened:
            await self._lifecycle.end(resolved.live.session.id, "handshake refused")
