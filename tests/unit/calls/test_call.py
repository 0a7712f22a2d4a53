"""A call is a value: other params make another call, and the first stays as it is."""

import msgspec

from gateway.calls.call import Call
from gateway.calls.exchange import Exchange
from transports.era import Era
from transports.jsonrpc import Object
from transports.reply_queue import ReplyQueue


def call(params: Object) -> Call:
    exchange = Exchange(method="tools/call", client_id=1, live=None, replies=ReplyQueue())
    return Call(exchange, Era.MODERN, params, {"traceparent": msgspec.Raw(b'"t"')}, "c", lambda _: None)


def test_other_params_make_another_call_of_the_same_exchange() -> None:
    first = call({"name": msgspec.Raw(b'"a"')})
    other = first.with_params({"name": msgspec.Raw(b'"b"')})
    assert first.params == {"name": msgspec.Raw(b'"a"')} and other.params == {"name": msgspec.Raw(b'"b"')}
    assert other.exchange is first.exchange and other.meta is first.meta and other.era is Era.MODERN
    assert other.check_mirrored is first.check_mirrored and other.correlation == "c"


def test_the_same_params_make_no_other_call() -> None:
    first = call({})
    assert first.with_params(first.params) is first


def test_a_request_of_the_gateways_own_mirrors_nothing() -> None:
    asked = call({}).asking({}, {})
    assert asked.check_mirrored is None and asked.meta == {} and asked.method == "tools/call"
