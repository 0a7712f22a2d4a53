"""Asks one server something on behalf of a client's call, without sending the call itself."""

import msgspec

from gateway.bridge.legacy_server import legacy_meta
from gateway.bridge.subscription_relay import caller_of
from gateway.calls.call import Call
from gateway.calls.conversation import Conversation
from gateway.upstreams.upstream import ConfiguredUpstream
from transports.era import Era
from transports.jsonrpc import Message, Object, encode

__all__ = ["ask"]


async def ask(upstream: ConfiguredUpstream, call: Call, method: str, params: Object) -> tuple[Conversation, Message]:
    """The server's answer, and the conversation that it was asked in: that of the call's session.

    Raises:
        UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
    """
    conversation = await upstream.conversation_for(call)
    await conversation.ready()
    params = {key: value for key, value in params.items() if key != "_meta"}
    if meta := _meta_for(conversation, call):
        params = params | {"_meta": msgspec.Raw(encode(meta))}
    return conversation, await conversation.ask(method, encode(params))


def _meta_for(conversation: Conversation, call: Call) -> Object:
    """The `_meta` of the request, as the server's era has it."""
    meta, exchange = call.meta, call.exchange
    if conversation.era is Era.LEGACY:
        return legacy_meta(meta)
    if call.era is Era.LEGACY and (live := call.live) is not None:
        return meta | caller_of(live).meta("")
    return meta if exchange.caller is None else exchange.caller.meta("") | meta  # as the client itself declares it
