"""A decision on a call stands for the calls that are like it, until something that it was made of changes."""

import itertools
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.config.settings import Settings
from gateway.relay.endpoint import Endpoint
from gateway.relay.pipeline import Pipeline
from gateway.relay.replies import CallReply
from gateway.serving.app import create_app
from gateway.sessions.cached_record import CachedRecords
from session_store import Session
from tests.requirements import requirement
from tests.support.mcp_clients import ACCEPT, modern_body, modern_headers
from transports.era import Era
from transports.inbound_port import Memory, Refused, Request
from transports.jsonrpc import Message, Object, encode
from transports.soon import arrived

pytestmark = [pytest.mark.anyio, requirement("hot.standing")]

DEMO = {"command": sys.executable, "args": ["-m", "gateway.demo_server"], "tools": {"recall": {"bind": {}}}}
TOOL = "recall"


class Calls:
    """Calls of a tool with one head of one connection. `taken` has, for each, whether it was sent as decided before."""

    def __init__(self, pipeline: Pipeline, like: Request, taken: list[bool], lives: LiveSessions) -> None:
        self.lives = lives
        self._pipeline = pipeline
        self._like = replace(like, memory=Memory(), standing=Memory())
        self.taken = taken
        self._ids = itertools.count(100)
        self.live: LiveSession | None = None

    def like(self, **params: msgspec.Raw) -> "Calls":
        """Calls with these params as well."""
        meta = msgspec.json.decode(params.get("_meta", b"{}"))
        more = replace(self._like, params=self._like.params | params, meta=meta)
        return Calls(self._pipeline, more, self.taken, self.lives)

    def request(self, client_id: int | str, params: Object) -> Request:
        """One more call under that id, with these params as well."""
        message = Message(jsonrpc="2.0", id=client_id, method="tools/call")
        return replace(self._like, message=message, params=self._like.params | params)

    async def begun(self, request: Request) -> CallReply:
        """The reply to a call, which is sent."""
        reply = await arrived(self._pipeline.call(request))
        assert isinstance(reply, CallReply)
        self.live = reply.live
        return reply

    async def _sent(self, params: Object) -> list[Any]:
        """What the client gets for one more call, with these params as well."""
        request = self.request(next(self._ids), params)
        reply = await self.begun(request)
        got: list[Any] = []
        while (frame := await reply.replies.next()) is not None:
            got.append(msgspec.json.decode(frame.data))
            if frame.final:
                break
        await arrived(reply.done())
        assert request.message is not None and got[-1]["id"] == request.message.id
        return got

    async def call(self, key: Any = "k") -> Any:
        """The answer to one more call."""
        return (await self._sent({"arguments": msgspec.Raw(encode({"key": key}))}))[-1]

    async def progress_of(self, token: bytes) -> Any:
        """The progress token that the client gets with the progress of one more call, which has sent this one."""
        meta = msgspec.json.decode(self._like.params.get("_meta", b"{}")) | {"progressToken": msgspec.Raw(token)}
        arguments = msgspec.Raw(b'{"steps": 1, "interval_s": 0}')
        progress, *_ = await self._sent({"arguments": arguments, "_meta": msgspec.Raw(encode(meta))})
        return progress["params"]["progressToken"]

    async def stands(self) -> bool:
        """Whether the next call is sent as decided before. It is answered in any case."""
        self.taken.clear()
        assert "result" in await self.call()
        return self.taken == [True]

    async def decided(self) -> None:
        """Call until the decision stands. The first calls may come before the server is known."""
        for _ in range(100):
            if await self.stands():
                return
        raise AssertionError("no decision stands")

    @property
    def session(self) -> LiveSession:
        assert self.live is not None
        return self.live

    @property
    def conversation(self) -> Conversation:
        (found,) = self.session.conversations.values()
        return found


@asynccontextmanager
async def warm(era: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Calls]:
    """Calls in a session of that era, the decision on which stands."""
    taken, seen = list[bool](), list[tuple[Pipeline, Request]]()
    relay_by, pipeline_call, live_of = Endpoint.relay_by, Pipeline.call, LiveSessions.of
    lives = list[LiveSessions]()

    def relaying(endpoint: Endpoint, *args: Any) -> bool:
        taken.append(relay_by(endpoint, *args))
        return taken[-1]

    def calling(pipeline: Pipeline, request: Request) -> Any:
        seen.append((pipeline, request))
        return pipeline_call(pipeline, request)

    def attaching(all_live: LiveSessions, *args: Any, **more: Any) -> LiveSession:
        lives.append(all_live)
        return live_of(all_live, *args, **more)

    monkeypatch.setattr(LiveSessions, "of", attaching)
    monkeypatch.setattr("gateway.sessions.cached_record.CACHED_FOR_S", 60.0)  # however slow this machine is
    monkeypatch.setattr(Endpoint, "relay_by", relaying)
    monkeypatch.setattr(Pipeline, "call", calling)
    # Each call has its line, however many of them the tests before have made in this second.
    gateway = {"store": "memory://", "log_calls_per_s": 100_000, **options}
    settings = Settings.model_validate({"mcpServers": {"demo": DEMO}, "gateway": gateway})
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=ACCEPT) as http,
    ):
        body = modern_body("tools/call", {"name": TOOL, "arguments": {"key": "k"}})
        if era == "modern":
            opened = await http.post("/mcp", json=body, headers=modern_headers(body))
            head = modern_headers(body) | {"MCP-Gateway-Session": opened.headers["mcp-gateway-session"]}
        else:
            del body["params"]["_meta"]
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            opened = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
            head = {"MCP-Session-Id": opened.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        http.cookies.clear()
        assert (await http.post("/mcp", json=body, headers=head)).status_code == 200
        pipeline, like = seen[-1]
        calls = Calls(pipeline, like, taken, lives[-1])
        await calls.decided()
        yield calls


@pytest.fixture(scope="module", params=["legacy", "modern"])
async def calls(request: pytest.FixtureRequest) -> AsyncIterator[Calls]:
    """Calls in one session of each era. What a test changes is decided on again before the next one."""
    with pytest.MonkeyPatch.context() as patch:
        async with warm(request.param, patch) as found:
            yield found


async def test_each_call_has_its_own_progress_token(calls: Calls) -> None:
    await calls.decided()
    slow = calls.like(name=msgspec.Raw(b'"slow"'))
    assert await slow.progress_of(b"1") == 1
    for token, expected in ((b"2", 2), (b'"a\\u0062"', "ab"), (b"2", 2)):
        calls.taken.clear()
        assert await slow.progress_of(token) == expected
        assert calls.taken == [True]


async def test_a_call_is_sent_as_one_like_it_was_and_has_its_own_arguments(calls: Calls) -> None:
    await calls.decided()
    wrong = await calls.call(key=7)
    assert wrong["result"]["isError"] and "key" in str(wrong["result"]["content"]), "each call is checked"
    assert await calls.stands()


def change_era(calls: Calls, patch: pytest.MonkeyPatch) -> None:
    other = Era.LEGACY if calls.conversation.era is Era.MODERN else Era.MODERN
    patch.setattr("gateway.upstreams.probe.era_of", lambda *args, **more: other)


def in_workspace(session: Session) -> Session:
    return replace(session, context=replace(session.context, workspace="red"))


CHANGES: dict[str, Callable[[Calls, pytest.MonkeyPatch], None]] = {
    "list changes": lambda calls, patch: calls.conversation.lists.forget("tools"),
    "record changes": lambda calls, patch: calls.session.replace_record(in_workspace(calls.session.session)),
    "record is old": lambda calls, patch: patch.setattr(CachedRecords, "age_at_hand", lambda cached, live: None),
    "server is of another era": change_era,
    "servers stop": lambda calls, patch: calls.session.conversations.clear(),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_what_changes_ends_the_decision_before_the_next_call(
    calls: Calls, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await calls.decided()
    with monkeypatch.context() as patch:
        CHANGES[change](calls, patch)
        assert not await calls.stands()
    await calls.decided()


async def test_a_session_that_was_handed_over_is_served_by_no_decision(calls: Calls) -> None:
    await calls.decided()
    before = calls.session
    calls.lives.hand_over(before)
    assert not await calls.stands()
    assert calls.session is not before, "the session was attached anew"
    await before.close(over=False)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_rates_count_calls_that_are_sent_as_decided(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = {"policy": {"session_rate": {"per_s": 0.001, "burst": 8}}}
    async with warm(era, monkeypatch, **rate) as calls:
        with pytest.raises(Refused) as refused:
            for _ in range(10):
                await calls.call()
        assert refused.value.status == 429


async def test_a_call_that_asks_for_a_task_is_decided_on_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with warm("legacy", monkeypatch, tasks={"enabled": False}) as calls:
        asking = calls.like(task=msgspec.Raw(b'{"ttl":1000}'))
        assert [await asking.stands() for _ in range(3)] == [False] * 3


@pytest.mark.parametrize("said", ["red", ""])
async def test_an_announced_workspace_is_decided_on_each_time(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"policy": {"rules": [{"principals": ["*"], "workspace": "blue"}]}}
    async with warm("legacy", monkeypatch, **rules) as calls:
        announcing = calls.like(_meta=msgspec.Raw(encode({"orbit": {"workspace": said}})))
        stood = [await announcing.stands() for _ in range(4)][-1]
        assert stood is not bool(said), "each such call is told that its announcement has no effect"
