"""What a `subscriptions/listen` asks for, and which notifications it gets."""

import msgspec

from gateway.protocol.extensions import Declared
from gateway.protocol.subscription_filter import MAX_EARLY, Filter, SubscriptionFilter, beyond
from tests.requirements import requirement
from transports.jsonrpc import Object, encode, encode_notification, parse

WANTED: Object = {
    "notifications": msgspec.Raw(b'{"toolsListChanged":true,"promptsListChanged":false,"resourceSubscriptions":["a"]}')
}
ASKED = Filter.of(WANTED)


def a_listener(wanted: Filter = ASKED, *declared: str) -> tuple[SubscriptionFilter, list[bytes]]:
    frames: list[bytes] = []
    return SubscriptionFilter(7, wanted, frames.append, Declared(declared)), frames


def test_a_filter_is_read_and_written_as_the_wire_has_it() -> None:
    wanted = Filter.of(WANTED)
    assert wanted == Filter(kinds=frozenset({"toolsListChanged"}), uris=frozenset({"a"}))
    assert wanted.as_notifications() == {"toolsListChanged": True, "resourceSubscriptions": ["a"]}
    assert wanted and not Filter.of({}) and wanted.size == 1
    assert (wanted | Filter(uris=frozenset({"b"}))).uris == {"a", "b"}


def test_a_server_fulfils_what_it_has_declared() -> None:
    wanted = Filter.of(WANTED)
    assert wanted.honoured({"tools": {"listChanged": True}}) == Filter(kinds=frozenset({"toolsListChanged"}))
    assert wanted.honoured({"resources": {"subscribe": True}}) == Filter(uris=frozenset({"a"}))
    assert not wanted.honoured({})


def test_only_what_was_asked_for_is_sent_and_under_the_clients_id() -> None:
    listening, frames = a_listener()
    listening.acknowledge(listening.wanted)
    listening.notify("notifications/prompts/list_changed", {}, None)
    listening.notify("notifications/resources/updated", {"uri": msgspec.Raw(encode("b"))}, "b")
    listening.notify("notifications/tools/list_changed", {}, None)
    listening.notify("notifications/resources/updated", {"uri": msgspec.Raw(encode("a"))}, "a")
    assert [parse(frame).method for frame in frames] == [
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
        "notifications/resources/updated",
    ]
    metas = [msgspec.json.decode(parse(frame).params_object()["_meta"]) for frame in frames]
    assert metas == [{"io.modelcontextprotocol/subscriptionId": 7}] * 3


@requirement("spec.cold-listen")
def test_all_of_a_part_is_notified_of_if_changes_of_it_may_have_been_missed() -> None:
    listening, frames = a_listener()
    listening.acknowledge(listening.wanted)
    listening.notify_all(Filter.of(WANTED) | Filter(kinds=frozenset({"promptsListChanged"}), uris=frozenset({"b"})))
    sent = [parse(frame) for frame in frames[1:]]
    assert [message.method for message in sent] == [
        "notifications/tools/list_changed",
        "notifications/resources/updated",
    ]
    assert sent[1].params_object()["uri"] == msgspec.Raw(b'"a"')


@requirement("spec.cold-listen")
def test_the_acknowledgement_is_first_whatever_a_server_sends_on_its_part_of_the_stream() -> None:
    listening, frames = a_listener()
    changed = encode_notification("notifications/tools/list_changed", b"{}")
    below = encode_notification("notifications/resources/updated", b'{"uri":"a/b"}')
    of_extension = encode_notification("notifications/com.acme/a", b'{"n":1}')
    for frame in (changed, below, of_extension, changed, below):
        listening.relay(frame)
    assert frames == []
    listening.acknowledge(listening.wanted)
    assert [parse(frame).method for frame in frames] == [
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
        "notifications/resources/updated",
        "notifications/com.acme/a",
    ]
    listening.relay(below)
    assert frames[-1] == below, "as it is"


@requirement("ext.relay")
def test_notifications_of_declared_extensions_wait_for_the_acknowledgement_and_keep_their_order() -> None:
    listening, frames = a_listener(Filter(), "com.acme/a")
    for number in range(MAX_EARLY + 1):
        listening.pass_on("notifications/com.acme/a", {"n": msgspec.Raw(encode(number))})
    listening.pass_on("notifications/org.other/b", {})
    assert frames == []
    listening.acknowledge(Filter())
    listening.pass_on("notifications/com.acme/a", {"n": msgspec.Raw(b"1e2")})
    listening.pass_on("notifications/org.other/b", {})
    assert [parse(frame).params_object().get("n") for frame in frames[1:]] == [
        *(msgspec.Raw(encode(number)) for number in range(MAX_EARLY)),
        msgspec.Raw(b"1e2"),
    ]


@requirement("ext.relay")
def test_what_a_filter_has_beyond_mcp_is_acknowledged_once_a_server_gets_it() -> None:
    params: Object = {"notifications": msgspec.Raw(b'{"toolsListChanged":true,"taskIds":[],"com.acme/a":{"v":1e2}}')}
    assert beyond(params) == {"com.acme/a": msgspec.Raw(b'{"v":1e2}')} and beyond({}) == {}
    listening, frames = a_listener(Filter())
    listening.honour(beyond(params))
    listening.acknowledge(Filter())
    assert b'"notifications":{"com.acme/a":{"v":1e2}}' in frames[0]
