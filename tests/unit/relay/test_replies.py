"""The reply to a call, when another replica has taken its session over."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cluster.ownership import Cluster
from gateway.errors import OUTCOME_UNKNOWN
from gateway.relay.replies import CallReply
from session_store import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.reply_queue import Frame, ReplyQueue

pytestmark = pytest.mark.anyio


@requirement("rep.fence")
async def test_an_answer_that_is_there_when_the_loss_of_its_session_is_learned_is_not_sent() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    owner, other = (
        Cluster(backend.directory, backend.sessions, backend.bus, taken_over=lambda _: None) for _ in range(2)
    )
    await owner.beat()
    session = await owner.claim(await backend.sessions.create(a_session(clock)))
    assert session is not None
    exchange: Any = SimpleNamespace(
        replies=ReplyQueue(), live=SimpleNamespace(session=session), correlation="", client_id=1
    )
    reply = CallReply(exchange, None, [], events=None, cluster=owner)
    answer = Frame(b"{}", final=True)
    assert not reply.is_doubtful
    assert await other.claim(session) is not None
    await owner.beat()  # it was paused, and renews its lease before it writes what the server has sent
    assert owner.is_fresh and reply.is_doubtful
    assert (await reply.confirmed(answer)).error_code == OUTCOME_UNKNOWN
