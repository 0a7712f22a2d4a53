"""Failures of a session, each with what its server was refused by its sandbox just before. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.admin.reports import SessionRow
from gateway.observability.observed import Failure
from gateway.sandbox.refusals import RefusedRow

__all__ = ["ExplainedFailure", "explained", "refused_near"]

_BEFORE_S: Final = 10.0
_AFTER_S: Final = 1.0
"""Refusals are reported some time after they happen."""
_MOST: Final = 3


class ExplainedFailure(NamedTuple):
    """A failure, and what may be why: refusals near to it in time, the nearest first."""

    failure: Failure
    refused: Sequence[RefusedRow]


def explained(row: SessionRow) -> list[ExplainedFailure]:
    """The failures of a session in their order. A refusal is known by its last time, so an older failure of the same
    reason may be without it."""
    return [ExplainedFailure(one, refused_near(one.server, one.at, one.at, row.refused)) for one in row.failures]


def refused_near(server: str, begin: float, end: float, refused: Sequence[RefusedRow]) -> list[RefusedRow]:
    """What the server was refused near to that time, the nearest to its end first."""
    near = [one for one in refused if one.server == server and begin - _BEFORE_S <= one.at <= end + _AFTER_S]
    return sorted(near, key=lambda one: abs(end - one.at))[:_MOST]
