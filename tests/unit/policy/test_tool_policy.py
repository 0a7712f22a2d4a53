"""What holds for a call of a tool: whether the tool is there, and what becomes of its arguments."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.config.policy import PolicySettings
from gateway.config.upstreams import ToolSettings, UpstreamSettings
from gateway.errors import InvalidArguments
from gateway.observability.audit import Audit
from gateway.policy.access_policy import Policy
from gateway.policy.tool_policy import ToolPolicy
from gateway.protocol.input_schemas import Schemas
from gateway.protocol.merged_lists import Tools
from session_store import ClientFacts, Context, Session
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.context import FACTS
from tests.support.paged_server import ruled
from tests.support.too_deep import TOO_DEEP
from transports.inbound_port import Refused
from transports.jsonrpc import InvalidMessage, Object, encode, splice
from transports.work_steps import run_steps

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WHERE = {"type": "object", "properties": {"where": {"type": "string"}, "api_key": {"type": "string"}}}
FEW = {"properties": {"n": {"maximum": 5}}}
SCHEMAS = {"count": SCHEMA, "drop": WHERE, "few": FEW}
TOOLS = Tools([{"name": name, "inputSchema": schema} for name, schema in SCHEMAS.items()])
CONTEXT = Context(trust="sandboxed", workspace="w")


def tool_calls(check_arguments: Any = "lenient", **rules: ToolSettings) -> ToolPolicy:
    settings = PolicySettings(check_arguments=check_arguments)
    policy = Policy(settings, {"s": ruled(tools=rules)})
    return ToolPolicy(policy, Audit(MemoryBackend().audit, lambda: 0.0), Schemas(), settings, FACTS)


def session() -> Session:
    return a_session(FakeClock(), id="s1", context=CONTEXT, client=ClientFacts(name="agent-1"))


def checked(
    calls: ToolPolicy,
    tool: str,
    arguments: Any,
    notes: list[str] | None = None,
    tools: Tools = TOOLS,
    *,
    whose: Session | None = None,
) -> Object:
    whose = whose or session()
    decision = calls.decide("s", tools, CONTEXT, whose, tool)
    text = arguments if isinstance(arguments, bytes) else encode(arguments)
    params = {"name": msgspec.Raw(encode(tool)), "arguments": msgspec.Raw(text)}
    noted = [] if notes is None else notes
    found = calls.checked(decision, tools, whose, params, lambda name, value: noted.append(f"{name}: {value}"))
    return found if isinstance(found, dict) else run_steps(found)


@requirement("pol.lenient")
def test_a_number_in_text_is_left_to_the_server_unless_the_operator_wants_it_checked() -> None:
    assert bytes(checked(tool_calls(), "count", {"n": "3"})["arguments"]) == b'{"n":"3"}', "as the client wrote it"
    with pytest.raises(InvalidArguments, match='"3" is not of type "integer"'):
        checked(tool_calls(check_arguments=True), "count", {"n": "3"})
    with pytest.raises(InvalidArguments):
        checked(tool_calls(), "count", {"n": "1e400"})


@requirement("pol.lenient")
def test_a_number_that_no_float_holds_reaches_the_server_as_it_is() -> None:
    for number in (b"1e400", b"-1E+400", b"9" * 5_000):
        text = b'{"n":1,"more":[' + number + b"]}"
        for calls in (tool_calls(), tool_calls(check_arguments=True), tool_calls(check_arguments=False)):
            assert bytes(checked(calls, "count", text)["arguments"]) == text
    assert bytes(checked(tool_calls(), "count", b'{"n":0, "n":1e400}')["arguments"]) == b'{"n":1e400}', (
        "of two keys the last"
    )
    with pytest.raises(InvalidArguments):
        checked(tool_calls(), "few", b'{"n":1e400}')
    with pytest.raises(msgspec.ValidationError):
        checked(tool_calls(), "count", b'{"n":1e400,"more":"' + b"x" * (256 << 10) + b'"}')


@requirement("wall.structure")
def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(InvalidMessage, match="nested too deeply"):
        checked(tool_calls(), "count", b'{"n":1,"more":' + TOO_DEEP + b"}")


@requirement("pol.lenient")
@pytest.mark.parametrize(
    "spelling",
    [
        *(b'"%s"' % text for text in (b"13", b"1_3", b" 13 ", b"+13", b"013", b"13.0", b"1.3e1", b"0xd", b"0b1101")),
        *(b"13", b"13.0", b"1.3e1", '"\uff11\uff13"'.encode(), rb'"\u0031\u0033"', b"1e400", b'0, "where": 13'),
    ],
)
def test_a_blocked_number_is_found_however_it_is_written(spelling: bytes) -> None:
    for checks in ("lenient", False):
        calls = tool_calls(check_arguments=checks, drop=ToolSettings(blocked=("^13$",)))
        with pytest.raises(InvalidArguments) as caught:
            checked(calls, "drop", b'{"where":' + spelling + b"}")
        assert caught.value.fault == "blocked"
        assert checked(calls, "drop", {"where": "130"})


@requirement("pol.argument-results")
def test_wrong_arguments_say_what_is_wrong_and_arguments_that_are_none_are_an_error() -> None:
    for calls, tool, arguments, fault in (
        (tool_calls(), "count", {"n": "one"}, "schema"),
        (tool_calls(drop=ToolSettings(blocked=("bad",))), "drop", {"where": "bad"}, "blocked"),
    ):
        with pytest.raises(InvalidArguments) as caught:
            checked(calls, tool, arguments)
        assert caught.value.fault == fault and ": arguments" in str(caught.value)
    with pytest.raises(Refused, match="must be an object") as malformed:
        checked(tool_calls(), "count", "one")
    assert not isinstance(malformed.value, InvalidArguments)


def test_a_tool_for_others_or_unlisted_where_names_matter_is_unknown() -> None:
    calls = tool_calls(drop=ToolSettings(direct_only=True))
    for tool in ("drop", "other"):
        with pytest.raises(Refused, match="Unknown tool"):
            checked(calls, tool, {})
    assert checked(tool_calls(), "other", {})


@requirement("ctx.bind")
def test_bound_arguments_come_from_the_session_for_the_tools_that_have_them() -> None:
    for pattern in ("drop", "*"):
        calls = tool_calls(**{pattern: ToolSettings(bind={"where": "workspace"})})
        assert bytes(checked(calls, "count", {"n": 1})["arguments"]) == b'{"n":1}'
        again = calls.checker_of(calls.decide("s", TOOLS, CONTEXT, session(), "drop"), TOOLS, session())
        for none in ({}, {"where": ""}, {"where": " \t"}, {"where": None}):
            assert bytes(checked(calls, "drop", none)["arguments"]) == b'{"where":"w"}'
            assert again(msgspec.json.encode(none)) == b'{"where":"w"}'
        with pytest.raises(Refused):
            checked(calls, "drop", ["not an object"])
    properties: dict[str, Any] = {"where": {}, "n": {}}
    for required, left in ((["where", "n"], {"required": ["n"]}), (["where"], {}), ([], {})):
        schema = {"type": "object", "properties": properties}
        shown = calls.shown("s", CONTEXT, [{"name": "new", "inputSchema": schema | {"required": required}}])
        assert shown[0]["inputSchema"] == schema | left


@requirement("ctx.bind")
def test_a_differing_argument_is_told_with_both_values_and_no_credential(caplog: pytest.LogCaptureFixture) -> None:
    calls, notes = tool_calls(drop=ToolSettings(bind={"where": "workspace", "api_key": "agent"})), list[str]()
    secret = "ghp_" + "a" * 36
    with caplog.at_level("INFO", "gateway.policy.tool_policy"):
        checked(calls, "drop", {"where": f"at {secret} " + "x" * 5_000, "api_key": "hunter2"}, notes)
        checked(calls, "drop", {"where": "w", "api_key": "agent-1"}, notes)
    lines = [record for record in caplog.records if record.name == "gateway.policy.tool_policy"]
    where, key = [line.getMessage() for line in lines]
    assert all(vars(line).items() >= {"server": "s", "tool": "drop", "session": "s1"}.items() for line in lines)
    assert "argument where is 'at [redacted]" in where and "the session's workspace is 'w'" in where
    assert len(where) < 200 and "argument api_key is '[redacted]'" in key
    assert notes == [f"mcp_gateway.argument_differs: {message}" for message in (where, key)]
    assert not any(secret in text or "hunter2" in text for text in notes)


@requirement("ctx.bind")
def test_an_argument_differs_from_nothing_where_the_session_has_no_value(caplog: pytest.LogCaptureFixture) -> None:
    calls, notes = tool_calls(drop=ToolSettings(bind={"where": "workspace"})), list[str]()
    whose = msgspec.structs.replace(session(), context=Context())
    with caplog.at_level("INFO", "gateway.policy.tool_policy"):
        assert bytes(checked(calls, "drop", {"where": "here"}, notes, whose=whose)["arguments"]) == b'{"where":"here"}'
    assert not notes and not caplog.messages


@requirement("pol.arguments")
def test_a_tool_with_an_unusable_schema_is_hidden_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = [{"name": "broken", "inputSchema": {"type": kind}} for kind in ("nothing", "never")]
    calls = tool_calls()
    for tool in (*broken, *broken):
        fault = calls.unusable("s", [tool, {"name": "count", "inputSchema": SCHEMA}, {"name": "bare"}])
        assert list(fault) == ["broken"] and fault["broken"]
        assert calls.shown("s", CONTEXT, [tool]) == []
        with pytest.raises(Refused, match="Tool broken cannot be called.*" + re.escape(fault["broken"])):
            checked(calls, "broken", {}, tools=Tools([tool]))
    assert len([record for record in caplog.records if "s/broken" in record.getMessage()]) == len(broken)


@requirement("pol.arguments")
@pytest.mark.parametrize(("entry", "is_unusable"), [({"command": "serve"}, False), ({"url": "http://a/mcp"}, True)])
def test_annotations_of_headers_have_to_be_valid_at_servers_behind_urls(
    entry: dict[str, Any], is_unusable: bool
) -> None:
    tool = {"name": "odd", "inputSchema": {"properties": {"a": {"type": "object", "x-mcp-header": "A"}}}}
    policy = Policy(PolicySettings(), {"s": UpstreamSettings.model_validate(entry)})
    calls = ToolPolicy(policy, Audit(MemoryBackend().audit, lambda: 0.0), Schemas(), PolicySettings(), FACTS)
    assert ("odd" in calls.unusable("s", [tool])) == is_unusable


def test_patterns_that_are_left_out_of_the_check_are_listed() -> None:
    text = {"properties": {"a": {"pattern": "(a)\\1"}, "b": {"pattern": "^b$"}}}
    tools: list[dict[str, Any]] = [
        {"name": "odd", "inputSchema": text},
        {"name": "count", "inputSchema": SCHEMA},
        {"name": "bare"},
    ]
    assert tool_calls().unchecked(tools) == {"odd": ("(a)\\1",)}


@requirement("ctx.bind")
def test_a_bound_argument_that_neither_the_client_nor_the_session_has_is_missing() -> None:
    calls = tool_calls(drop=ToolSettings(bind={"where": "agent"}))
    unnamed = msgspec.structs.replace(session(), client=ClientFacts())
    again = calls.checker_of(calls.decide("s", TOOLS, CONTEXT, unnamed, "drop"), TOOLS, unnamed)
    for given in (b"{}", b'{"where":""}', b'{"where":"  "}', b'{"where":null}'):
        with pytest.raises(InvalidArguments, match=r"for drop: arguments\.where: it is missing") as caught:
            checked(calls, "drop", given, whose=unnamed)
        assert caught.value.fault == "missing"
        with pytest.raises(ValueError, match="where"):
            again(given)


@requirement("pol.read-only", "pol.operation")
def test_a_read_only_session_is_shown_the_tools_that_say_that_they_read() -> None:
    look = {"name": "look", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}}
    listed = [look, {"name": "write", "inputSchema": SCHEMA}]
    shown = tool_calls().shown("s", msgspec.structs.replace(CONTEXT, read_only=True), listed)
    assert [tool["name"] for tool in shown] == ["look"]


RULES = {
    "": ToolSettings(),
    "bind": ToolSettings(bind={"where": "workspace"}),
    "blocked": ToolSettings(blocked=("bad",)),
}
Further = tuple[ToolPolicy, Callable[[bytes], bytes], str]


@pytest.fixture(params=itertools.product(("lenient", True, False), RULES))
def further(request: pytest.FixtureRequest) -> Further:
    """Calls of a tool, what checks the arguments of further ones, and the kind of its rules."""
    checks, rules = request.param
    calls = tool_calls(checks, drop=RULES[rules])
    return calls, calls.checker_of(calls.decide("s", TOOLS, CONTEXT, session(), "drop"), TOOLS, session()), rules


@requirement("fast.same")
@pytest.mark.parametrize(
    "given",
    [
        *(b'{"where":"w"}', b' { "where" : "\\u0077" } ', b'{"where":\n"w"\r\n}', b'{"where":"x","where":"w"}', b"{}"),
        *(b'{"where":"bad"}', b'{"where":7}', b"[]", b'"where"', b"null", b'{"where":"w","n":1e400}', TOO_DEEP),
        *(b'{"where":"w","n":' + TOO_DEEP + b"}", b'{"where":"\\ud83d\\ude00 \xc3\xa9"}'),
    ],
)
def test_further_arguments_of_a_tool_are_checked_as_the_first(given: bytes, further: Further) -> None:
    calls, again, rules = further
    try:
        expected = bytes(splice(checked(calls, "drop", given.strip())["arguments"]))
    except (Refused, InvalidArguments, InvalidMessage) as refusal:
        with pytest.raises((type(refusal), ValueError, msgspec.MsgspecError, RecursionError)):
            again(given)
        return
    try:
        assert again(given) == expected
    except (ValueError, msgspec.ValidationError, RecursionError):
        assert rules == "bind" or any(each in given for each in (b"1e400", b"\n", TOO_DEEP)), "for the general way"


@requirement("fast.same", "wall.authority")
@pytest.mark.parametrize(
    "given",
    [
        *(b'{},"name":"other"', b'{"where":"w"},"x":{}', b"{} {}", b"", b"{", b'{"where":NaN}', b'{"where":"\xff"}'),
        *(b'{"where":"a\nb"}', b'{"n":1e400,"where":NaN}', b'{"n":1e400},"where":{}'),
    ],
)
def test_further_arguments_that_are_not_one_value_are_never_passed_on(given: bytes, further: Further) -> None:
    _, again, _ = further
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        again(given)
