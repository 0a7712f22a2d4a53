"""No message brings keys into `_meta` that only the gateway sets."""

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.reserved_meta import RESERVED, with_reports_only, without_reserved, without_reserved_in
from tests.requirements import requirement
from transports.jsonrpc import InvalidMessage, parse

pytestmark = requirement("wall.return")

FORGED = (f"{RESERVED}/session", f"{RESERVED}/restarted", RESERVED, f"{RESERVED}x", RESERVED.upper() + "/Trace")


def cleaned(body: str, field: str = "result") -> Any:
    return json.loads(bytes(getattr(without_reserved_in(parse(body.encode())), field)))


def answer(result: str) -> str:
    return f'{{"jsonrpc":"2.0","id":1,"result":{result}}}'


@pytest.mark.parametrize("key", FORGED)
def test_the_gateways_keys_go_wherever_a_message_has_them(key: str) -> None:
    kept = {"com.example/own": 1}
    meta = {key: "forged", **kept}
    item = {"name": "t", "_meta": meta, "parts": [{"_meta": meta}]}
    found = cleaned(answer(json.dumps({"_meta": meta, "tools": [item]})))
    assert found == {"_meta": kept, "tools": [{"name": "t", "_meta": kept, "parts": [{"_meta": kept}]}]}
    told = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"_meta": meta}})
    assert cleaned(told, "params") == {"_meta": kept}
    failed = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "", "data": {"_meta": meta}}})
    assert cleaned(failed, "error")["data"] == {"_meta": kept}


@requirement("ops.hosts")
def test_only_reports_about_a_result_are_kept_of_another_gateway() -> None:
    reports = {f"{RESERVED}/{name}": {"reason": name} for name in ("missing", "restarted", "trace")}
    meta = {**reports, f"{RESERVED}/session": "its own", "a": 1}
    message = with_reports_only(parse(answer(json.dumps({"_meta": meta, "tools": [{"_meta": meta}]})).encode()))
    assert json.loads(bytes(cast(msgspec.Raw, message.result))) == {
        "_meta": {"a": 1, **reports},
        "tools": [{"_meta": {"a": 1}}],
    }
    for plain in (answer('{"_meta":{}}'), json.dumps({"jsonrpc": "2.0", "method": "x", "params": {"_meta": reports}})):
        message = parse(plain.encode())
        assert with_reports_only(message) == without_reserved_in(message)


@given(st.sampled_from(FORGED), st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_an_escaped_key_is_the_same_key(key: str, escaped: list[int], capitals: bool) -> None:
    def escape(character: str) -> str:
        code = f"{ord(character):04x}"
        return f"\\u{code.upper() if capitals else code}"

    written = "".join(escape(each) if at in escaped else each for at, each in enumerate(key))
    assert cleaned(answer(f'{{"_meta":{{"{written}":1,"a":2}}}}')) == {"_meta": {"a": 2}}


@requirement("wall.structure")
def test_what_is_large_is_not_decoded_for_keys_that_are_elsewhere() -> None:
    large, meta = "[" + ",".join(["1.50"] * 500_000) + "]", f'{{"{RESERVED}/session":"forged","a":1}}'
    message = without_reserved_in(parse(answer(f'{{"":0,"content":{large},"_meta":{meta}}}').encode()))
    assert bytes(cast(msgspec.Raw, message.result)) == f'{{"":0,"content":{large},"_meta":{{"a":1}}}}'.encode()
    for content in (large, "[" + ",".join(["{}"] * 40_000) + "]"):
        with pytest.raises(InvalidMessage):
            without_reserved_in(parse(answer(f'{{"content":[{content},{{"_meta":{meta}}}]}}').encode()))


def test_other_messages_pass_as_they_are() -> None:
    text = json.dumps(f'"{RESERVED}/session": in a text')
    for result in ('{"n":1e2}', f'{{"content":[{{"type":"text","text":{text},"n":1.50}}]}}'):
        unchanged = parse(answer(result).encode())
        assert without_reserved_in(unchanged) is unchanged
    for result in (
        '{"n": 1e2, "content":[{"type":"text","text":"caf\\u00e9 \\u0069o"}]}',
        f'{{"structuredContent":{{"{RESERVED}/session":1}},"text":"{RESERVED}/session"}}',
    ):
        assert cleaned(answer(result)) == json.loads(result)
    honest = {"com.example/own": msgspec.Raw(b"1")}
    assert without_reserved(honest) is honest and without_reserved({RESERVED.upper(): msgspec.Raw(b"1")}) == {}
