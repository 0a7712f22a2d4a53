"""The ranges of time that pages of the console offer."""

from typing import Final

from starlette.requests import Request

from gateway.admin.figures import RANGES, Range

__all__ = ["RANGE_CHOICES", "RANGE_WORDS", "range_of"]

RANGE_WORDS: Final[dict[Range, str]] = {
    "5m": "5 min",
    "15m": "15 min",
    "1h": "1 hour",
    "6h": "6 hours",
    "24h": "24 hours",
}
RANGE_CHOICES: Final = tuple(RANGE_WORDS.items())


def range_of(request: Request, usual: Range) -> Range:
    """The range that the query of the URL names, otherwise the usual one."""
    given = request.query_params.get("range", "")
    return next((over for over in RANGES if over == given), usual)
