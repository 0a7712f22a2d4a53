"""What an answer to `server/discover` proves."""

from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.calls.conversation import Conversation
from gateway.calls.deadlines import Deadlines
from gateway.upstreams.discovery import ask_discovery, meaning_of
from tests.requirements import requirement
from tests.support.fake_upstream import FakeUpstream
from transports.era import LEGACY, MODERN, Era
from transports.upstream.streamable_http import HttpUpstream
from transports.upstream_port import ConnectOptions, Link, LinkEvents, UpstreamUnavailable

pytestmark = [pytest.mark.anyio, requirement("up.era")]

RESULT = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}}
Answer = Callable[[Any], httpx2.Response]


class OverHttp(FakeUpstream):
    """Links of the real HTTP transport to a server that `answers` each request."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self.requests: list[Any] = []
        self._upstream = HttpUpstream(name="remote", url="http://remote/mcp", headers={}, max_event_bytes=10_000)

        def answer(request: httpx2.Request) -> httpx2.Response:
            self.requests.append(msgspec.json.decode(request.content))
            return answers[min(len(self.requests), len(answers)) - 1](self.requests[-1])

        self._upstream._client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        deadlines = Deadlines(start_s=5.0, call_s=30.0, suspended_s=30.0, idle_stop_s=None)
        self.conversation = Conversation(self, self, deadlines)

    async def connect(self, options: ConnectOptions, events: LinkEvents) -> Link:
        return await self._upstream.connect(options, events)

    async def close(self) -> None:
        await self.conversation.close()
        await self._upstream.close()


def status(code: int, content: bytes = b"") -> Answer:
    return lambda _: httpx2.Response(code, content=content)


def error(status: int, code: int, data: Any = None) -> Answer:
    body = {"code": code, "message": "no"} | ({} if data is None else {"data": data})
    return lambda asked: httpx2.Response(status, json={"jsonrpc": "2.0", "id": asked["id"], "error": body})


def discovered(asked: Any) -> httpx2.Response:
    return httpx2.Response(200, json={"jsonrpc": "2.0", "id": asked["id"], "result": RESULT})


def broken(_: Any) -> httpx2.Response:
    raise httpx2.ReadError("cut")


def unreachable(_: Any) -> httpx2.Response:
    raise httpx2.ConnectError("refused")


@pytest.mark.parametrize(
    ("answer", "era"),
    [
        (discovered, MODERN),
        (status(400), LEGACY),
        (status(400, b"Bad Request: Server not initialized"), LEGACY),
        (status(404), LEGACY),
        (status(405), LEGACY),
        (error(400, -32000), LEGACY),
        (error(200, -32601), LEGACY),
        (error(400, -32602), LEGACY),
        (error(400, -32021), LEGACY),
        (error(400, -32021, {"requiredCapabilities": {}}), MODERN),
        (error(400, -32020), MODERN),
        (status(401), None),
        (status(403), None),
        (status(429), None),
        (status(503, b"busy"), None),
        (error(503, -32603), None),
        (error(500, -32000), None),
        (status(302), None),
        (status(200, b"<html>"), None),
        (broken, None),
    ],
)
async def test_what_an_answer_over_http_proves(answer: Answer, era: Era | None) -> None:
    server = OverHttp(answer)
    found = await ask_discovery(server.conversation, within_s=5.0, is_url=True)
    assert found.era is era and bool(found.result) == (answer is discovered)
    assert found.reason or found.era is not None, "a server that proved nothing says why"
    await server.close()


async def test_a_server_that_is_not_there_proves_nothing_and_is_unavailable() -> None:
    server = OverHttp(unreachable)
    with pytest.raises(UpstreamUnavailable):
        await ask_discovery(server.conversation, within_s=5.0, is_url=True)
    await server.close()


@pytest.mark.parametrize(("is_url", "era"), [(True, None), (False, LEGACY)])
async def test_silence_proves_a_legacy_process_and_nothing_of_a_server_behind_a_url(
    is_url: bool, era: Era | None
) -> None:
    silent = FakeUpstream()
    found = await ask_discovery(silent.conversation, within_s=0.01, is_url=is_url)
    assert found.era is era and "did not answer" in found.reason
    await silent.conversation.close()


async def test_a_version_that_both_know_is_asked_for_again_once() -> None:
    refusal = error(400, -32022, {"supported": ["2026-07-28", "2027-01-01"], "requested": "2026-07-28"})
    server = OverHttp(refusal, discovered)
    found = await ask_discovery(server.conversation, within_s=5.0, is_url=True)
    assert found.result is not None and [each["method"] for each in server.requests] == ["server/discover"] * 2
    await server.close()

    server = OverHttp(refusal)
    found = await ask_discovery(server.conversation, within_s=5.0, is_url=True)
    assert found.era is MODERN and found.result is None and "it says it supports" in found.reason
    assert len(server.requests) == 2, "a server that contradicts itself is not asked for ever"
    await server.close()


def refused(supported: Any) -> msgspec.Raw:
    data = {"supported": supported, "requested": "2026-07-28"}
    return msgspec.Raw(msgspec.json.encode({"code": -32022, "message": "no", "data": data}))


def test_the_supported_versions_of_a_refusal_decide() -> None:
    assert meaning_of(refused(["2025-11-25"])).era is LEGACY, "a version of the handshake"
    assert meaning_of(refused(["2025-11-25", "2026-07-28"])).retry == "2026-07-28"
    newer = meaning_of(refused(["2027-01-01"]))
    assert newer.era is MODERN and "2027-01-01 only" in newer.reason and "2026-07-28" in newer.reason
    long = meaning_of(refused(["9" * 1_000] * 1_000 + [7])).reason
    assert len(long) < 500, "the server does not decide how long the message is"
    assert meaning_of(refused("2026-07-28")).era is LEGACY, "the code alone may be a legacy server's own"
    assert meaning_of(msgspec.Raw(b"7")).era is LEGACY
