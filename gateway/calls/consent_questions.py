"""Ask the person behind a client for consent to a call, before the server gets anything of the call."""

import secrets
from typing import Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.errors import CONSENT_NEEDED, UPSTREAM_UNAVAILABLE, ConsentRefusal
from gateway.protocol.client_capabilities import declaration_in_params, may_be_asked
from gateway.protocol.methods import MAY_ASK
from transports.inbound_port import Refused
from transports.jsonrpc import Message, Object, decode_object, encode

_ASK: Final = "elicitation/create"
_KEY: Final = "gateway-consent"
_CONTINUES: Final = frozenset({"requestState", "inputResponses"})


def refuse_or_ask(exchange: Exchange, refused: Refused, params: Object | None) -> None:
    """End a call with `refused`; or, if consent is missing, ask the client to open the consent page. Ask only a client
    that has declared URL elicitation. Do not ask if the request continues an earlier one: after the consent, the client
    would begin its call anew. `params`: those of the request; None if the request was sent: the exchange has them."""
    if not isinstance(refused, ConsentRefusal):
        exchange.refuse(refused)
        return
    sent = (exchange.take_request() or ({}, {}))[0] if params is None else params
    question = {"mode": "url", "message": refused.ask, "url": refused.url}
    declaration = exchange.declaration
    if declaration is None and exchange.session is not None:
        declaration = declaration_in_params(exchange.session.client.initialize_params)
    by_url: Object = {"mode": msgspec.Raw(b'"url"')}
    takes_urls = declaration is not None and may_be_asked(declaration.capabilities, _ASK, by_url)
    if not takes_urls or _CONTINUES & sent.keys():
        exchange.refuse(refused)
    elif exchange.declaration is None:  # MCP 2025-11-25, Elicitation §URL Elicitation Required Error
        data = {"elicitations": [question | {"elicitationId": secrets.token_urlsafe(12)}]}
        exchange.refuse(Refused(200, CONSENT_NEEDED, str(refused), reason=refused.reason, data=data))
    elif exchange.method in MAY_ASK:
        requests = {_KEY: {"method": _ASK, "params": question}}
        result = encode({"resultType": "input_required", "inputRequests": requests})
        exchange.finish_translated(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(result)))
    else:
        exchange.refuse(refused)


def without_consent(params: Object) -> Object:
    """Remove the client's answer to the consent question from the params of a request, because it is for the gateway.
    Return the params for the server. Keep the member `inputResponses` even if it is empty now: it shows that the client
    was asked. Otherwise the client would be asked again and again, because clients accept as soon as the page is open.

    Raises:
        Refused: the person does not consent.
        InvalidMessage: the answers are no objects.
    """
    if _KEY.encode() not in bytes(params["inputResponses"]):
        return params
    answers = decode_object(params["inputResponses"], "inputResponses")
    if _KEY not in answers:
        return params
    answer = decode_object(answers.pop(_KEY), _KEY)
    if bytes(answer.get("action", b"")) != b'"accept"':
        text = "the request was not sent, because its person has not consented. Send a new one to be asked again"
        raise Refused(200, UPSTREAM_UNAVAILABLE, text, reason="consent_needed")
    return params | {"inputResponses": msgspec.Raw(encode(answers))}
