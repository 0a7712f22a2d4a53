"""A body fits a template exactly if the reader of bodies reads it as the same call but for what stands in the holes."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.requirements import requirement
from transports.inbound.call_template import MAX_BODY_BYTES, MAX_KEPT_BYTES, CallTemplate
from transports.inbound_port import CallValues
from transports.jsonrpc import Object, decode_object, encode, parse

pytestmark = requirement("fast.same")

BLANKS = st.text(" \t\r\n", max_size=2)
WORDS = st.text("abcXYZ019-_.", min_size=1, max_size=8)
SIMPLE = st.one_of(st.integers(0, 10**15 - 1), WORDS)
"""What may stand in the holes for ids and tokens."""
KEYS = st.one_of(st.sampled_from(["id", "arguments", "progressToken", "_meta", "name", "params", 'a"id', "x:"]), WORDS)
TEXTS = st.one_of(st.text(max_size=6), st.sampled_from(['"id":1', '},"x":{', '\\"', '"arguments":{}', "{", "}}", "é"]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**18), 10**18), st.floats(-1e9, 1e9, width=32), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(KEYS, inner, max_size=2)),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(KEYS, VALUES, max_size=3)


class Written:
    """How one client writes its calls: the members in an order of its own, with blanks, and further members."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._blanks = [draw(BLANKS) for _ in range(4)]
        self._order = draw(st.permutations(["jsonrpc", "id", "method", "params", "more"]))
        self._inner = draw(st.permutations(["name", "arguments", "_meta", "other"]))
        self._meta_order = draw(st.permutations(["progressToken", "a", "b"]))
        self._escapes = draw(st.booleans())
        self.has_token = draw(st.booleans())
        self.has_arguments = draw(st.sampled_from([True, True, False]))
        self._has_meta = self.has_token or draw(st.booleans())
        self._more = {name: draw(VALUES) for name in draw(st.sets(st.sampled_from(["more", "other", "a", "b"])))}
        self._name = draw(st.one_of(TEXTS, WORDS))
        self._repeats = draw(st.sampled_from(["", "", "", "id", "params"]))

    def _object(self, members: list[tuple[str, str]]) -> str:
        one, two, three, four = self._blanks
        return "{" + ",".join(f'{one}"{name}"{two}:{three}{value}{four}' for name, value in members) + "}"

    def body(self, request_id: Any, token: Any, arguments: str) -> bytes:
        def text(value: Any) -> str:
            return json.dumps(value, ensure_ascii=self._escapes)

        meta = {"progressToken": text(token)} if self.has_token else {}
        meta |= {key: text(self._more[key]) for key in ("a", "b") if key in self._more}
        params = {"name": text(self._name)} | ({"arguments": arguments} if self.has_arguments else {})
        if self._has_meta:
            params["_meta"] = self._object([(key, meta[key]) for key in self._meta_order if key in meta])
        if "other" in self._more:
            params["other"] = text(self._more["other"])
        found = {"jsonrpc": '"2.0"', "id": text(request_id), "method": '"tools/call"'}
        found["params"] = self._object([(key, params[key]) for key in self._inner if key in params])
        if "more" in self._more:
            found["more"] = text(self._more["more"])
        members = [(key, found[key]) for key in self._order if key in found]
        if self._repeats:
            members.insert(0, (self._repeats, found[self._repeats] if self._repeats == "params" else "0"))
        return self._object(members).encode("utf-8", "surrogatepass")


CLIENTS = st.composite(Written)()


def template_of(body: bytes) -> CallTemplate | None:
    message = parse(body)
    return CallTemplate.of(body, message, message.params_object(), parse)


def rest_of(params: Object) -> Any:
    """Params without what stands in the holes."""
    rest = {key: bytes(value) for key, value in params.items() if key not in ("arguments", "_meta")}
    meta = decode_object(params.get("_meta", b"{}"), "_meta")
    return rest, [(key, bytes(value)) for key, value in meta.items() if key != "progressToken"]


def check_fit(known: bytes, body: bytes, holes: CallValues) -> None:
    """What fits is the same call, with what stands in the holes, unless the arguments are not one value."""
    client_id, token, arguments = holes
    before = parse(known)
    has_arguments = "arguments" in before.params_object()
    try:
        arguments.decode()
        value = msgspec.json.decode(arguments, type=msgspec.Raw) if has_arguments else arguments
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return  # the user of the template sees that
    message = parse(body)
    params = message.params_object()
    assert encode(message.id) == client_id and message.method == "tools/call"
    assert bytes(decode_object(params.get("_meta", b"{}"), "_meta").get("progressToken", b"")) == token
    assert bytes(params.get("arguments", b"")) == bytes(value) and ("arguments" in params) is has_arguments
    assert rest_of(params) == rest_of(before.params_object())


@given(CLIENTS, SIMPLE, SIMPLE, SIMPLE, SIMPLE, ARGUMENTS, ARGUMENTS, st.booleans())
def test_another_call_of_the_same_client_fits_and_its_holes_have_what_the_reader_reads(
    client: Written, one: Any, other: Any, token: Any, next_token: Any, old: Any, new: Any, is_dense: bool
) -> None:
    known = client.body(one, token, json.dumps(old))
    template = template_of(known)
    if template is None:
        return
    arguments = json.dumps(new, separators=(",", ":") if is_dense else None)
    body = client.body(other, next_token, arguments)
    seen = arguments.encode() if client.has_arguments else b""
    holes = encode(other), encode(next_token) if client.has_token else b"", seen
    assert template.fit(body) == holes
    check_fit(known, body, holes)
    seen = json.dumps(old).encode() if client.has_arguments else b""
    assert template.fit(known) == (encode(one), encode(token) if client.has_token else b"", seen), "it fits itself"


@given(SIMPLE, SIMPLE, WORDS, st.one_of(st.none(), ARGUMENTS), st.sampled_from(["", "id", "token"]))
def test_a_usual_call_has_a_template(one: Any, token: Any, name: str, arguments: Any, first: str) -> None:
    params = {"name": name, "arguments": arguments, "_meta": {"progressToken": token}}
    if arguments is None:
        del params["arguments"]
    members = {"jsonrpc": "2.0", "id": one, "method": "tools/call", "params": params}
    if first == "id":
        members = {"params": params, **members}
    if first == "token":
        params = members["params"] = dict(reversed(params.items()))
    for body in (encode(members), json.dumps(members).encode(), json.dumps(members, indent=2).encode()):
        template = template_of(body)
        assert template is not None and template.fit(body) is not None


PIECES = [*(bytes([each]) for each in b'"{},:\\1 \n\xff-'), b"id", b'"id":2', b'},"name":"x"', b"e5"]


@given(CLIENTS, SIMPLE, SIMPLE, ARGUMENTS, st.data())
def test_a_body_that_was_changed_anywhere_is_read_as_the_holes_say_or_does_not_fit(
    client: Written, one: Any, token: Any, arguments: Any, data: st.DataObject
) -> None:
    known = client.body(one, token, json.dumps(arguments))
    template = template_of(known)
    assume(template is not None)
    assert template is not None
    body = known
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body)))
        end = min(len(body), place + data.draw(st.integers(0, 3)))
        body = body[:place] + data.draw(st.sampled_from(PIECES)) + body[end:]
    holes = template.fit(body)
    if holes is not None:
        check_fit(known, body, holes)


PLAIN = (
    b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"_meta":{"progressToken":%b},"name":"a","arguments":%b}}'
)
LAST = (
    b'{"params":{"arguments":%b,"name":"a","_meta":{"progressToken":%b}},"method":"tools/call","jsonrpc":"2.0","id":%b}'
)


def plain(request_id: bytes = b"1", token: bytes = b'"t"', arguments: bytes = b"{}", *, last: bool = False) -> bytes:
    return LAST % (arguments, token, request_id) if last else PLAIN % (request_id, token, arguments)


def of_plain(*, last: bool = False) -> CallTemplate:
    template = template_of(plain(last=last))
    assert template is not None
    return template


UNUSUAL = [
    *(b"1e3 -0 -1 007 1.0 null true [1] {} +1".split()),
    *(b"10" + b"0" * 19, b"", b" 1", b"1 "),
    *(b'"a\\"b"', b'"\\u0061"', b'"a b"', b'"\xc3\xa9"', b'"a', b'a"', b'""', b'"' + b"a" * 40 + b'"', b'1,"id":2'),
    *(b"9" * 16, b'"a","id":"b"', b"\xc2\xb2", b"1_0", b"0x1", b'"a"\n', b"Infinity", b"'a'"),
]


@pytest.mark.parametrize("last", [False, True])
def test_an_id_or_a_token_may_be_a_number_or_a_text_whatever_it_was_and_nothing_of_another_form(last: bool) -> None:
    template = of_plain(last=last)
    for value in (b"0", b"7", b"9" * 15, b'"a"', b'"%b"' % (b"0f" * 16), b'"a-b_c.d"'):
        assert template.fit(plain(request_id=value, token=value, last=last)) == (value, value, b"{}")
    for value in UNUSUAL:
        assert template.fit(plain(request_id=value, last=last)) is None, value
        assert template.fit(plain(token=value, last=last)) is None, value


@pytest.mark.parametrize(
    "arguments",
    [
        *(b"", b"{", b"}", b"{}{}", b"{} {}", b'{},"x":{}', b'{},"name":"b"', b'{"a":1},"arguments":{"a":2}'),
        *(b'{},"x":1', b"{}}", b"{}}}", b'{}},"id":9,"params":{"name":"b","arguments":{}'),
        *(b'{"a":"', b'{"a":1}/**/', b"{\x00}", b'{"a":"\xff"}'),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_what_leads_out_of_the_hole_of_the_arguments_is_not_one_value(arguments: bytes, last: bool) -> None:
    if (holes := of_plain(last=last).fit(plain(arguments=arguments, last=last))) is None:
        return
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        holes[2].decode()
        msgspec.json.decode(holes[2])


@pytest.mark.parametrize(
    "body",
    [
        *(plain().replace(b'"name":"a"', b'"name":"b"'), plain().replace(b'"name"', b'"x":1,"name"')),
        *(plain().replace(b"tools/call", b"tools/list"), plain().replace(b'"2.0"', b'"2.1"')),
        *(plain().replace(b',"name"', b', "name"'), plain().replace(b'"_meta":{"progressToken":"t"},', b"")),
        *(plain() + b" ", b" " + plain(), plain()[:-2], plain() + b"{", b"", b"{}"),
    ],
)
def test_another_call_does_not_fit(body: bytes) -> None:
    assert of_plain().fit(body) is None


def test_a_call_without_arguments_is_no_call_with_any() -> None:
    bare = plain().replace(b',"arguments":{}', b"")
    template = template_of(bare)
    assert template is not None and template.fit(bare) == (b"1", b'"t"', b"")
    for body in (plain(), bare[:-1] + b',"arguments":{}}', bare[:-2] + b',"x":1}}'):
        assert template.fit(body) is None
    assert of_plain().fit(bare) is None


def test_a_body_that_is_long_has_no_template_and_fits_none() -> None:
    template = of_plain()
    assert template_of(plain().replace(b":", b":" + b" " * MAX_KEPT_BYTES, 1)) is None, "what is kept is short"
    room = MAX_BODY_BYTES - len(plain(arguments=b'{"a":""}'))
    for size, fits in ((room, True), (room + 1, False)):
        body = plain(arguments=b'{"a":"%b"}' % (b"x" * size))
        assert (template.fit(body) is not None) is (template_of(body) is not None) is fits


@pytest.mark.parametrize(
    "body",
    [
        *(plain(arguments=b"[]"), plain(arguments=b"null"), plain().replace(b"tools/call", b"prompts/get")),
        plain().replace(b'"id":1', b'"id":1,"id":1'),
        plain().replace(b'"name":"a"', b'"name":"a","x":{"id":1}'),
        plain().replace(b'"name":"a"', b'"name":"a","x":{"arguments":{}}'),
        plain().replace(b'"name":"a"', b'"name":"a","_meta":{"progressToken":"t"}'),
        *(plain().replace(b'"id"', b'"\\u0069d"'), plain().replace(b'"arguments"', b'"argument\\u0073"')),
        plain().replace(b'"progressToken"', b'"progressToke\\u006e"'),
    ],
)
def test_a_call_in_which_the_places_are_not_clear_has_no_template(body: bytes) -> None:
    template = template_of(body)
    if template is not None:
        holes = template.fit(body)
        assert holes is not None
        check_fit(body, body, holes)


def test_a_reader_that_fails_or_reads_another_call_proves_nothing() -> None:
    body = plain()
    message = parse(body)
    for fault in (ValueError("no"), RecursionError(), RuntimeError("broken")):

        def read(_: bytes, fault: Exception = fault) -> Any:
            raise fault

        assert CallTemplate.of(body, message, message.params_object(), read) is None
    assert CallTemplate.of(body, message, message.params_object(), lambda _: message) is None
