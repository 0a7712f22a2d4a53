"""Metadata of a session: text, bounded, and never a credential."""

import time

import pytest

from session_store.redaction import REDACTED, output_scrubber, scrubbed_start, scrubbed_text, secret_arguments
from session_store.session import MAX_METADATA_BYTES, InvalidMetadata, checked_metadata, merged_metadata
from tests.requirements import requirement


@requirement("ctx.metadata")
@pytest.mark.parametrize(
    "name", "password DB_PASSWD DB_PWD client_secret api-key ApiKey access_token Authorization session_id".split()
)
def test_a_value_whose_name_says_credential_is_redacted(name: str) -> None:
    assert checked_metadata({name: "x"}) == {name: REDACTED}


@requirement("ctx.metadata", "ops.redact")
@pytest.mark.parametrize(
    "secret",
    [
        "Bearer abcdefgh12345678",
        "basic QWxhZGRpbjpvcGVu",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.sig",
        "postgres://user:hush@db/x",
        "redis://:hush@db",
        "-----BEGIN RSA PRIVATE KEY-----",
        "sk-abcdefghijklmnop",
        "ghp_abcdefghijklmnop",
        "AKIAABCDEFGHIJKLMNOP",
        "github_pat_11ABCDEFG0abcdefgh",
        "AIzaSyA1234567890abcdef",
        "ya29.a0AfH6SMabcdefgh",
        f"npm_{'a1' * 18}",
        "hvs.CAESIJabcdefghij",
        "Bearer\xa0abcdefghijkl",
        "postgres://me:p\ud800w@host/",
    ],
)
def test_what_has_the_form_of_a_credential_is_redacted_within_its_text(secret: str) -> None:
    text = scrubbed_text(f"tried {secret} twice")
    assert secret not in text and REDACTED in text and text.startswith("tried ")


@requirement("ctx.metadata")
@pytest.mark.parametrize(
    "value", ["plain", "https://example.com/a:b@c", "tokens: 5", "the bearer of news", "npm_config_registry", ""]
)
def test_ordinary_text_stays_as_it_is(value: str) -> None:
    assert checked_metadata({"note": value}) == {"note": value}


@requirement("ctx.metadata")
@pytest.mark.parametrize("changes", [{"": "x"}, {7: "x"}, {"a": 7}, {"a\ud800": "x"}, {"a": "\udfff"}])
def test_names_and_values_are_text(changes: dict[str, str | None]) -> None:
    with pytest.raises(InvalidMetadata, match="text"):
        checked_metadata(changes)


@requirement("ctx.metadata", "ctx.limits")
def test_changes_are_merged_none_removes_and_the_sum_is_bounded() -> None:
    assert merged_metadata({"a": "1", "b": "2"}, {"a": None, "b": "3", "c": "4"}) == {"b": "3", "c": "4"}
    assert merged_metadata({"a": "1"}, {"missing": None}) == {"a": "1"}
    fits = "\u00fc" * ((MAX_METADATA_BYTES - 2) // 2)
    assert merged_metadata({}, {"ab": fits})
    with pytest.raises(InvalidMetadata, match="would be 10241 bytes"):
        merged_metadata({"ab": fits}, {"c": ""})
    assert merged_metadata({"ab": fits}, {"ab": "", "c": "x"}) == {"ab": "", "c": "x"}, (
        "what is replaced does not count"
    )


@requirement("proc.last-words", "ops.redact")
@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--token", "s3cret-text"], "no such option: --token [redacted]"),
        (["--api-key=s3cret-text"], "no such option: [redacted]"),
        (["--header", "Authorization: Custom s3cret-text"], "the key [redacted] has expired"),
        (["https://h.example/?token=s3cret-text&page=2"], "401 for https://h.example/?token=[redacted]&page=2"),
        (["PGPASSWORD=s3cret-text"], "cannot sign in with [redacted]"),
        (["--name", "s3cret-text", "token"], "no such name: s3cret-text"),
    ],
)
def test_secret_arguments_are_redacted_in_the_output_of_a_program(arguments: list[str], output: str) -> None:
    scrub = output_scrubber((), {}, secrets=secret_arguments(arguments))
    assert scrub(output.replace("[redacted]", "s3cret-text")) == output


@requirement("proc.last-words", "ops.redact")
@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("db_password=hunter2-of-ours", "db_password=[redacted]"),
        ("connect: DB_PASSWORD = 'two words', retry=3", "connect: DB_PASSWORD = [redacted], retry=3"),
        ('{"client_secret": "a\\"b", "port": 5432}', '{"client_secret": [redacted], "port": 5432}'),
        ('{"text": "{\\"client_secret\\": \\"a b\\"}"}', '{"text": "{\\"client_secret\\": [redacted]}"}'),
        ("401 for /x?api_key=s3cret-text&page=2", "401 for /x?api_key=[redacted]&page=2"),
        ("access_token: [redacted] has expired", "access_token: [redacted] has expired"),
        ("progressToken=7 tokens=5 PWD=/srv port: 80", "progressToken=7 tokens=5 PWD=/srv port: 80"),
    ],
)
def test_what_stands_behind_the_name_of_a_credential_is_redacted_wherever_output_is_shown(
    line: str, shown: str
) -> None:
    assert scrubbed_text(line) == output_scrubber((), {})(line) == scrubbed_start(line, 300) == shown
    assert scrubbed_text(shown) == shown, "what is shown may pass twice"


@requirement("ops.redact")
@pytest.mark.parametrize(
    "piece", ["x" * 70 + " ", "password=", 'password="', "a" * 64 + "    =    ", "a=\\", "a: '", "password='", "pass:"]
)
def test_a_line_that_a_server_writes_is_redacted_in_a_moment(piece: str) -> None:
    line = (piece * 2_000)[:2_000]
    began = time.process_time()
    for _ in range(100):
        scrubbed_text(line)
    assert (time.process_time() - began) / 100 < 0.005


@requirement("ops.redact")
@pytest.mark.parametrize(
    "secret", ["postgres://ann:correct-horse-battery@db", f"ghp_{'a1' * 18}", "bearer abcdefghijkl"]
)
def test_a_credential_that_goes_on_behind_a_cut_is_redacted(secret: str) -> None:
    for begin in range(270, 300):
        text = f"{'x' * (begin - 1)} {secret}"
        assert len(scrubbed_start(text, 300)) <= 300 and scrubbed_start(text, 300) == scrubbed_text(text)[:300]
    assert scrubbed_start("x" * 1_000_000, 300) == "x" * 300
