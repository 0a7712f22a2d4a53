"""What a failure says of a task that is partly stored."""

from typing import Any

import pytest

from session_store import StoreUnavailable
from session_store.redis.commands import Script
from session_store.redis.tasks import RedisTasks
from session_store.testing.samples import FakeClock, a_task
from tests.requirements import requirement

pytestmark = requirement("task.durable")


class Commands:
    """Plays Redis, which refuses the script call of this number."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.calls = 0

    async def call(self, script: Script, places: Any, *arguments: Any) -> None:
        self.calls += 1
        if self.calls == self.refused:
            raise StoreUnavailable("Redis: OOM", may_have_taken_effect=False)


@pytest.mark.parametrize(("refused", "may_be_stored"), [(1, False), (2, True)])
async def test_a_task_that_is_stored_but_not_listed_is_not_reported_as_unchanged(
    refused: int, may_be_stored: bool
) -> None:
    clock, commands = FakeClock(), Commands(refused)
    tasks = RedisTasks(commands, clock)  # type: ignore[arg-type]  # plays it
    with pytest.raises(StoreUnavailable, match="OOM") as failed:
        await tasks.create(a_task(clock))
    assert failed.value.may_have_taken_effect is may_be_stored
