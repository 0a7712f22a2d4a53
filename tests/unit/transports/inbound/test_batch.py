"""The messages of a batch, each with its own answer, with a handler that refuses them."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from tests.requirements import requirement
from transports.era import Era
from transports.inbound.batch import Batches
from transports.inbound.limits import Limits
from transports.inbound.sizes import Sizes
from transports.inbound_port import OwnedByPeer, Refused, Request

pytestmark = pytest.mark.anyio


class Handler:
    """Another process has the session of each request."""

    def call(self, request: Request) -> None:
        raise OwnedByPeer(None)

    def refused(self, headers: Mapping[str, str], refused: Refused, *, again: bool = False) -> Refused:
        return Refused(200, -32014, "unknown") if again else refused


class Client:
    """Keeps the answers."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    async def answer(self, number: int, answer: bytes) -> bool:
        self.answers.append(msgspec.json.decode(answer))
        return True


@requirement("spec.batch", "rep.no-retry")
@pytest.mark.parametrize("again", [False, True])
async def test_what_may_have_run_is_not_said_to_be_undone(again: bool) -> None:
    limits, refusals, client = Limits(), Counter[Any](), Client()
    batches = Batches(cast(Any, Handler()), Sizes(limits, refusals), limits, refusals)
    part = msgspec.Raw(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t"}}')
    request = Request(era=Era.LEGACY, endpoint="/mcp", headers={}, again=again)
    await batches.handle([part], request, cast(Any, client))
    ((answer),) = client.answers
    assert ("Nothing was done" in answer["error"]["message"]) is not again
    assert (answer["error"]["code"] == -32014) is again
