"""What upstreams and tools are told of a session, and what clients cannot make them believe."""

import json
from typing import Any

import msgspec
import pytest

from gateway.config.context import BOUND
from gateway.context.facts import (
    SESSION_KEY,
    built_in,
    context_meta,
    correlation_id,
    facts_of,
    new_correlation_id,
    with_context,
    with_meta,
)
from session_store import Context, Principal
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
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


def test_a_fact_is_found_by_its_name() -> None:
    session = a_session(FakeClock(), principal=Principal(issuer="https://id", subject="ann"))
    names = ("session_id", "principal", "principal.issuer", "principal.subject", "endpoint")
    found = [built_in(session, name) for name in names]
    assert found == [session.id, "https://id:ann", "https://id", "ann", session.endpoint]
    assert all(isinstance(built_in(session, name), str) for name in BOUND), "each field that can be named exists"
    assert facts_of(session, "c-1")["correlation_id"] == "c-1"


def test_the_context_in_meta_has_every_fact_and_the_correlation_id_of_the_call() -> None:
    session = a_session(FakeClock(), context=Context(workspace="w", permissions=("a", "b")))
    for correlation in ("c-1", "c-2"):
        told = json.loads(bytes(context_meta(session).of(correlation)))
        assert told == {**facts_of(session, correlation), "permissions": ["a", "b"]}


def test_the_record_with_the_context_of_a_request_is_the_same_record_if_the_context_is() -> None:
    session, weak = a_session(FakeClock(), context=Context(workspace="w")), Context(trust="sandboxed")
    assert with_context(session, session.context) is session
    assert with_context(session, weak).context is weak and session.context.workspace == "w"


def test_what_the_gateway_adds_to_meta_stands_beside_what_the_server_put_there() -> None:
    result = {"content": msgspec.Raw(b"[]"), "_meta": msgspec.Raw(b'{"a":1}')}
    told = json.loads(encode(with_meta(result, {SESSION_KEY: msgspec.Raw(b'"t"')})))
    assert told == {"content": [], "_meta": {"a": 1, SESSION_KEY: "t"}}
