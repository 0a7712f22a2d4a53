"""What upstreams and tools are told of a session, and what clients cannot make them believe."""

import json
from typing import Any

import msgspec
import pytest

from gateway.context.facts import (
    CONTEXT_KEY,
    SESSION_KEY,
    announced_workspace,
    child_environment,
    context_meta,
    correlation_id,
    fact_of,
    facts_of,
    new_correlation_id,
    with_context,
    with_meta,
    without_our_keys,
)
from session_store import ClientFacts, Context
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused
from transports.jsonrpc import encode

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@requirement("ctx.correlation")
def test_a_valid_traceparent_names_the_request_and_meta_comes_before_the_header() -> None:
    other = PARENT.replace("0af7", "0af8")
    assert correlation_id({"traceparent": PARENT}, {}) == TRACE
    assert correlation_id({"traceparent": other}, {"traceparent": PARENT}) == TRACE
    assert correlation_id({"traceparent": PARENT}, {"traceparent": "nonsense"}) == TRACE


@requirement("ctx.correlation")
@pytest.mark.parametrize(
    "value",
    [
        "",
        TRACE,
        PARENT.upper(),
        PARENT.replace("00-", "01-", 1),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        PARENT + "-x",
        7,
    ],
)
def test_any_other_traceparent_is_ignored(value: Any) -> None:
    fresh = correlation_id({"traceparent": str(value)}, {"traceparent": value})
    assert len(fresh) == 32 and fresh != TRACE and int(fresh, 16) >= 0
    assert new_correlation_id() != new_correlation_id()


@requirement("ctx.announce")
@pytest.mark.parametrize(
    ("meta", "workspace"),
    [
        ({"orbit": {"workspace": "red"}}, "red"),
        ({"orbit.workspace": "red"}, "red"),
        ({"orbit.workspace": "red", "orbit": {"workspace": "blue"}}, "red"),
        ({"orbit": {"workspace": ""}}, ""),
        ({"orbit": "red"}, ""),
        ({}, ""),
    ],
)
def test_a_workspace_is_announced_nested_or_dotted(meta: Any, workspace: str) -> None:
    assert announced_workspace(meta, "orbit.workspace") == workspace


@requirement("ctx.announce")
@pytest.mark.parametrize("value", [7, ["red"], {"a": 1}, True])
def test_a_workspace_that_is_no_text_is_refused_by_its_path(value: Any) -> None:
    with pytest.raises(Refused, match=r"orbit\.workspace"):
        announced_workspace({"orbit": {"workspace": value}}, "orbit.workspace")


@requirement("ctx.env")
def test_a_missing_fact_is_an_empty_string() -> None:
    session = a_session(FakeClock(), context=Context())
    environment = child_environment(session, {"A": "workspace", "B": "session_id", "C": "correlation_id"}, "c-1")
    assert environment == {"A": "", "B": session.id, "C": "c-1"}
    assert facts_of(session, "c-1")["correlation_id"] == "c-1" and fact_of(session, "session_id") == session.id


@requirement("ctx.env", "ctx.unforgeable")
def test_an_environment_holds_no_nul_and_no_half_of_a_surrogate_pair() -> None:
    session = a_session(FakeClock(), client=ClientFacts(name="a\0b\ud800"))
    assert child_environment(session, {"A": "agent"}, "") == {"A": "ab?"}


def test_the_context_in_meta_has_every_fact_and_the_correlation_id_of_the_call() -> None:
    session = a_session(FakeClock(), context=Context(workspace="w", permissions=("a", "b")))
    for correlation in ("c-1", "c-2"):
        told = json.loads(bytes(context_meta(session, correlation)))
        assert told == {**facts_of(session, correlation), "permissions": ["a", "b"]}


def test_the_record_with_the_context_of_a_request_is_the_same_record_if_the_context_is() -> None:
    session, weak = a_session(FakeClock(), context=Context(workspace="w")), Context(trust="sandboxed")
    assert with_context(session, session.context) is session
    assert with_context(session, weak).context is weak and session.context.workspace == "w"


@requirement("ctx.unforgeable")
def test_keys_of_the_gateway_are_taken_out_of_what_clients_send() -> None:
    honest = {"progressToken": msgspec.Raw(b"1")}
    assert without_our_keys(honest) is honest
    forged = {CONTEXT_KEY: msgspec.Raw(b"{}"), SESSION_KEY: msgspec.Raw(b'"x"'), **honest}
    assert without_our_keys(forged) == honest


def test_what_the_gateway_adds_to_meta_stands_beside_what_the_server_put_there() -> None:
    result = {"content": msgspec.Raw(b"[]"), "_meta": msgspec.Raw(b'{"a":1}')}
    told = json.loads(encode(with_meta(result, {SESSION_KEY: msgspec.Raw(b'"t"')})))
    assert told == {"content": [], "_meta": {"a": 1, SESSION_KEY: "t"}}
