"""Which refusals of a task's session say that the task is unknown."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.errors import SESSION_UNKNOWN, TOO_OFTEN
from gateway.tasks.task_session import found_session, session_of
from tests.requirements import requirement
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS

pytestmark = [pytest.mark.anyio, requirement("task.relay")]

HANDLE: Any = SimpleNamespace(session_id="s")
WHO: Any = None


class Resolver:
    """Refuses with that code."""

    def __init__(self, code: int) -> None:
        self._code = code

    async def resume_by_id(self, session_id: str, who: object, era: Era) -> None:
        raise Refused(400, self._code, "no")


@pytest.mark.parametrize(("code", "told"), [(SESSION_UNKNOWN, INVALID_PARAMS), (TOO_OFTEN, TOO_OFTEN)])
async def test_only_an_unknown_session_makes_its_task_unknown(code: int, told: int) -> None:
    resolver = cast("Any", Resolver(code))
    with pytest.raises(Refused) as refused:
        await session_of(HANDLE, WHO, resolver, Era.MODERN)
    assert refused.value.code == told
    if code == SESSION_UNKNOWN:
        assert await found_session("s", WHO, resolver, Era.MODERN) is None
    else:
        with pytest.raises(Refused):
            await found_session("s", WHO, resolver, Era.MODERN)
