"""The forms of a URI, and which template it matches, in bounded time."""

import time

import pytest

from gateway.protocol.uris import forms, is_of, is_of_any
from tests.requirements import requirement


@requirement("wall.decoded")
def test_a_uri_is_read_in_every_form() -> None:
    assert forms("file:///a/%2e%2e/etc/%70asswd") == ("file:///a/%2e%2e/etc/%70asswd", "file:///etc/passwd")
    assert forms("note:x") == ("note:x",) and forms("note:%41") == ("note:%41", "note:A")
    assert forms("%2525252525252541") is None
    assert forms("note:e%CC%81") == ("note:e%CC%81", "note:é")
    assert is_of("db://t/1", "db://t/{id}") and not is_of("db://t/1/x", "db://t/{id}")
    assert is_of("db://t/1/x", "db://t/{+id}") and not is_of("db://t", "db://t/{id}")


@requirement("wall.decoded")
@pytest.mark.parametrize("heap", ["\u0301" * 16_000 + "\u0323" * 16_000, "\u0f73" * 32_000, "%CC%81%CC%A3" * 8_000])
def test_a_uri_is_read_in_a_bounded_time(heap: str) -> None:
    began = time.monotonic()
    assert forms(f"note://x/{heap}") is None
    assert time.monotonic() - began < 0.5


@requirement("wall.decoded")
def test_templates_of_a_server_are_tried_in_a_bounded_time() -> None:
    honest = [f"db://host/table{n}/{{id}}{{?fields}}" for n in range(3_000)]
    assert is_of_any("db://host/table2999/7", honest)
    hostile = [f"{n}" + "{a}x" * 240 for n in range(4_096)]
    began = time.monotonic()
    assert not is_of_any("x" * 8_000, hostile)
    assert time.monotonic() - began < 2, "each of them takes 0.1 s"
