"""A request that differs from a checked one in id, arguments and progress token alone is not checked again."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.requirements import requirement
from tests.unit.transports.inbound.test_posts import MODERN_META, head, posts
from transports.era import MODERN
from transports.inbound.checked_requests import MAX_BYTES, CheckedRequests
from transports.inbound.limits import MAX_ID_CHARS
from transports.inbound.posts import Head
from transports.inbound_port import Refused, Request

pytestmark = requirement("hot.standing")

LEGACY_HEAD = {"mcp_protocol_version": "2025-11-25"}
MODERN_HEAD = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call", "mcp_name": "a"}
UNUSUAL_TOKENS: tuple[Any, ...] = (None, {}, 1.5, True)
ERAS = pytest.mark.parametrize(
    ("named", "more"), [(LEGACY_HEAD, {}), (MODERN_HEAD, {"_meta": MODERN_META})], ids=["legacy", "modern"]
)


def kept_head(**headers: str) -> Head:
    return replace(head(**headers), checked=CheckedRequests())


def request(head: Head, /, client_id: Any = 1, call: str = "tools/call", **params: Any) -> Request:
    body = json.dumps({"jsonrpc": "2.0", "id": client_id, "method": call, "params": params}).encode()
    return posts().request(head, posts().read(body), len(body))


@ERAS
def test_calls_that_differ_in_id_and_arguments_share_what_was_decided(
    named: dict[str, str], more: dict[str, Any]
) -> None:
    head = kept_head(**named)
    first = request(head, name="a", arguments={"n": 1}, **more)
    second = request(head, client_id="x", name="a", arguments={"n": 2}, **more)
    assert first.standing is not None and second.standing is first.standing
    for found, number, client_id in ((first, 1, 1), (second, 2, "x")):
        assert found.message is not None and found.message.id == client_id
        assert json.loads(bytes(found.params["arguments"])) == {"n": number}
        assert found.body_bytes > 0 and found.arrived_at > 0 and (found.check_mirrored is not None) is bool(more)
    assert (second.era, second.meta, second.protocol_version) == (first.era, first.meta, first.protocol_version)
    without = request(head, name="a", **more)
    assert without.standing is first.standing and "arguments" not in without.params


@pytest.mark.parametrize(
    "other",
    [
        {"name": "b"},
        {"name": "a", "_meta": {"x": 1}},
        {"name": "a", "task": {}},
        {"name": "a", "requestState": "s"},
        {"call": "prompts/get", "name": "a"},
        {"arguments": {}},
    ],
    ids=repr,
)
def test_a_request_that_says_anything_else_shares_nothing(other: dict[str, Any]) -> None:
    named = kept_head(**LEGACY_HEAD)
    first = request(named, name="a", arguments={})
    found = request(named, **other)
    assert found.standing is not None and found.standing is not first.standing
    assert request(named, name="a").standing is first.standing, "both are kept"


@ERAS
def test_calls_with_other_progress_tokens_share_what_was_decided_and_have_their_own(
    named: dict[str, str], more: dict[str, Any]
) -> None:
    head, meta = kept_head(**named), {"note": {"x": 1}, **more.get("_meta", {})}
    first = request(head, name="a", _meta={**meta, "progressToken": 1})
    assert first.standing is not None
    for token in (2, "2", 'a "b" \u20ac', -1):
        found = request(head, name="a", _meta={**meta, "progressToken": token})
        assert found.standing is first.standing
        assert found.meta == {**meta, "progressToken": token} == json.loads(bytes(found.params["_meta"]))
    assert first.meta["progressToken"] == 1


@pytest.mark.parametrize(
    "meta",
    [
        *({"note": 1, "progressToken": token} for token in UNUSUAL_TOKENS),
        {"note": 2, "progressToken": 1},
        {"note": 1, "more": 1, "progressToken": 1},
        {"progressToken": 1, "note": 1},
        {"progressToken": 1},
        {"note": 1},
        {},
    ],
    ids=repr,
)
def test_another_meta_or_an_unusual_progress_token_shares_nothing(meta: dict[str, Any]) -> None:
    named = kept_head(**LEGACY_HEAD)
    first = request(named, name="a", _meta={"note": 1, "progressToken": 1})
    found = request(named, name="a", _meta=meta)
    assert found.standing is not first.standing
    assert found.meta == meta
    with pytest.raises(Refused, match="progressToken is longer"):
        request(named, name="a", _meta={"note": 1, "progressToken": "x" * (MAX_ID_CHARS + 1)})


def test_what_each_request_has_of_its_own_is_not_kept() -> None:
    named = kept_head(**LEGACY_HEAD)
    assert request(named, name="a", _meta={"traceparent": "00"}).standing is None
    assert request(named, name="a", note="x" * MAX_BYTES).standing is None


def test_a_connection_keeps_few_and_the_last_ones() -> None:
    named = kept_head(**LEGACY_HEAD)
    first = request(named, name="a").standing
    for number in range(20):
        request(named, name=f"tool {number}", note="x" * 200)
    assert request(named, name="a").standing is not first


def test_the_rules_of_the_wire_hold_for_each_request() -> None:
    named = kept_head(**MODERN_HEAD)
    meta: dict[str, Any] = {"_meta": MODERN_META}
    assert request(named, name="a", **meta).era is MODERN
    for wrong in ({"name": "b", **meta}, {"name": "a"}, {"name": "a", "_meta": {}}, {"call": "ping", **meta}):
        with pytest.raises(Refused):
            request(named, **wrong)
    with pytest.raises(Refused, match="id is longer"):
        request(named, client_id="x" * (MAX_ID_CHARS + 1), name="a", **meta)
    with pytest.raises(Refused):
        posts().request(named, posts().read(b'{"jsonrpc":"2.0","id":1,"result":{}}'), 1)


def test_each_request_has_the_trace_of_its_own_head() -> None:
    named = kept_head(**LEGACY_HEAD)
    request(named, name="a")
    traced = replace(named, headers={**named.headers, "traceparent": "00-x"})
    assert request(traced, name="a").headers["traceparent"] == "00-x"
    assert "traceparent" not in request(named, name="a").headers
