"""What operators see of a JSON-RPC body: no credential in any place, no more than a bound, in bounded time."""

import json
import time
from typing import Any

import pytest

from gateway.observability.redacted_bodies import MOST_BODY_BYTES, MOST_CHARS, BodyRedactor
from tests.requirements import requirement
from transports.jsonrpc import encode

pytestmark = requirement("ops.frames")

JWT = f"eyJ{'h' * 40}.eyJ{'p' * 40}.{'s' * 40}"


def hiding(*secrets: str) -> BodyRedactor:
    bodies = BodyRedactor()
    bodies.hide(secrets)
    return bodies


def shown(value: Any, *hidden: str) -> str:
    return hiding(*hidden).body(encode(value))


@pytest.mark.parametrize(
    "value",
    [
        *({"arguments": {"password": "hunter2"}}, {"arguments": {"properties": {"password": "hunter2"}}}),
        {"arguments": {"credentials": {"user": "x", "value": "hunter2"}}},
        {"headers": [{"name": "X-Api-Key", "value": "hunter2"}]},
        {"env": [{"Value": "hunter2", "Key": "DB_PASSWORD"}]},
        *({"text": text} for text in ("password=hunter2 next", "Cookie: hunter2", "Bearer hunter2hunter2")),
        {"text": 'it said {"api_key": "hunter2", "a": 1}'},
        {"text": json.dumps(json.dumps({"token": "hunter2"}))},
        {"requestState": "hunter2"},
        *({"_meta": {f"io.github.mcp-session-gateway/{name}": "hunter2"}} for name in ("session", "session-key")),
        {"text": "https://user:hunter2@example.com/"},
        {"text": "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"},
        {"hunter2-known-secret": 1, "a": ["hunter2-known-secret"]},
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_no_credential_is_shown(value: Any) -> None:
    text = shown(value, "hunter2-known-secret")
    assert "hunter2" not in text and "[redacted]" in text


def test_a_value_that_is_hidden_is_found_however_json_writes_it() -> None:
    secret = 'with "quotes",\nlines and ü'
    assert "quotes" not in shown({"a": f"<{secret}>"}, secret)
    assert "quotes" not in hiding(secret).body(json.dumps({"a": secret}).encode())
    assert shown({"a": "short"}, "rt") == '{"a": "short"}'


def test_of_renewed_values_the_newest_are_hidden_beside_those_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observability.redacted_bodies._MOST_OF_LINKS", 500)
    bodies = hiding("of the start")
    for number in range(1_000):
        bodies.hide([f"<token {number}>", "of the start"], are_renewed=True)
    assert bodies.text("of the start <token 999> <token 900>") == " ".join(["[redacted]"] * 3)
    assert bodies.text("<token 1>") == "<token 1>", "each hidden value takes time in each text"
    for number in range(1_000):
        bodies.hide([f"<link {number}>"])
    assert bodies.text("<link 999> <link 600> <token 999>") == " ".join(["[redacted]"] * 3)
    assert bodies.text("<link 1>") == "<link 1>"


def test_the_name_of_an_api_key_stays_where_it_is_the_principal() -> None:
    assert shown({"principal": "api-key:alice"}) == '{"principal": "api-key:alice"}'
    assert "hunter2" not in shown({"principal": "api-key:token=hunter2", "other": "api-key:hunter2"})


def test_what_is_no_credential_stays() -> None:
    value = {"name": "echo", "arguments": {"n": 1, "text": "a: b"}, "_meta": {"progressToken": 7}}
    schema = {"inputSchema": {"properties": {"password": {"type": "string"}}}}
    for kept in (value, schema):
        assert json.loads(shown(kept)) == kept
    assert shown({"taskId": "abcdefghijklmnop"}) == '{"taskId": "abcdefgh"}'
    assert BodyRedactor().body(b'{"n": 1e400}') == '{"n": "1e400"}'
    assert "\x1b" not in BodyRedactor().text("\x1b[31mred\u202e"), "controls are visible"


def test_a_body_is_cut_and_its_end_is_no_part_of_a_credential() -> None:
    assert len(shown({"a": ["x" * 500] * 1_000})) <= MOST_CHARS
    assert shown({"a": "x " * 10_000}).endswith('… (20000 characters)"}')
    for length in range(3_900, 4_100, 7):  # the credential is cut where texts are read up to
        assert "eyJ" not in BodyRedactor().text(" " * length + JWT * 50, 10_000)
    assert "too large" in BodyRedactor().body(b'"%s"' % (b"x" * MOST_BODY_BYTES))
    assert "cannot be read" in BodyRedactor().body(b"[" * 5_000)
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    assert "…" in shown(deep)


@pytest.mark.parametrize("piece", ["a.", "eyJaaaaaaaa-", "a", 'a="', "a:", "-----BEGIN PRIVATE KEY-----", "password="])
def test_hostile_texts_take_bounded_time(piece: str) -> None:
    began = time.process_time()
    BodyRedactor().text(piece * 100_000)
    assert time.process_time() - began < 0.5
