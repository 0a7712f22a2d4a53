"""The form of a request makes the frames that the general way makes, or there is none."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.session_facts import CONTEXT_KEY
from gateway.relay.frame_template import FrameTemplate, Prepared
from tests.requirements import requirement
from tests.support.fake_upstream import a_call
from transports.jsonrpc import Object, encode

pytestmark = requirement("fast.same")

CORRELATIONS = st.integers(0, 2**128 - 1).map(lambda number: f"{number:032x}")
TEXTS = st.one_of(
    st.text(max_size=8), st.sampled_from(["%", "%s", "%%(n)d", "7770777", '{"the":"arguments"}', '"', "%(c)b", "\n"])
)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(-(10**18), 10**18), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=4,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=2)
TOKENS = st.one_of(st.integers(0, 10**15), st.text("ab%-", min_size=1, max_size=4))


def raws(values: dict[str, object]) -> Object:
    return {name: msgspec.Raw(encode(value)) for name, value in values.items()}


def meta_of(more: dict[str, object], correlation: str, token: object = None) -> Object:
    facts = msgspec.Raw(b'{"session_id":"s%%1","correlation_id":"%b"}' % correlation.encode())
    return raws(more | ({} if token is None else {"progressToken": token})) | {CONTEXT_KEY: facts}


@given(
    OBJECTS,
    OBJECTS,
    st.tuples(CORRELATIONS, CORRELATIONS),
    st.one_of(st.none(), st.tuples(TOKENS, TOKENS)),
    st.one_of(st.none(), OBJECTS),
    st.integers(1, 10**9),
    st.sampled_from(["", "tasks/call%"]),
)
def test_frames_are_those_of_an_exchange(
    params: dict[str, object],
    more: dict[str, object],
    correlations: tuple[str, str],
    tokens: tuple[object, object] | None,
    arguments: dict[str, object] | None,
    number: int,
    sent_method: str,
) -> None:
    exchange, (first, then) = a_call(), correlations
    exchange.sent_method = sent_method
    for name in ("progressToken", CONTEXT_KEY):
        more.pop(name, None)
    params.pop("arguments", None)
    fixed = raws({"name": "tool%d", **params, **({} if arguments is None else {"arguments": {}})})
    form = FrameTemplate.of(Prepared(exchange, fixed, meta_of(more, first, tokens and tokens[0]), None), first)
    if form is None:
        return
    given = fixed if arguments is None else fixed | raws({"arguments": arguments})
    expected = exchange.frame(number, given, meta_of(more, then, tokens and tokens[1]))
    assert form.frame(number, encode(arguments), then) == expected


TRACES = [f"00-{each * 32}-{each * 16}-00" for each in "12"]


@pytest.mark.parametrize("token", [None, "t%1"])
@pytest.mark.parametrize(("first", "then"), [("", ""), TRACES], ids=["no trace", "trace"])
def test_a_usual_request_has_a_form(token: str | None, first: str, then: str) -> None:
    meta = meta_of({"a": "100 %", "traceparent": first}, "0" * 32, token)
    prepared = Prepared(a_call(), raws({"name": "t", "arguments": {}}), meta, None, first)
    form = FrameTemplate.of(prepared, "0" * 32)
    assert form is not None
    frame = msgspec.json.decode(form.frame(5, b'{"b":"%s"}', "1" * 32, then.encode()))
    assert frame["params"]["_meta"]["traceparent"] == then
    assert frame["id"] == 5 and frame["params"]["arguments"] == {"b": "%s"} and frame["params"]["_meta"]["a"] == "100 %"
    assert frame["params"]["_meta"].get("progressToken") == (None if token is None else 5)
    assert frame["params"]["_meta"][CONTEXT_KEY]["correlation_id"] == "1" * 32


@pytest.mark.parametrize(
    ("params", "more"),
    [
        ({"name": "7770777"}, {}),
        ({"name": "t"}, {"a": 7770777}),
        ({"name": "t"}, {"a": "0" * 32}),
        ({"name": "t"}, {"a": {"the": "arguments"}}),
        ({"name": "t"}, {"a": "00-the-trace"}),
    ],
)
def test_a_request_in_which_the_places_are_not_clear_has_none(
    params: dict[str, object], more: dict[str, object]
) -> None:
    assert FrameTemplate.of(Prepared(a_call(), raws(params), meta_of(more, "0" * 32), None), "0" * 32) is None
