"""The legacy handshake and the modern discovery, each made of the other, and one made of several."""

import json
from typing import Any

import pytest

from gateway.protocol.extensions import SKILLS
from gateway.protocol.handshake import (
    capabilities_of,
    discovery_of,
    handshake_of,
    is_lower,
    limit_version,
    merge_discoveries,
    merge_handshakes,
    server_info_of,
    version_of,
    with_known_version,
)
from tests.requirements import requirement
from tests.support.too_deep import TOO_DEEP
from tests.unit.protocol.parts import raw
from transports.era import HANDSHAKE_VERSIONS, MODERN_VERSIONS
from transports.jsonrpc import encode


def shaken(version: str = "2025-11-25", **more: Any) -> bytes:
    """An `initialize` result."""
    info = {"name": "s", "version": "1"}
    return encode({"protocolVersion": version, "capabilities": {}, "serverInfo": info, **more})


def test_a_version_of_the_handshake_era_is_asked_for_as_it_is_and_the_newest_for_any_other() -> None:
    for version in HANDSHAKE_VERSIONS:
        params = raw(protocolVersion=version, x=1)
        assert with_known_version(params) is params
    newest = raw(protocolVersion=HANDSHAKE_VERSIONS[-1])
    for other in ("2026-07-28", "1.0", 7, None):
        assert with_known_version(raw(protocolVersion=other, x=1)) == newest | raw(x=1)
    assert with_known_version({}) == newest


def test_a_client_gets_no_newer_version_than_it_asked_for() -> None:
    for negotiated, asked, told in (
        ("2025-11-25", "2025-03-26", "2025-03-26"),
        ("2025-03-26", "2025-11-25", "2025-03-26"),
        ("2025-06-18", "2025-06-18", "2025-06-18"),
        ("2025-11-25", "2026-07-28", "2025-11-25"),
        ("of-its-own", "2025-03-26", "of-its-own"),
    ):
        assert version_of(limit_version(shaken(negotiated), asked)) == told, (negotiated, asked)


def test_a_server_that_has_shaken_hands_is_discovered_without_what_the_modern_era_does_not_know() -> None:
    declared = {"tools": {"listChanged": True}, "logging": {}, "tasks": {}}
    told = json.loads(discovery_of(shaken(capabilities=declared, instructions="be kind")))
    assert told["capabilities"] == {"tools": {"listChanged": True}, "logging": {}}
    assert told["supportedVersions"] == list(MODERN_VERSIONS) and told["resultType"] == "complete"
    assert (told["ttlMs"], told["cacheScope"], told["instructions"]) == (0, "private", "be kind")
    assert told["_meta"]["io.modelcontextprotocol/serverInfo"] == told["serverInfo"] == {"name": "s", "version": "1"}
    assert "instructions" not in json.loads(discovery_of(shaken()))


def test_a_server_that_was_discovered_shakes_hands_in_a_version_of_the_client() -> None:
    discovered = encode({"capabilities": {"tools": {}, "tasks": {}}, "serverInfo": {"name": "m"}, "ttlMs": 5})
    plain = {"capabilities": {"tools": {}}, "serverInfo": {"name": "m"}}
    for asked, told in (("2025-03-26", "2025-03-26"), ("2026-07-28", "2025-11-25")):
        assert json.loads(handshake_of(discovered, asked)) == {"protocolVersion": told, **plain}
    in_meta = {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "m"}}}
    assert json.loads(handshake_of(encode(in_meta), ""))["serverInfo"] == {"name": "m"}, "its name may stand there"
    assert json.loads(handshake_of(b"{}", ""))["serverInfo"]["name"] == "unknown"


BEYOND = b'{"widgets":{},"extensions":{"com.acme/b":{"n":1.0,"m":1e2,"t":"\\u00e9"},"com.acme/a":{}},'
BEYOND += b'"experimental":{"z":{}}}'


@requirement("ext.relay")
def test_what_a_server_declares_beyond_the_core_passes_to_the_other_era_as_it_is_written() -> None:
    info = b'{"name":"s","version":"1","icons":[{"src":"x:1"}],"websiteUrl":"https:\\/\\/s","x":1e2}'
    own = b'"x-own":{"k":[1.0]},"_meta":{"com.acme/m":1e2}'
    result = b'{"protocolVersion":"2025-11-25","capabilities":' + BEYOND + b',"serverInfo":' + info + b"," + own + b"}"
    discovered = discovery_of(result)
    assert b'"capabilities":' + BEYOND + b"," in discovered and discovered.count(info) == 2
    assert b'"com.acme/m":1e2' in discovered and b'"x-own":{"k":[1.0]}' in discovered
    back = handshake_of(discovered, "2025-11-25")
    assert json.loads(back) == json.loads(result) and b'"capabilities":' + BEYOND + b"," in back and info in back


@requirement("ext.relay")
def test_a_handled_extension_is_not_declared_to_the_other_era() -> None:
    both: Any = {"extensions": {"io.modelcontextprotocol/tasks": {}, "io.modelcontextprotocol/ui": {}}}
    for told in (handshake_of(encode({"capabilities": both}), ""), discovery_of(shaken(capabilities=both))):
        assert capabilities_of(told) == {"extensions": {"io.modelcontextprotocol/ui": {}}}


@requirement("ext.relay")
@pytest.mark.parametrize("merge", [merge_handshakes, merge_discoveries])
def test_extensions_of_several_servers_are_together_with_the_settings_of_the_first_that_has_each(merge: Any) -> None:
    one = b'{"capabilities":' + BEYOND + b',"x-own":1.0}'
    extensions = {"com.acme/a": {"second": 1}, "com.acme/b": {}, "org.other/c": {}}
    declared = {"extensions": extensions, "experimental": {"z": {"second": 1}, "y": {}}}
    merged = merge([one, encode({"capabilities": declared, "x-own": 2, "x-two": 3})], "9")
    assert capabilities_of(merged) == {
        "widgets": {},
        "extensions": {"com.acme/a": {}, "com.acme/b": {"n": 1, "m": 100, "t": "é"}, "org.other/c": {}},
        "experimental": {"z": {}, "y": {}},
    }
    assert b'{"n":1.0,"m":1e2,"t":"\\u00e9"}' in merged, "as it is written"
    assert b'"x-own":1.0' in merged and json.loads(merged)["x-two"] == 3


@pytest.mark.parametrize("result", [b"[]", b"7", b'{"capabilities":[],"serverInfo":7,"instructions":{},"_meta":[]}'])
def test_a_result_that_makes_no_sense_does_no_harm(result: bytes) -> None:
    for made in (discovery_of(result), handshake_of(result, ""), merge_handshakes([result] * 2, "9")):
        assert json.loads(made)["capabilities"] == {}
    assert json.loads(merge_discoveries([result] * 2, "9"))["ttlMs"] == 0
    assert capabilities_of(None) == capabilities_of(b'{"capabilities":7}') == {} and version_of(b"{}") == ""


def test_one_handshake_passes_as_it_is_and_several_have_the_oldest_version_and_every_capability() -> None:
    assert merge_handshakes([shaken()], "9") == shaken() and merge_discoveries([b"{ }"], "9") == b"{ }"
    assert json.loads(server_info_of(shaken())) == {"name": "s", "version": "1"}
    one = shaken("2025-06-18", capabilities={"tools": {"listChanged": True}}, instructions="one")
    two = shaken("2025-11-25", capabilities={"tools": {}, "logging": {}}, instructions="two")
    assert json.loads(merge_handshakes([one, two], "9")) == {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {"listChanged": True}, "logging": {}},
        "instructions": "one\n\ntwo",
        "serverInfo": {"name": "mcp-session-gateway", "version": "9"},
    }


def test_several_discoveries_may_be_cached_for_the_shortest_time_and_by_the_client_only() -> None:
    one = {"supportedVersions": ["2026-07-28", "x"], "capabilities": {"tools": {}}, "ttlMs": 60, "cacheScope": "public"}
    two = {"supportedVersions": ["2026-07-28"], "capabilities": {"prompts": {}}, "ttlMs": 5}
    told = json.loads(merge_discoveries([encode(one), encode(two)], "9"))
    assert (told["ttlMs"], told["cacheScope"], told["supportedVersions"]) == (5, "private", ["2026-07-28"])
    changing = {"listChanged": True}
    assert told["capabilities"] == {"tools": changing, "prompts": changing}, "the gateway notifies of changes itself"


@requirement("spec.skills")
def test_directories_can_be_read_if_they_can_at_any_server() -> None:
    reading: Any = {SKILLS: {"directoryRead": True, "a": 1}}
    pairs: list[Any] = [(reading, {SKILLS: {}}), ({SKILLS: {"directoryRead": False}}, reading)]
    for first, second in pairs:
        results = [shaken(capabilities={"extensions": extensions}) for extensions in (first, second)]
        assert capabilities_of(merge_handshakes(results, "9"))["extensions"][SKILLS] == reading[SKILLS]
    assert capabilities_of(merge_handshakes([shaken(capabilities={"extensions": {SKILLS: {}}}), shaken()], "9")) == {
        "extensions": {SKILLS: {}}
    }


@requirement("proc.late")
def test_every_list_is_declared_while_servers_are_missing() -> None:
    changing = {"listChanged": True}
    skills = {"extensions": {SKILLS: {"directoryRead": True}}}
    lists = {"tools": changing, "prompts": changing, "resources": changing} | skills
    one = shaken(capabilities={"logging": {}, "resources": {"subscribe": True}})
    told = json.loads(merge_handshakes([one], "9", incomplete=True))
    assert told["capabilities"] == lists | {"logging": {}, "resources": {"subscribe": True, "listChanged": True}}
    assert capabilities_of(merge_handshakes([], "9", incomplete=True)) == lists
    found = json.loads(merge_discoveries([], "9", incomplete=True))
    assert found["capabilities"] == lists and found["supportedVersions"] == [*MODERN_VERSIONS]
    cacheable = encode({"supportedVersions": [*MODERN_VERSIONS], "capabilities": {}, "ttlMs": 60_000})
    assert json.loads(merge_discoveries([cacheable], "9", incomplete=True))["ttlMs"] == 0


def test_a_number_that_no_float_holds_hides_no_capability() -> None:
    result = shaken().replace(b'"capabilities":{}', b'"capabilities":{"experimental":{"x":1e400},"tools":{}}')
    assert capabilities_of(result)["tools"] == {}
    for unreadable in (b"1", b'{"a":"\xff"}', b'{"a":' + TOO_DEEP + b"}"):
        assert capabilities_of(shaken().replace(b'"capabilities":{}', b'"capabilities":' + unreadable)) == {}


LOGS, SILENT = b'{"capabilities":{"logging":{}}}', b'{"capabilities":{}}'


@pytest.mark.parametrize(
    ("level", "present", "handshake", "expected"),
    [
        ("info", "", LOGS, True),
        ("debug", "info", LOGS, True),
        ("error", "info", LOGS, False),
        ("info", "info", LOGS, False),
        ("info", "", SILENT, False),
        ("info", "", None, False),
        ("loud", "", LOGS, False),
    ],
)
def test_a_server_is_asked_for_a_lower_level_only(
    level: str, present: str, handshake: bytes | None, expected: bool
) -> None:
    assert is_lower(level, present, handshake) is expected
