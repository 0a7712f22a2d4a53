"""A server that writes what is no message is waited for a shorter time."""

import asyncio

import pytest

from gateway.calls.patience import Patience
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


@requirement("proc.garbage")
async def test_the_first_line_that_is_no_message_shortens_the_time_to_the_answer() -> None:
    patience, loop = Patience(0.05), asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with patience.within(30.0):
            patience.noise()
            for _ in range(5):
                await asyncio.sleep(0)
                patience.noise()  # later lines do not prolong it
            await asyncio.Event().wait()
    assert 0.04 < loop.time() - began < 5.0
    assert patience.late("files", 30.0) == (
        "server 'files' writes lines to stdout that are not MCP messages, and did not answer within 0.05 s"
    )


async def test_it_never_prolongs_the_time_and_counts_from_each_beginning() -> None:
    patience = Patience(30.0)
    with pytest.raises(TimeoutError):
        async with patience.within(0.01):
            patience.noise()
            await asyncio.Event().wait()
    async with patience.within(5.0):
        assert not patience.is_noisy
    patience.noise()  # of a server that has answered
    assert not patience.is_noisy and patience.late("files", 5.0) == "server 'files' did not start within 5 s"
