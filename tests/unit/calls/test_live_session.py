"""The life of a session on one replica."""

from typing import Any

import pytest

from gateway.calls import live_session
from gateway.calls.lifecycles import GONE, LiveState
from gateway.calls.live_session import MOST_WATCHED, FrameWatches, LiveSession, LiveSessions
from gateway.calls.messages_for_operators import MOST_FRAMES, MOST_KEPT_CHARS, MOST_LINES, MessageRecorder
from gateway.calls.received_lists import Lists
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN
from gateway.protocol.merged_lists import Tools
from session_store import StoreUnavailable
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.fake_upstream import FakeUpstream, a_call, a_live, answer_of
from tests.unit.calls.parts import Events, turns
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import encode, parse


async def test_streams_of_an_earlier_process_are_ended_once_the_store_answers() -> None:
    events = Events()
    live, events.fails = a_live(events), True
    await events.append(live.session.id, "1/7/files/3", b"")
    await events.keep(live.session.id, "1/8/files/4")
    with pytest.raises(StoreUnavailable):
        await live.recover()
    assert not live.recovered
    events.fails = False
    await live.recover()
    assert live.recovered and await events.unfinished(live.session.id) == {"1/8/files/4": True}
    assert live.lost is not None, "one call can be made again"
    events.fails = True
    await live.recover()
    assert live.recovered, "the store is not asked again"
    assert a_live(events, era="modern").state is LiveState.LIVE, "it has no earlier streams"
    assert LiveSessions(events).of_new(a_session(FakeClock())).state is LiveState.LIVE


async def test_streams_that_could_not_be_read_are_read_after_a_drain_that_was_called_off() -> None:
    events = Events()
    live, events.fails = a_live(events), True
    with pytest.raises(StoreUnavailable):
        await live.recover()
    live.drain()
    live.admit()
    events.fails = False
    await events.keep(live.session.id, "1/8/files/4")
    assert not live.recovered
    await live.recover()
    assert live.recovered and live.lost is not None
    await live.lost.wait_until_looked()


async def test_a_drained_session_ends_its_streams_and_takes_calls() -> None:
    live = a_live(Events(), era="modern")
    waiting = live.draining
    live.drain()
    live.drain()
    assert waiting.is_set() and live.draining.is_set() and not live.ended
    live.admit()
    assert live.state is LiveState.LIVE and not live.draining.is_set(), "the drain was called off"
    live.admit()
    live.hand_over()
    live.admit()
    assert live.is_elsewhere and live.draining.is_set()


@pytest.mark.parametrize(("over", "state"), [(True, LiveState.ENDED), (False, LiveState.ELSEWHERE)])
async def test_a_closed_session_has_ended_or_lives_elsewhere(over: bool, state: LiveState) -> None:
    live = a_live(Events())
    await live.close(over=over)
    await live.close(over=over)
    assert live.state is state and live.state in GONE and live.ended and live.is_elsewhere is not over
    assert not live.send_to_client(b"{}")


@requirement("spec.cold-listen")
async def test_a_stream_that_no_single_server_has_ends_with_its_session() -> None:
    live = a_live(Events(), era="modern")
    stream = a_call(live, "subscriptions/listen")
    live.exchange_begins(stream)
    await live.close()
    frame = await stream.replies.next()
    assert frame is not None and frame.final and frame.error_code == CANCELLED


@requirement("ctx.announce-late")
async def test_servers_of_a_former_context_answer_the_calls_that_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.calls.conversation._FINISHED_S", 0.0)
    live, busy, idle = a_live(Events()), FakeUpstream(), FakeUpstream()
    live.conversations |= {("busy", Era.MODERN, b""): busy.conversation, ("idle", Era.MODERN, b""): idle.conversation}
    call, stream = a_call(live), a_call(live, "subscriptions/listen")
    for exchange in (stream, call):
        await busy.conversation.start(exchange, {}, {})
    await idle.conversation.ready()
    await live.close_outdated_links(finish_calls=True)
    assert not live.conversations and idle.conversation.link is None
    assert (await answer_of(stream))["error"]["code"] == OUTCOME_UNKNOWN
    assert busy.conversation.is_open and not call.is_over
    busy.links[0].answer({"content": []})
    assert (await answer_of(call))["result"] == {"content": []}
    await turns(5)
    assert busy.conversation.link is None


@requirement("ctx.announce-late")
@pytest.mark.parametrize(
    "ends", [lambda live: live.close(), lambda live: live.close_outdated_links(finish_calls=False)]
)
async def test_calls_of_a_former_context_end_with_their_session_and_with_what_it_may(ends: Any) -> None:
    live, upstream, call = a_live(Events()), FakeUpstream(), a_call()
    live.conversations["busy", Era.MODERN, b""] = upstream.conversation
    await upstream.conversation.start(call, {}, {})
    await live.close_outdated_links(finish_calls=True)
    await ends(live)
    assert (await answer_of(call))["error"]["code"] == OUTCOME_UNKNOWN and upstream.conversation.link is None


@requirement("rep.takeover", "rep.honest")
async def test_calls_of_a_session_that_another_replica_has_owned_since_end_at_once() -> None:
    live, upstream = a_live(Events()), FakeUpstream()
    call = a_call(live)
    live.conversations["busy", Era.MODERN, b""] = upstream.conversation
    live.exchange_begins(call)
    await upstream.conversation.start(call, {}, {})
    live.lose()
    assert call.is_over and live.ended, "no answer of its process can come before this"
    assert (await answer_of(call))["error"]["code"] == OUTCOME_UNKNOWN
    await live.close(over=False, taken_over=True)
    assert live.is_elsewhere and upstream.conversation.link is None


# -- what changes for whoever decides on calls


TOOLS = "tools/list"


@requirement("fast.same")
def test_a_list_that_is_another_one_is_a_change_and_the_same_one_is_none() -> None:
    changes = list[str]()
    lists = Lists(lambda: changes.append("change"))
    one, other = Tools([{"name": "a"}]), Tools([{"name": "a"}])
    for found, expected in ((one, 1), (one, 1), (other, 2), (one, 3)):
        lists.keep(TOOLS, found)
        assert lists.known[TOOLS] is found and len(changes) == expected


@requirement("fast.same")
@pytest.mark.parametrize("kind", ["tools", "prompts", "resources"])
def test_an_announcement_is_a_change_and_so_is_the_question_that_ends_it(kind: str) -> None:
    changes = list[str]()
    lists = Lists(lambda: changes.append("change"))
    lists.keep(TOOLS, Tools([]))
    lists.list_requested(TOOLS)
    assert len(changes) == 1, "nothing was announced"
    lists.forget(kind)
    assert len(changes) == 2 and (TOOLS in lists.known) is (kind != "tools") and kind in lists.announced
    lists.list_requested(TOOLS)
    assert len(changes) == (3 if kind == "tools" else 2) and TOOLS not in lists.changed


# -- who watches its messages


ID = "the-id-of-a-session"


def frames_of(clock: float = 1_000.0) -> MessageRecorder:
    return MessageRecorder(ID, "ann", lambda: clock)


def request(number: int | str, method: str = "tools/call", params: object = None) -> bytes:
    return encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})


@requirement("ops.frames")
def test_each_message_has_its_direction_its_method_and_its_kind() -> None:
    seen = frames_of()
    seen.from_client(parse(request(7, params={"name": ID})))
    seen.to_server("files", request(1))
    seen.from_server("files", parse(b'{"jsonrpc":"2.0","method":"notifications/progress"}'))
    seen.from_server("files", parse(b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}'))
    seen.to_client(b'{"jsonrpc":"2.0","id":7,"result":{}}')
    found, missed = seen.frames.behind(0, 10)
    assert [(frame.direction, frame.kind, frame.method) for frame in found] == [
        ("client to gateway", "request", "tools/call"),
        ("gateway to server", "request", "tools/call"),
        ("server to gateway", "notification", "notifications/progress"),
        ("server to gateway", "error", "tools/call"),
        ("gateway to client", "response", "tools/call"),
    ]
    assert missed == 0 and ID not in found[0].body and found[0].size > 20 and found[0].id == "7"


@requirement("ops.frames")
def test_a_message_counts_once_and_a_refusal_belongs_to_the_session_that_sent_it() -> None:
    seen, other = frames_of(), frames_of()
    message = parse(request(1))
    for _ in range(2):
        seen.from_client(message)
    for each in (seen, other):
        each.refused(message, Refused(400, -32602, "no such level"))
    found, _ = seen.frames.behind(0, 10)
    assert [(frame.kind, frame.method) for frame in found] == [("request", "tools/call"), ("error", "tools/call")]
    assert "no such level" in found[1].body and other.frames.behind(0, 10) == ([], 0)


@requirement("ops.frames")
def test_what_is_kept_is_bounded_and_who_reads_too_late_is_told() -> None:
    seen = frames_of()
    for number in range(MOST_FRAMES + 10):
        seen.to_server("files", request(number))
    newest, _ = seen.frames.behind(0, 2)
    assert [frame.id for frame in newest] == [str(MOST_FRAMES + 8), str(MOST_FRAMES + 9)]
    first = newest[-1].number - MOST_FRAMES - 9
    assert [len(part) if isinstance(part, list) else part for part in seen.frames.behind(first, 1_000)] == [500, 9]
    assert seen.frames.behind(newest[0].number, 1_000) == ([newest[1]], 0)
    assert seen.frames.behind(1, 1)[1] == 10, "a number of an earlier watch"
    for number in range(300):
        seen.to_server("files", request(number, params={"a": ["x " * 490] * 4}))
    kept = [len(frame.body) for frame in seen.frames.behind(0, 1_000)[0]]
    assert sum(kept) <= MOST_KEPT_CHARS and len(kept) > 200


@requirement("ops.frames", "ops.stderr-live")
def test_lines_are_redacted_cut_and_bounded() -> None:
    seen = frames_of()
    seen.hide(["a known secret"])
    seen.line("files", "earlier", is_earlier=True)
    seen.line("files", f"with a known secret {'x ' * 1_000}")
    earlier, line = seen.lines.behind(0, 10)[0]
    assert (earlier.at, line.at) == (0.0, 1_000.0)
    assert "a known secret" not in line.text and len(line.text) < 600
    for _ in range(MOST_LINES + 10):
        seen.line("files", "again")
    assert len(seen.lines.behind(0, 10_000)[0]) == MOST_LINES


@requirement("ops.frames")
def test_numbers_of_a_later_watch_are_larger_and_who_asks_for_none_gets_none() -> None:
    first, second = frames_of(1_000.0), frames_of(1_000.5)
    for seen in (first, second):
        seen.to_server("files", request(1))
        assert seen.frames.behind(0, 0) == ([], 0)
    assert first.frames.behind(0, 1)[0][0].number < second.frames.behind(0, 1)[0][0].number
    long = frames_of()
    for number in range(20):
        long.from_client(parse(request(f"{number}{'x' * 100_000}")))
    assert not long._latest and not long._asked, "ids that are as long as messages are not kept"
    frames, _ = long.frames.behind(0, 50)
    assert len(frames) == 20 and all(len(frame.id) < 300 for frame in frames)


def sessions(count: int) -> list[LiveSession]:
    live = LiveSessions(MemoryBackend().events)
    return [live.of_new(a_session(FakeClock(), id=f"session-{number}")) for number in range(count)]


@requirement("ops.frames")
async def test_a_few_are_watched_and_one_that_has_ended_makes_room() -> None:
    watches, live = FrameWatches(), sessions(MOST_WATCHED + 1)
    assert [watches.start(one, "ann") for one in live] == [True] * MOST_WATCHED + [False]
    assert len(list(watches)) == MOST_WATCHED and live[-1].recorder is None
    seen = live[0].recorder
    assert watches.start(live[0], "ann") and live[0].recorder is seen and seen is not None and seen.by == "ann"
    await live[1].close()
    assert watches.start(live[-1], "ann") and live[-1].recorder is not None
    for one in live:
        watches.stop(one)
    assert list(watches) == [] and all(one.recorder is None for one in live)


@requirement("ops.frames-reason", "ops.frames")
async def test_another_operator_sees_nothing_of_before_and_a_watch_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watches, [live] = FrameWatches(), sessions(1)
    assert watches.start(live, "ann") and live.recorder is not None
    live.recorder.from_client(parse(request("1")))
    first = live.recorder
    monkeypatch.setattr(live_session, "WATCHED_S", 0.0)
    assert watches.start(live, "bob") and live.recorder is not None
    assert (live.recorder.by, live.recorder.frames.behind(0, 50)) == ("bob", ([], 0))
    assert len(first.frames.behind(0, 50)[0]) == 1 and len(list(watches)) == 1
    await turns()
    assert live.recorder is None and list(watches) == []
