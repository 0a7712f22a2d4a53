"""Numbers as people read them."""

import pytest

from gateway.admin.formatting import amount, clock, moment, readable, span, took


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0004, "s", "400 µs"), (2.5, "s", "2.5 s"), (12_345.6, "/s", "12,346/s")],
)
def test_a_number_has_its_unit(value: float, unit: str, text: str) -> None:
    assert readable(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (3_599, "59 min 59 s"), (3_660, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_a_time_span_has_two_units_at_most(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (1_024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (5 << 30, "5120.0 MiB")],
)
def test_bytes_are_counted_in_powers_of_two(count: float, text: str) -> None:
    assert amount(count) == text


def test_a_time_is_in_utc() -> None:
    assert clock(0.0) == "1970-01-01 00:00:00"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (0.000_25, "250 µs"),
        (0.001_26, "1.26 ms"),
        (0.0994, "99.4 ms"),
        (0.0999, "100 ms"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (59.99, "59 s"),
        (75, "1 min 15 s"),
    ],
)
def test_a_duration_has_three_digits(seconds: float, text: str) -> None:
    assert took(seconds) == text


def test_a_time_of_a_page_is_in_utc_and_machines_can_read_it() -> None:
    assert moment(0.0) == '<time datetime="1970-01-01T00:00:00Z">1970-01-01 00:00:00 UTC</time>'
