"""The messages of a batch, each with its own answer, with a handler that refuses them."""

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.requirements import requirement
from transports.era import Era
from transports.inbound.batch import Batches
from transports.inbound.limits import Limits
from transports.inbound.sizes import Sizes
from transports.inbound_port import OwnedByPeer, Refused, Request

pytestmark = pytest.mark.anyio


@requirement("spec.batch", "rep.no-retry")
@pytest.mark.parametrize("again", [False, True])
async def test_what_may_have_run_is_not_said_to_be_undone(again: bool) -> None:
    answers: list[Any] = []

    def call(request: Request) -> None:
        raise OwnedByPeer(None)

    def refused(headers: Mapping[str, str], refused: Refused, *, again: bool = False) -> Refused:
        return Refused(200, -32014, "unknown") if again else refused

    async def answer(number: int, answer: bytes) -> bool:
        answers.append(msgspec.json.decode(answer))
        return True

    limits, refusals = Limits(), Counter[Any]()
    handler: Any = SimpleNamespace(call=call, refused=refused)  # another process has the session of each request
    part = msgspec.Raw(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t"}}')
    request = Request(era=Era.LEGACY, endpoint="/mcp", headers={}, again=again)
    client: Any = SimpleNamespace(answer=answer)
    await Batches(handler, Sizes(limits, refusals), limits, refusals).handle([part], request, client)
    (error,) = (each["error"] for each in answers)
    assert ("Nothing was done" in error["message"]) is not again and (error["code"] == -32014) is again
