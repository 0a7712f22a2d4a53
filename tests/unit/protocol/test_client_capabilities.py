"""What a client can be asked for, as each era declares it."""

import json
from typing import Any

import msgspec
import pytest

from gateway.protocol.client_capabilities import (
    MAX_INFO_BYTES,
    ClientDeclaration,
    capability_for,
    declaration_in_meta,
    declaration_in_params,
    may_be_asked,
    refusal,
)
from tests.requirements import requirement
from tests.unit.protocol.parts import raw
from transports.jsonrpc import INVALID_PARAMS, encode

INFO = {"name": "c", "version": "1"}
FORMS: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
APPS: dict[str, Any] = {"io.modelcontextprotocol/ui": {"mimeTypes": ["a"]}}


def of_spec(**members: Any) -> dict[str, Any]:
    return {f"io.modelcontextprotocol/{name}": value for name, value in members.items()}


def modern(capabilities: Any, **more: Any) -> ClientDeclaration:
    return declaration_in_meta(encode(of_spec(clientInfo=INFO, clientCapabilities=capabilities, **more)))


def legacy(capabilities: Any) -> ClientDeclaration:
    return declaration_in_params(encode({"clientInfo": INFO, "capabilities": capabilities}))


@pytest.mark.parametrize(
    ("declared", "kept"),
    [
        ({"roots": {"listChanged": True}, "elicitation": {"url": {}, "form": {}}}, FORMS | {"roots": {}}),
        ({"elicitation": {}}, {"elicitation": {"form": {}}}),  # as before URLs came (MCP 2025-11-25, Elicitation)
        ({"elicitation": {"applyDefaults": True}}, {"elicitation": {"form": {}, "applyDefaults": True}}),
        ({"elicitation": {"form": None, "url": {}}}, {"elicitation": {"url": {}}}),
        ({"elicitation": {"url": None}, "sampling": {"tools": None}}, {"elicitation": {"form": {}}, "sampling": {}}),
        *((None, {}), ([], {}), ("all", {}), ({"elicitation": True, "sampling": None}, {})),
        ({"tasks": {"list": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, {}),
        ({"extensions": {"io.modelcontextprotocol/tasks": {}} | APPS}, {"extensions": APPS}),
    ],
)
def test_each_era_declares_the_same_in_the_same_bytes_and_no_tasks_to_the_other(declared: Any, kept: Any) -> None:
    assert modern(declared) == legacy(declared) == legacy(kept)
    assert json.loads(modern(declared).capabilities) == kept


def test_a_client_without_a_name_is_unknown_and_a_long_name_is_cut() -> None:
    for declaration in (
        declaration_in_meta(b"{}"),
        declaration_in_params(b""),
        declaration_in_params(b'{"clientInfo":{"name":null}}'),
    ):
        assert json.loads(declaration.info) == {"name": "unknown", "version": "0"}
    long = json.loads(declaration_in_params(encode({"clientInfo": {"name": "n" * 1_000, "version": "v" * 1_000}})).info)
    assert (len(long["name"]), len(long["version"])) == (128, 64)


@requirement("ext.relay")
def test_what_a_client_says_of_itself_and_declares_beyond_the_core_passes_as_it_is_written() -> None:
    info = b'{"name":"c","title":"C\\u00e9","version":"1","icons":[{"src":"x:1"}],"websiteUrl":"https:\\/\\/c","x":1e2}'
    beyond = b'"extensions":{"com.acme/b":{"n":1.0,"m":1e2},"com.acme/a":{}},"experimental":{"z":{}},"widgets":{"y":[]}'
    declared = b'{"roots":{"listChanged":true},' + beyond + b"}"
    one = declaration_in_params(b'{"clientInfo":' + info + b',\n"capabilities":' + declared + b"}")
    spec = b"io.modelcontextprotocol/"
    meta = b'{"' + spec + b'clientInfo":' + info + b',"' + spec + b'clientCapabilities":' + declared + b"}"
    assert declaration_in_meta(meta) == one
    assert one.info == info and one.capabilities == b'{"roots":{},' + beyond + b"}"
    shaken = one.initialize_params()
    assert info in shaken and beyond in shaken
    assert bytes(one.meta("")["io.modelcontextprotocol/clientInfo"]) == info
    lines = declaration_in_params(b'{"clientInfo":{\n"name":"c",\n"version":"1"},"capabilities":{"x":{\n"a":1}}}')
    assert b"\n" not in lines.initialize_params(), "they are part of a line of stdio"
    assert json.loads(lines.capabilities) == {"x": {"a": 1}}


@requirement("ext.relay")
def test_large_capabilities_have_a_short_key_of_their_own_and_large_icons_are_left_out() -> None:
    small, large, other = (legacy({"extensions": {"com.acme/a": {"s": "x" * size}}}) for size in (1, 5_000, 5_001))
    assert small.key == small.capabilities and len(large.key) == 64 and large.key != other.key
    info = INFO | {"title": "T", "icons": [{"src": "data:" + "x" * MAX_INFO_BYTES}]}
    assert json.loads(declaration_in_params(encode({"clientInfo": info})).info) == INFO | {"title": "T"}


@pytest.mark.parametrize(
    ("capabilities", "method", "params", "may"),
    [
        (b'{"elicitation":{"form":{}}}', "elicitation/create", {}, True),
        (b'{"elicitation":{"form":{}}}', "elicitation/create", {"mode": "form"}, True),
        (b'{"elicitation":{"form":{}}}', "elicitation/create", {"mode": None}, True),
        (b'{"elicitation":{"form":{}}}', "elicitation/create", {"mode": "url"}, False),
        (b'{"elicitation":{"url":{}}}', "elicitation/create", {"mode": "url"}, True),
        (b'{"elicitation":{"url":{}}}', "elicitation/create", {}, False),
        (b'{"elicitation":{"url":{}}}', "elicitation/create", {"mode": None}, False),
        (b"{}", "elicitation/create", {}, False),
        (b'{"sampling":{}}', "sampling/createMessage", {}, True),
        (b'{"sampling":{}}', "sampling/createMessage", {"tools": None, "toolChoice": None}, True),
        (b'{"sampling":{}}', "sampling/createMessage", {"tools": []}, False),
        (b'{"sampling":{}}', "sampling/createMessage", {"toolChoice": {"mode": "none"}}, False),
        (b'{"sampling":{"tools":{}}}', "sampling/createMessage", {"toolChoice": {"mode": "auto"}}, True),
        (b'{"sampling":{}}', "roots/list", {}, False),
        (b'{"roots":{}}', "roots/list", {}, True),
        (b'{"extensions":{"com.acme/ask":{}}}', "com.acme/ask/name", {}, True),
        (b'{"extensions":{"com.acme/ask":{}}}', "com.other/ask", {}, False),
        (b'{"experimental":{"ask":{}}}', "ask/name", {}, True),
    ],
)
def test_a_client_is_asked_for_what_it_has_declared(
    capabilities: bytes, method: str, params: dict[str, Any], may: bool
) -> None:
    assert may_be_asked(capabilities, method, raw(**params)) is may


def test_a_missing_capability_is_named_with_the_part_that_a_request_needs() -> None:
    assert capability_for("sampling/createMessage", raw(tools=[])) == {"sampling": {"tools": {}}}
    assert capability_for("elicitation/create", {}) == {"elicitation": {"form": {}}}
    assert capability_for("roots/list", {}) == {"roots": {}}
    assert capability_for("com.acme/ask/name", {}) == {"extensions": {"com.acme/ask": {}}}
    code, text = refusal(b'{"sampling":{}}', "sampling/createMessage", raw(tools=[])) or (0, "")
    assert code == INVALID_PARAMS and text.startswith("The client has not declared sampling.tools")
    modes: list[Any] = [[], {}, 1]
    for mode in modes:  # an error of the server
        with pytest.raises(msgspec.MsgspecError):
            may_be_asked(b'{"elicitation":{}}', "elicitation/create", raw(mode=mode))


def test_a_declaration_goes_to_servers_of_both_eras() -> None:
    declaration = modern({"roots": {}})
    shaken = json.loads(declaration.initialize_params())
    assert shaken == {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": INFO}
    plain = of_spec(protocolVersion="2026-07-28", clientInfo=INFO, clientCapabilities={"roots": {}})
    assert modern({}, logLevel="debug").log_level == "debug"
    assert modern({}, logLevel=7).log_level == legacy({}).log_level == "", "it comes with a modern request only"
    assert declaration.meta("") == raw(**plain) and declaration.meta("info") == raw(**plain, **of_spec(logLevel="info"))
