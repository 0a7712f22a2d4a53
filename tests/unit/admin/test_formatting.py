"""Numbers as people read them."""

from collections.abc import Callable

import pytest

from gateway.admin.formatting import amount, moment, readable, span, took


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        *((lambda value: readable(value, "s"), *case) for case in ((0.0004, "400 µs"), (2.5, "2.5 s"))),
        (lambda value: readable(value, "/s"), 12_345.6, "12,346/s"),
        *((span, *case) for case in ((0.9, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (3_599, "59 min 59 s"))),
        *((span, *case) for case in ((3_660, "1 h 1 min"), (90_000, "1 d 1 h"))),
        *((amount, *case) for case in ((0, "0 B"), (1_023, "1023 B"), (1_024, "1.0 KiB"))),
        *((amount, *case) for case in ((1 << 20, "1.0 MiB"), (1_023 << 20, "1023.0 MiB"), (5 << 30, "5.0 GiB"))),
        *((took, *case) for case in ((0.0, "0 µs"), (0.000_25, "250 µs"), (0.001_26, "1.26 ms"))),
        *((took, *case) for case in ((0.0994, "99.4 ms"), (0.0999, "100 ms"), (0.25, "250 ms"))),
        *((took, *case) for case in ((1.5, "1.5 s"), (59.99, "59 s"), (75, "1 min 15 s"))),
    ],
)
def test_a_number_has_its_unit_and_few_digits(form: Callable[[float], str], value: float, text: str) -> None:
    assert form(value) == text


def test_a_time_of_a_page_is_in_utc_and_machines_can_read_it() -> None:
    assert moment(0.0) == '<time datetime="1970-01-01T00:00:00Z">1970-01-01 00:00:00 UTC</time>'
