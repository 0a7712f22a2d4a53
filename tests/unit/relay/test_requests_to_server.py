"""What one session may not take from the others that share its server's process."""

from typing import Any

import msgspec
import pytest

from gateway.calls.live_session import LiveSession
from gateway.protocol.subscription_filter import Filter, SubscriptionFilter
from gateway.relay.requests_to_server import params_for_shared
from tests.support.fake_upstream import a_live
from transports.era import LOG_LEVELS
from transports.jsonrpc import encode


def other(*listened: str, **fields: Any) -> LiveSession:
    live = a_live(**fields)
    live.subscriptions += [SubscriptionFilter(1, Filter(uris=frozenset({uri})), lambda frame: True) for uri in listened]
    return live


def params(**members: Any) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(encode(value)) for name, value in members.items()}


def test_a_subscription_ends_with_the_last_session_that_holds_it() -> None:
    uri = params(uri="note://a")
    assert params_for_shared("resources/unsubscribe", uri, [other(subscriptions=("note://a",)), other()]) is None
    assert params_for_shared("resources/unsubscribe", uri, [other(subscriptions=("note://b",))]) is uri
    assert params_for_shared("resources/unsubscribe", uri, []) is uri
    assert params_for_shared("resources/unsubscribe", uri, [other("note://b", "note://a", era="modern")]) is None
    assert params_for_shared("resources/unsubscribe", uri, [other("note://b", era="modern")]) is uri


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_the_process_has_the_lowest_level_that_any_session_asked_for(level: str) -> None:
    wanted = params_for_shared("logging/setLevel", params(level=level), [other(log_level="warning"), other()])
    assert wanted == params(level=min(level, "warning", key=LOG_LEVELS.index))
    wanted = params_for_shared("logging/setLevel", params(level=level), [other()], "info")
    assert wanted == params(level=min(level, "info", key=LOG_LEVELS.index)), "a call of a modern client asked for it"
    unknown, call = params(level="loud"), params(name="x")
    assert params_for_shared("logging/setLevel", unknown, [other(log_level=level)]) is unknown, "for it to refuse"
    assert params_for_shared("tools/call", call, [other()]) is call
