"""Arguments of calls in the audit trail: no credential in any usual spelling, and bounded work and memory."""

import json
import sys
from typing import Any

import pytest

from gateway.observability import audited_arguments
from gateway.observability.audited_arguments import shown_arguments
from session_store.redaction import REDACTED, scrubbed_argument
from tests.requirements import requirement

pytestmark = requirement("life.events", "ops.redact")


def values(value: Any) -> str:
    return shown_arguments(json.dumps(value, ensure_ascii=False).encode(), with_values=True)


@pytest.mark.parametrize(
    "name",
    [
        *("password1", "password_confirm", "passwordHash", "passwords", "tokens", "token_value", "pwd", "auth", "otp"),
        *("pin", "userPin", "jwt", "OAuth", "api key", "apiKey", "Authorization", "progress_token"),
    ],
)
def test_a_value_whose_name_may_say_credential_is_redacted(name: str) -> None:
    assert values({name: "hunter2"}) == f'{{"{name}":"{REDACTED}"}}'


@pytest.mark.parametrize(
    "value",
    [
        {"name": "DB_PASSWORD", "value": "hunter2"},
        {"Key": "api key", "Values": ["hunter2"]},
        ["Authorization", "hunter2"],
        ["run", "--token", "hunter2"],
        [["Proxy-Authorization:", {"is": "hunter2"}]],
        {"properties": {"password": {"is": "hunter2"}}},
        "run --password hunter2 now",
        'run --pin "hunter2 of ours"',
        '["--token","hunter2"]',
        "api key: hunter2",
        "?pwd=hunter2&page=2",
        json.dumps({"passwordHash": "hunter2"}),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_a_credential_beside_its_name_is_redacted(value: Any) -> None:
    told = values({"a": value})
    assert "hunter2" not in told and REDACTED in told


def test_what_is_no_credential_stays() -> None:
    kept = {"author": "Ann", "shipping": "x", "key": "a", "value": "b", "path": ["-v", "/srv"], "n": [1.5, None, True]}
    assert json.loads(values(kept)) == kept
    assert shown_arguments(b'{"n":1e400}', with_values=True) == '{"n":1e400}', "a number that no float holds"


@pytest.mark.parametrize(
    ("arguments", "with_values"),
    [
        ({"a": [""] * 2_500}, True),
        ({"a": [{"b": ["", ""]}] * 400}, True),
        ({f"k{number}": 1 for number in range(800)}, True),
        ({f"k{number}": 1 for number in range(800)}, False),
        ({f"Bearer {number:08}": 1 for number in range(300)}, True),
    ],
    ids=["texts", "objects", "members", "names", "names that become alike"],
)
def test_no_more_texts_are_searched_than_are_shown(
    arguments: dict[str, Any], with_values: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = list[str]()

    def counted(text: str) -> str:
        searched.append(text)
        return scrubbed_argument(text)

    monkeypatch.setattr(audited_arguments, "scrubbed_argument", counted)
    raw = json.dumps(arguments, separators=(",", ":")).encode()
    assert len(raw) < 8 << 10
    assert shown_arguments(raw, with_values=with_values).endswith("...")
    assert sum(len(scrubbed_argument(text)) + 3 for text in searched) <= 2_100


def test_longer_arguments_are_not_read() -> None:
    assert shown_arguments(b'{"a":"%s"}' % (b"x" * 8_200), with_values=False) == "(8208 bytes)"


@pytest.mark.parametrize("character", ["x", "ü", "語", "😀"])
def test_an_event_keeps_little_memory_in_every_script(character: str) -> None:
    told = values({"a": character * 2_000})
    assert told.endswith(f"{character}...") and sys.getsizeof(told) < 2_200
