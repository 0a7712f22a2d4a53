"""A small version of `python -m tests.attack.hostile_memory`, which sends 100,000 requests."""

import pytest

from tests.attack.hostile_memory import measured
from tests.requirements import requirement
from tests.support.redis_server import running_redis


@requirement("wall.memory")
@pytest.mark.timeout(180)
def test_hostile_requests_leave_memory_where_it_was() -> None:
    found = measured(1_500, warm=1_500, large=0.02, rounds=3)
    assert found.is_good, f"{found.before} {found.after} {found.without_ttl}"
    assert {200, 400, 401, 403, 404, 421} <= found.statuses.keys(), found.statuses


@requirement("wall.memory")
@pytest.mark.timeout(180)
def test_hostile_requests_leave_nothing_in_redis() -> None:
    with running_redis() as redis:
        found = measured(1_000, warm=1_000, redis=redis, rounds=3)
    assert found.is_good, f"{found.before} {found.after} {found.without_ttl}"
