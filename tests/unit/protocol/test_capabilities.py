"""What a client can be asked for, as each era declares it."""

import json
from typing import Any

import msgspec
import pytest

from gateway.protocol.capabilities import Caller, caller_of_meta, caller_of_params, may_be_asked
from transports.jsonrpc import encode

INFO = {"name": "c", "version": "1"}


def modern(capabilities: Any, **more: Any) -> Caller:
    spec = "io.modelcontextprotocol/"
    return caller_of_meta({f"{spec}clientInfo": INFO, f"{spec}clientCapabilities": capabilities, **more})


def legacy(capabilities: Any) -> Caller:
    return caller_of_params(encode({"clientInfo": INFO, "capabilities": capabilities}))


def test_the_same_capabilities_are_the_same_bytes_whichever_era_declared_them() -> None:
    one = modern({"roots": {"listChanged": True}, "elicitation": {"url": {}, "form": {}}, "x": {}})
    other = legacy({"elicitation": {"form": {}, "url": {}}, "roots": {}})
    assert one == other and json.loads(one.capabilities) == {"elicitation": {"form": {}, "url": {}}, "roots": {}}


def test_an_empty_elicitation_capability_means_forms() -> None:
    """As before URLs came (MCP 2025-11-25, Elicitation)."""
    assert json.loads(legacy({"elicitation": {}}).capabilities) == {"elicitation": {"form": {}}}


@pytest.mark.parametrize("declared", [None, [], "all", {"elicitation": True, "sampling": None}])
def test_what_is_no_declaration_declares_nothing(declared: Any) -> None:
    assert modern(declared).capabilities == legacy(declared).capabilities == b"{}"


def test_a_client_without_a_name_is_unknown_and_a_long_name_is_cut() -> None:
    assert (caller_of_meta({}).name, caller_of_params(b"").version) == ("unknown", "0")
    long = caller_of_params(encode({"clientInfo": {"name": "n" * 1_000, "version": "v" * 1_000}}))
    assert (len(long.name), len(long.version)) == (128, 64)


def test_a_log_level_comes_with_a_modern_request_only() -> None:
    level = {"io.modelcontextprotocol/logLevel": "debug"}
    assert modern({}, **level).log_level == "debug" and legacy({}).log_level == ""
    assert modern({}, **{"io.modelcontextprotocol/logLevel": 7}).log_level == ""


@pytest.mark.parametrize(
    ("capabilities", "method", "params", "may"),
    [
        (b'{"elicitation":{"form":{}}}', "elicitation/create", {}, True),
        (b'{"elicitation":{"form":{}}}', "elicitation/create", {"mode": "form"}, True),
        (b'{"elicitation":{"form":{}}}', "elicitation/create", {"mode": "url"}, False),
        (b'{"elicitation":{"url":{}}}', "elicitation/create", {"mode": "url"}, True),
        (b'{"elicitation":{"url":{}}}', "elicitation/create", {}, False),
        (b"{}", "elicitation/create", {}, False),
        (b'{"sampling":{}}', "sampling/createMessage", {}, True),
        (b'{"sampling":{}}', "roots/list", {}, False),
        (b'{"roots":{}}', "roots/list", {}, True),
    ],
)
def test_a_client_is_asked_for_what_it_has_declared(
    capabilities: bytes, method: str, params: dict[str, str], may: bool
) -> None:
    raw = {name: msgspec.Raw(encode(value)) for name, value in params.items()}
    assert may_be_asked(capabilities, method, raw) is may


def test_a_caller_introduces_itself_to_servers_of_both_eras() -> None:
    caller = modern({"roots": {}})
    shaken = json.loads(caller.initialize_params())
    assert shaken == {"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": INFO}
    meta = {key.rpartition("/")[2]: json.loads(bytes(value)) for key, value in caller.meta("info").items()}
    assert meta == {
        "protocolVersion": "2026-07-28",
        "clientInfo": INFO,
        "clientCapabilities": {"roots": {}},
        "logLevel": "info",
    }
    assert not any(key.endswith("logLevel") for key in caller.meta(""))
