"""Numbers as people read them."""

import pytest

from gateway.admin.formatting import amount, clock, readable, span


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0004, "s", "0.40 ms"), (0.0999, "s", "99.90 ms"), (2.5, "s", "2.50 s"), (12_345.6, "/s", "12,346/s")],
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
