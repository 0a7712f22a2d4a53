"""What upstreams and tools are told of a session, and what clients cannot make them believe."""

import json
from time import process_time
from typing import Any

import msgspec
import pytest

from gateway.config.sessions import BOUND, ContextSettings, EnvironmentValue, environment_of
from gateway.context.session_facts import (
    SESSION_KEY,
    TRACE_KEY,
    SessionFacts,
    correlation_id,
    facts_of,
    new_correlation_id,
    with_meta,
    with_trace,
)
from session_store import ANONYMOUS, ClientFacts, Context, ContextField, Principal, Provenance, Session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.jsonrpc import encode

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@requirement("ctx.correlation")
def test_a_valid_traceparent_names_the_request_and_meta_comes_before_the_header() -> None:
    for meta in (PARENT, "nonsense"):
        assert correlation_id({"traceparent": PARENT}, {"traceparent": meta}) == TRACE
    assert correlation_id({"traceparent": PARENT.replace("0af7", "0af8")}, {"traceparent": PARENT}) == TRACE


@requirement("ctx.correlation")
@pytest.mark.parametrize(
    "value",
    [*("", TRACE, PARENT.upper(), PARENT.replace("00-", "01-", 1), PARENT.replace(TRACE, "0" * 32), PARENT + "-x"), 7],
)
def test_any_other_traceparent_is_ignored(value: Any) -> None:
    fresh = correlation_id({"traceparent": str(value)}, {"traceparent": value})
    assert len(fresh) == 32 and fresh != TRACE and int(fresh, 16) >= 0
    assert new_correlation_id() != new_correlation_id()


def test_a_fact_is_found_by_its_name() -> None:
    session = a_session(FakeClock(), principal=Principal(issuer="https://id", subject="ann"))
    names = ("session_id", "principal", "principal.issuer", "principal.subject", "endpoint")
    facts = SessionFacts(ContextSettings(), {})
    found = [facts.value(session, name) for name in names]
    assert found == [session.id, "https://id:ann", "https://id", "ann", session.endpoint]
    assert all(isinstance(facts.value(session, name), str) for name in BOUND), "each field that can be named exists"
    assert facts_of(session, "c-1")["correlation_id"] == "c-1"


def test_the_context_in_meta_has_every_fact_and_the_correlation_id_of_the_call() -> None:
    session = a_session(FakeClock(), context=Context(workspace="w", permissions=("a", "b")))
    for correlation in ("c-1", "c-2"):
        told = json.loads(bytes(SessionFacts(ContextSettings(), {}).meta(session, correlation)))
        assert told == {**facts_of(session, correlation), "permissions": ["a", "b"]}


def test_what_the_gateway_adds_to_meta_stands_beside_what_the_server_put_there() -> None:
    result = {"content": msgspec.Raw(b"[]"), "_meta": msgspec.Raw(b'{"a":1}')}
    told = json.loads(encode(with_meta(result, {SESSION_KEY: msgspec.Raw(b'"t"')})))
    assert told == {"content": [], "_meta": {"a": 1, SESSION_KEY: "t"}}


@requirement("ctx.correlation")
def test_a_result_that_another_gateway_has_traced_keeps_the_ids_of_its_log() -> None:
    traced = with_trace({}, None, "theirs")
    assert with_trace(traced, None, "ours") is traced
    assert json.loads(bytes(traced["_meta"])) == {TRACE_KEY: {"correlation_id": "theirs"}}


SETTINGS = ContextSettings.model_validate(
    {
        "fields": {
            "team": {"claim": "team", "to": ["meta", "log"]},
            "ticket": {"metadata": "ticket", "to": ["meta", "audit"]},
            "said": {"metadata": "said", "value": "nothing", "to": ["meta"]},
            "hidden": {"claim": "hidden"},
            "place": {"metadata": "place"},
        }
    }
)
FACTS = SessionFacts(SETTINGS, {"said": "{agent} was here", "ticket": "none", "place": "at-{workspace}"})
FIELDS = (ContextField("team", "red", "authenticated"), ContextField("hidden", "secret", "authenticated"))


def session(**more: Any) -> Session:
    principal = Principal(issuer="https://id", subject="ann")
    given = {"principal": principal, "context": Context(workspace="w", fields=FIELDS)} | more
    return a_session(FakeClock(), **given)


def variables(one: Session, more: dict[str, str] | None = None, **names: Any) -> dict[str, str]:
    return FACTS.environment(one, {n: EnvironmentValue.model_validate(v) for n, v in names.items()}, more or {})


def in_meta(one: Session, facts: SessionFacts = FACTS) -> Any:
    return json.loads(bytes(facts.meta(one, "c-1")))


@requirement("ctx.open")
def test_a_field_has_its_value_by_name_and_metadata_is_read_when_it_is_told() -> None:
    one = session(metadata={"ticket": "1" * 1_025, "said": "x"})
    values = [FACTS.value(one, name) for name in ("team", "ticket", "said", "workspace")]
    assert values == ["red", "1" * 1_024, "x", "w"], "a longer one is cut"
    later = session(metadata={"ticket": "DEF"})
    assert [FACTS.value(later, name) for name in ("ticket", "said")] == ["DEF", "nothing"]
    assert FACTS.value(session(context=Context()), "team") == ""


@requirement("ctx.open", "wall.provenance")
def test_each_field_says_where_its_value_comes_from() -> None:
    one = session(metadata={"ticket": "T", "said": "x"})
    assert in_meta(one)["fields_provenance"] == {
        "team": "authenticated",
        "ticket": "configured",
        "said": "announced",  # the text has the name that the client gives itself
    }
    assert in_meta(session(context=Context()))["fields_provenance"] == {"said": "configured"}


@requirement("ctx.open")
def test_only_fields_that_are_opted_in_leave_by_meta_log_and_audit() -> None:
    one = session(metadata={"ticket": "T"})
    told = in_meta(one)
    assert told["fields"] == {"team": "red", "ticket": "T", "said": "nothing"}
    assert told["fields_provenance"] == {"team": "authenticated", "ticket": "configured", "said": "configured"}
    assert told["correlation_id"] == "c-1" and told["workspace"] == "w"
    assert FACTS.all_of(one, "c-1")["fields"] == FACTS.fields_for_servers(one)["fields"] == told["fields"]
    assert (FACTS.log_fields(one), FACTS.audit_fields(one)) == ({"team": "red"}, {"ticket": "T"})
    plain = SessionFacts(ContextSettings(), {})
    assert "fields" not in in_meta(one, plain) and plain.fields_for_servers(one) == {}


@requirement("ctx.open", "wall.provenance")
def test_a_workspace_that_nobody_names_has_no_provenance() -> None:
    for workspace, source in (("w", "announced"), ("", "")):
        one = session(context=Context(workspace=workspace))
        for told in (FACTS.all_of(one, "c-1"), in_meta(one)):
            assert (told["workspace"], told["workspace_provenance"]) == (workspace, source)


@requirement("ctx.env-names")
def test_a_variable_can_have_the_subject_alone_and_be_empty_for_nobody() -> None:
    wanted: dict[str, Any] = {
        "SUBJECT": {"field": "principal.subject"},
        "WHO": {"field": "principal", "default": ""},
        "NAME": {"field": "principal", "default": "guest"},
        "WORKSPACE": {"field": "workspace", "default": "none"},
        "PLAIN": {"field": "principal"},
    }
    told = Context(workspace="w", provenance=Provenance(workspace="configured"))
    named = variables(session(context=told), **wanted)
    assert named == {"SUBJECT": "ann", "WORKSPACE": "w"} | dict.fromkeys(("WHO", "NAME", "PLAIN"), "https://id:ann")
    nobody = variables(session(principal=ANONYMOUS, context=Context()), **wanted)
    assert nobody == {"SUBJECT": "", "WHO": "", "NAME": "guest", "WORKSPACE": "none", "PLAIN": "anonymous"}


@requirement("ctx.env")
def test_the_variables_of_ten_servers_take_less_than_ten_milliseconds() -> None:
    one, took = session(), []
    wanted = {name: EnvironmentValue.model_validate({"field": name}) for name in (*BOUND, "team")}
    for _ in range(5):
        begun = process_time()
        for _ in range(10):
            assert FACTS.environment(one, wanted, {}).keys() == wanted.keys()
        took.append(process_time() - begun)
    assert min(took) < 0.01, took


@requirement("ctx.env-names", "wall.provenance")
def test_a_workspace_that_a_client_announces_fills_only_a_variable_that_says_so() -> None:
    wanted: dict[str, Any] = {
        "BOUNDARY": {"field": "workspace"},
        "SAFE": {"field": "workspace", "default": "none"},
        "SAID": {"field": "workspace", "announced": True},
        "DETOUR": {"field": "place"},
    }
    announced = session(context=Context(workspace="w"), metadata={"place": "at-w"})
    assert variables(announced, **wanted) == {"BOUNDARY": "", "SAFE": "none", "SAID": "w", "DETOUR": ""}
    trusting = SessionFacts(SETTINGS, {"place": "at-{workspace}"}, trusts_announced=True)
    names = {name: EnvironmentValue.model_validate(value) for name, value in wanted.items()}
    assert set(trusting.environment(announced, names, {}).values()) == {"w", "at-w"}


@requirement("ctx.env", "ctx.unforgeable")
def test_every_fact_is_a_text_that_an_environment_can_hold_and_empty_if_it_is_missing() -> None:
    one = session(client=ClientFacts(name="a\0b\ud800"), context=Context())
    wanted: dict[str, Any] = {name: {"field": name} for name in ("agent", "workspace", "correlation_id")}
    found = variables(one, {"correlation_id": "c"}, **wanted)
    assert found == {"agent": "ab?", "workspace": "", "correlation_id": "c"}, "no NUL, and no half of a surrogate pair"


@requirement("ctx.env-names")
@pytest.mark.parametrize(
    ("everywhere", "own", "expected"),
    [
        (None, {"A": "trust"}, {"A": "trust"}),
        (None, {}, {}),
        ({"A": "trust", "B": "agent"}, None, {"A": "trust", "B": "agent"}),
        ({"A": "trust", "B": "agent"}, {"A": "", "C": "principal"}, {"B": "agent", "C": "principal"}),
    ],
)
def test_one_map_is_for_all_servers_and_a_server_changes_single_variables(
    everywhere: Any, own: Any, expected: dict[str, str]
) -> None:
    def values(names: Any) -> Any:
        return None if names is None else {name: EnvironmentValue(field=field) for name, field in names.items()}

    found = environment_of(values(everywhere), values(own))
    assert {name: value.field for name, value in found.items()} == expected
    assert environment_of(None, None)["MCP_SESSION_ID"].field == "session_id"
