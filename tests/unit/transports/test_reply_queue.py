"""What waits for a client is bounded, and nothing of it is lost within the bound."""

import asyncio

from transports.reply_queue import MAX_QUEUED_BYTES, Frame, ReplyQueue


async def test_frames_come_in_order_and_end_with_the_final_one() -> None:
    queue = ReplyQueue()
    assert queue.push(Frame(b"a")) and queue.push(Frame(b"b", final=True))
    assert not queue.push(Frame(b"late"))
    assert [await queue.next(), await queue.next()] == [Frame(b"a"), Frame(b"b", final=True)]
    assert await queue.next() is None


async def test_a_reader_that_waits_is_woken_and_takes_the_place_of_a_callback() -> None:
    queue, called = ReplyQueue(), list[object]()
    queue.when_ready(called.append, 10.0)
    for wake, found in ((lambda: queue.push(Frame(b"a")), Frame(b"a")), (queue.close, None)):
        reading = asyncio.create_task(queue.next())
        await asyncio.sleep(0)
        wake()
        assert await reading == found and not called


async def test_a_client_that_does_not_read_is_given_up_at_the_bound_but_one_frame_and_the_answer_pass() -> None:
    queue, megabyte, taken = ReplyQueue(), Frame(b"x" * (1 << 20)), 0
    while queue.push(megabyte):
        taken += 1
    assert taken == MAX_QUEUED_BYTES >> 20 and queue.abandoned
    assert not queue.push(Frame(b"more")) and not queue.push(Frame(b"last", final=True))
    queue, large = ReplyQueue(), [Frame(b"x" * (MAX_QUEUED_BYTES + 1), final) for final in (False, True)]
    assert all(queue.push(frame) for frame in large)
    assert [await queue.next() for _ in large] == large


async def test_a_reader_without_a_task_is_called_back_once() -> None:
    queue, called = ReplyQueue(), list[bool]()
    queue.when_ready(called.append, 10.0)
    queue.tick(9.0)
    await asyncio.sleep(0)
    assert not called and queue.first is None
    queue.push(Frame(b"a"))
    assert not called, "not inside of push"
    queue.push(Frame(b"b", final=True))
    await asyncio.sleep(0)
    assert called == [False] and queue.first == Frame(b"a")
    assert [await queue.next(), await queue.next()] == [Frame(b"a"), Frame(b"b", final=True)] and queue.first is None


async def test_a_reader_without_a_task_learns_of_silence_and_of_the_end() -> None:
    queue, called = ReplyQueue(), list[bool]()
    queue.when_ready(called.append, 10.0)
    queue.tick(10.0)
    await asyncio.sleep(0)
    assert called == [True]
    called.clear()
    for _ in range(2):  # the second time it is closed already
        queue.when_ready(called.append, 10.0)
        queue.close()
        await asyncio.sleep(0)
        assert called.pop() is False
