"""Personal data is found by its form, in linear time, and other text is left as it is."""

import re
import time

import pytest

from gateway.context.personal_data_redaction import scrubber
from tests.requirements import requirement

pytestmark = requirement("ctx.scrub")

ALL = scrubber(("email", "phone", "card"))


CARDS = ("4111 1111 1111 1111", "4111111111111111", "5500-0000-0000-0004", "3782 822463 10005", "378282246310005")
PHONES = ("415-555-0123", "(415) 555-0123", "+49 30 1234567", "0049 30 1234567", "+49 (0)30 123456-78", "+14155550123")


@pytest.mark.parametrize("text", ["ada.lovelace+x@example.co.uk", "jürgen@müller.example", *CARDS, *PHONES])
def test_personal_data_is_redacted(text: str) -> None:
    assert ALL(f"about {text}.") == "about [redacted]."
    assert ALL(text) == "[redacted]" and scrubber(())(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("ticket 4111 1111 1111 1112", "build 2026-11-22 02:17:54", "0af7651916cd43dd8448eb211c80319c"),
        *("10.0.0.1:8080", "v1.2.3 of 12345", "a@b", "/srv/project-4155550123", "123e4567-e89b-12d3-a456-426614174000"),
    ],
)
def test_other_text_stays(text: str) -> None:
    assert ALL(text) == text


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("phone", [*PHONES, "030 1234567"])
def test_a_card_beside_a_telephone_number_is_redacted_as_a_whole(phone: str, card: str) -> None:
    for separator in " -":
        for text in (f"{phone}{separator}{card}", f"{card}{separator}{phone}"):
            left = ALL(f"of {text} and")
            assert "[redacted]" in left and left.startswith("of ") and left.endswith(" and")
            groups = {*re.findall("[0-9]+", card)}
            assert groups.isdisjoint(re.findall("[0-9]+", left)), f"{text} -> {left}"


def test_only_what_was_asked_for_is_redacted() -> None:
    text = "ada@example.com +49 30 1234567 4111111111111111"
    assert scrubber(["email"])(text) == "[redacted] +49 30 1234567 4111111111111111"
    assert scrubber(["card"])(text) == "ada@example.com +49 30 1234567 [redacted]"


@requirement("wall.decoded")
@pytest.mark.parametrize(
    "text", ["a" * 50_000 + "@", "1 " * 25_000, "2 " * 25_000, "+1" + "(" * 50_000, "a." * 25_000 + "@b"]
)
def test_hostile_text_takes_linear_time(text: str) -> None:
    began = time.process_time()
    ALL(text)
    assert time.process_time() - began < 1.0
