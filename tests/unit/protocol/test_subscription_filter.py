"""What a `subscriptions/listen` asks for, and which notifications it gets."""

import sys
from collections import Counter

import msgspec

from gateway.protocol.extensions import Declared
from gateway.protocol.subscription_filter import MAX_EARLY, Filter, SubscriptionFilter, extension_members
from tests.requirements import requirement
from tests.unit.protocol.parts import raw
from transports.jsonrpc import Object, encode_notification, parse

ASKED = Filter.of(
    raw(notifications={"toolsListChanged": True, "promptsListChanged": False, "resourceSubscriptions": ["a"]})
)
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TOOLS = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"


def a_listener(wanted: Filter = ASKED, *declared: str) -> tuple[SubscriptionFilter, list[bytes]]:
    frames: list[bytes] = []
    return SubscriptionFilter(7, wanted, frames.append, Declared(declared)), frames


def methods(frames: list[bytes]) -> list[str]:
    return [str(parse(frame).method) for frame in frames]


def test_a_filter_is_read_and_written_as_the_wire_has_it_and_a_server_fulfils_what_it_has_declared() -> None:
    assert Filter(kinds=frozenset({"toolsListChanged"}), uris=frozenset({"a"})) == ASKED
    assert ASKED.as_notifications() == {"toolsListChanged": True, "resourceSubscriptions": ["a"]}
    assert ASKED and not Filter.of({}) and ASKED.size == 1
    assert (ASKED | Filter(uris=frozenset({"b"}))).uris == {"a", "b"}
    assert ASKED.honoured({"tools": {"listChanged": True}}) == Filter(kinds=frozenset({"toolsListChanged"}))
    assert ASKED.honoured({"resources": {"subscribe": True}}) == Filter(uris=frozenset({"a"}))
    assert not ASKED.honoured({})


def test_only_what_was_asked_for_is_sent_and_under_the_clients_id() -> None:
    listening, frames = a_listener()
    listening.acknowledge(listening.wanted)
    listening.notify("notifications/prompts/list_changed", {}, None)
    listening.notify(UPDATED, raw(uri="b"), "b")
    listening.notify(TOOLS, {}, None)
    listening.notify(UPDATED, raw(uri="a"), "a")
    assert methods(frames) == [ACKNOWLEDGED, TOOLS, UPDATED]
    metas = [msgspec.json.decode(parse(frame).params_object()["_meta"]) for frame in frames]
    assert metas == [{"io.modelcontextprotocol/subscriptionId": 7}] * 3
    others, frames = a_listener(Filter(kinds=frozenset({"promptsListChanged", "resourcesListChanged"})))
    others.acknowledge(others.wanted)
    changed = [f"notifications/{kind}/list_changed" for kind in ("prompts", "resources")]
    for method in (*changed, TOOLS):
        others.notify(method, {}, None)
    assert methods(frames) == [ACKNOWLEDGED, *changed]


@requirement("spec.cold-listen")
def test_all_of_a_part_is_notified_of_if_changes_of_it_may_have_been_missed() -> None:
    listening, frames = a_listener()
    listening.acknowledge(listening.wanted)
    listening.notify_all(ASKED | Filter(kinds=frozenset({"promptsListChanged"}), uris=frozenset({"b"})))
    assert methods(frames) == [ACKNOWLEDGED, TOOLS, UPDATED]
    assert parse(frames[2]).params_object()["uri"] == msgspec.Raw(b'"a"')


@requirement("spec.cold-listen")
def test_the_acknowledgement_is_first_whatever_a_server_sends_on_its_part_of_the_stream() -> None:
    listening, frames = a_listener()
    changed = encode_notification(TOOLS, b"{}")
    below = encode_notification(UPDATED, b'{"uri":"a/b"}')
    of_extension = encode_notification("notifications/com.acme/a", b'{"n":1}')
    for frame in (changed, below, of_extension, changed, below):
        listening.relay(frame)
    assert frames == []
    listening.acknowledge(listening.wanted)
    assert methods(frames) == [ACKNOWLEDGED, TOOLS, UPDATED, "notifications/com.acme/a"]
    listening.relay(below)
    assert frames[-1] == below, "as it is"


@requirement("spec.cold-listen", "wall.structure")
def test_changes_before_the_acknowledgement_cost_as_much_with_many_resources_as_with_one() -> None:
    listening, frames = a_listener(Filter(uris=frozenset(map(str, range(1_000)))))
    below = encode_notification(UPDATED, b'{"uri":"a/b"}')
    listening.relay(below)
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, _: calls.update([event]))
    listening.relay(below)
    sys.setprofile(None)
    assert calls["call"] < 20
    listening.extend(Filter(uris=frozenset({"late"})))
    listening.relay(below)
    listening.acknowledge(listening.wanted)
    assert methods(frames) == [ACKNOWLEDGED, *[UPDATED] * 1_001], "each resource once"


@requirement("ext.relay")
def test_notifications_of_declared_extensions_wait_for_the_acknowledgement_and_keep_their_order() -> None:
    listening, frames = a_listener(Filter(), "com.acme/a")
    for number in range(MAX_EARLY + 1):
        listening.pass_on("notifications/com.acme/a", raw(n=number))
    listening.pass_on("notifications/org.other/b", {})
    assert frames == []
    listening.acknowledge(Filter())
    listening.pass_on("notifications/com.acme/a", {"n": msgspec.Raw(b"1e2")})
    listening.pass_on("notifications/org.other/b", {})
    numbers = [bytes(parse(frame).params_object()["n"]) for frame in frames[1:]]
    assert numbers == [*(b"%d" % number for number in range(MAX_EARLY)), b"1e2"]


@requirement("ext.relay")
def test_what_a_filter_has_beyond_mcp_is_acknowledged_once_a_server_gets_it() -> None:
    params: Object = {"notifications": msgspec.Raw(b'{"toolsListChanged":true,"taskIds":[],"com.acme/a":{"v":1e2}}')}
    assert extension_members(params) == {"com.acme/a": msgspec.Raw(b'{"v":1e2}')} and extension_members({}) == {}
    listening, frames = a_listener(Filter())
    listening.honour(extension_members(params))
    listening.acknowledge(Filter())
    assert b'"notifications":{"com.acme/a":{"v":1e2}}' in frames[0]
