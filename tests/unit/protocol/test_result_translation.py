"""Results and errors of servers of one era, for clients of the other."""

import json
from typing import Any

import msgspec
import pytest

from gateway.protocol.result_translation import (
    Missing,
    legacy_error,
    legacy_result,
    list_result,
    missing_meta,
    modern_error,
    modern_result,
    urls_required,
)
from tests.requirements import requirement
from tests.unit.protocol.parts import raw
from transports.era import Era
from transports.jsonrpc import INVALID_PARAMS, encode

INFO = b'{"name":"s"}'
NAMED = {"io.modelcontextprotocol/serverInfo": {"name": "s"}}


def test_a_merged_list_may_be_cached_as_long_as_its_shortest_part() -> None:
    body: dict[str, Any] = {"tools": []}
    pages: list[dict[str, Any]] = [{"ttlMs": 60}, {"ttlMs": 5, "cacheScope": "public"}]
    for parts, ttl_ms in ((pages, 5), ([{"ttlMs": 60}, {}], 0), ([], 0)):
        told = list_result(Era.MODERN, body, parts)
        assert told == {"tools": [], "resultType": "complete", "ttlMs": ttl_ms, "cacheScope": "private"}
    assert list_result(Era.LEGACY, body, pages) is body


def test_a_legacy_result_gets_what_the_modern_era_wants() -> None:
    told = modern_result("tools/call", raw(content=[], _meta={"a": 1}), INFO)
    assert told == raw(content=[], resultType="complete", _meta=NAMED | {"a": 1})
    tools = [{"name": "a", "execution": {"taskSupport": "required"}}, {"name": "b"}]
    listed = modern_result("tools/list", raw(tools=tools), INFO)
    more = raw(resultType="complete", ttlMs=0, cacheScope="private", _meta=NAMED)
    assert listed == raw(tools=[{"name": "a"}, {"name": "b"}]) | more, "the modern era has no such tasks"


def test_a_resource_that_is_not_found_has_another_code_in_the_modern_era() -> None:
    error = {"code": -32002, "message": "not found", "data": {"uri": "x"}}
    assert json.loads(bytes(modern_error(msgspec.Raw(encode(error))))) == {**error, "code": INVALID_PARAMS}
    other = msgspec.Raw(b'{"code": -32000, "message": "x"}')
    assert modern_error(other) is other


@requirement("spec.letter")
@pytest.mark.parametrize(
    ("code", "data", "told"),
    [
        (-32019, 7, -32019),
        *((reserved, 7, -32603) for reserved in (-32020, -32042, -32099)),
        (-32021, {"requiredCapabilities": {"sampling": {}}}, -32021),
        *((-32021, other, -32603) for other in ({"requiredCapabilities": "sampling"}, {}, None)),
    ],
)
def test_a_code_that_the_modern_era_has_reserved_is_not_sent_for_something_else(
    code: int, data: Any, told: int
) -> None:
    error = {"code": code, "message": "of the server's own", "data": data}
    assert json.loads(bytes(modern_error(msgspec.Raw(encode(error))))) == error | {"code": told}


def test_urls_that_a_user_has_to_visit_are_found_in_the_error() -> None:
    error = {"code": -32042, "message": "go", "data": {"elicitations": [{"url": "https://a.example"}, "no object"]}}
    assert urls_required(msgspec.Raw(encode(error))) == [raw(url="https://a.example")]
    assert urls_required(msgspec.Raw(encode({**error, "code": -32000}))) is None
    for data in (None, 7, {}, {"elicitations": 7}):
        assert urls_required(msgspec.Raw(encode({**error, "data": data}))) is None, "an error like others"


@requirement("spec.bridge")
def test_a_resource_that_is_not_found_has_its_own_code_in_the_legacy_era() -> None:
    params = raw(uri="x://y")

    def code(method: str, message: str, data: Any = None) -> int:
        error = {"code": INVALID_PARAMS, "message": message} | ({} if data is None else {"data": data})
        told = json.loads(bytes(legacy_error(method, params, msgspec.Raw(encode(error)))))
        assert {**told, "code": INVALID_PARAMS} == error, "the rest stays"
        return int(told["code"])

    assert code("resources/read", "gone", {"uri": "x://y"}) == -32002
    assert code("resources/read", "Resource not found: x://y") == code("resources/read", "Resource x://y not found")
    assert code("resources/read", "Resource not found", "no object") == -32002
    assert code("resources/read", "Resource not found", {"uri": "x://other"}) == INVALID_PARAMS, "another resource"
    assert code("resources/read", "The URI has no host") == INVALID_PARAMS, "another fault"
    assert code("tools/call", "Resource not found", {"uri": "x://y"}) == INVALID_PARAMS, "only of reads"
    other = msgspec.Raw(b'{"code": -32603, "message": 7, "data": {"uri": "x://y"}}')
    assert legacy_error("resources/read", params, other) is other
    odd = msgspec.Raw(b'{"code": -32602, "message": 7, "data": 1e400}')
    assert legacy_error("resources/read", params, odd) is odd


@requirement("spec.nothing-invented")
def test_a_modern_result_loses_what_the_handshake_era_does_not_know() -> None:
    known = raw(content=[], structuredContent={"a": 1}, _meta={"a": 1})
    modern = known | raw(resultType="complete", ttlMs=5, cacheScope="public", _meta=NAMED | {"a": 1})
    assert legacy_result("tools/call", modern) == known
    listed = raw(content=[], structuredContent=[1], _meta=NAMED)
    assert legacy_result("tools/call", listed) == raw(content=[]), "structured content had to be an object"
    own = raw(content=[], _meta={})
    assert legacy_result("tools/call", own) == own, "an empty _meta of the server's own"
    assert "_meta" not in modern_result("tools/call", raw(content=[]), b"{}"), "the server has not named itself"


@requirement("ext.relay")
def test_results_of_methods_beyond_mcp_keep_what_only_their_extension_understands() -> None:
    own = raw(ttlMs=5, cacheScope="x", structuredContent=[1])
    typed = own | raw(resultType="com.acme/partial")
    assert legacy_result("com.acme/do", own | raw(resultType="complete")) == own
    assert legacy_result("com.acme/do", typed) == typed
    assert modern_result("com.acme/do", own, b"{}") == own | raw(resultType="complete")
    assert modern_result("com.acme/do", typed, b"{}") == typed


@requirement("proc.late")
def test_an_entry_says_since_when_and_when_the_server_is_tried_again() -> None:
    assert missing_meta([Missing("a", "it exited", 0.0, 1.5), Missing("b", "it has not answered yet", 60.0)]) == [
        {"server": "a", "reason": "it exited", "since": "1970-01-01T00:00:00+00:00", "retryAfterMs": 1_500},
        {"server": "b", "reason": "it has not answered yet", "since": "1970-01-01T00:01:00+00:00"},
    ]
    (entry,) = missing_meta([Missing("a", "it exited", 0.0, 0.0)])
    assert entry["retryAfterMs"] == 1, "it is tried again now, and cannot be asked at once"
