"""An authorization server that hangs, or answers oddly, delays neither requests to others, nor its own for long."""

import asyncio
import http.cookiejar
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from gateway.context import authorization_server_client
from gateway.context.authorization_server_client import AuthorizationServerClient, BadAnswer
from tests.requirements import requirement

pytestmark = requirement("cred.consent")

_MORE_THAN_AT_ONCE = 20


async def test_a_server_that_hangs_delays_no_other_and_its_own_requests_end_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def send(_: Any, request: httpx2.Request, **__: Any) -> httpx2.Response:
        if request.url.host == "hangs.example":
            await asyncio.Event().wait()
        return httpx2.Response(204, request=request, stream=httpx2.ByteStream(b""))

    def request(host: str) -> httpx2.Request:
        return httpx2.Request("GET", f"https://{host}/token")

    monkeypatch.setattr(httpx2.AsyncClient, "send", send)
    requests = AuthorizationServerClient()
    hanging = [asyncio.create_task(requests.send(request("hangs.example"))) for _ in range(_MORE_THAN_AT_ONCE)]
    await asyncio.sleep(0)
    try:
        other = await asyncio.wait_for(requests.send(request("answers.example"), head_only=True), timeout=5)
        assert other.status_code == 204
        monkeypatch.setattr(authorization_server_client, "ANSWER_S", 0.0)
        late = asyncio.create_task(requests.send(request("hangs.example")))
        hanging.append(late)
        done, _ = await asyncio.wait({late}, timeout=5)
        assert done and isinstance(late.exception(), TimeoutError)
    finally:
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[httpx2.Request]:
    """A request to a server that answers with these bytes."""

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(answer_one, "127.0.0.1") as server:
        yield httpx2.Request("GET", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")


@pytest.mark.parametrize(("parts", "is_good"), [(1_000, True), (60_000, False)])
async def test_an_answer_in_too_many_parts_is_not_taken_apart(parts: int, is_good: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with answering(head + b"1\r\nx\r\n" * parts + b"0\r\n\r\n") as request:
        if is_good:
            assert (await AuthorizationServerClient().send(request)).content == b"x" * parts
            return
        with pytest.raises(BadAnswer, match="too much"):
            await AuthorizationServerClient().send(request)


async def test_cookies_of_an_authorization_server_are_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Mock(return_value=[])
    monkeypatch.setattr(http.cookiejar, "split_header_words", parse)
    monkeypatch.setattr(http.cookiejar, "parse_ns_headers", parse)
    head = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nSet-Cookie2: a=b\r\nContent-Length: 0\r\n\r\n"
    async with answering(head) as request:
        assert (await AuthorizationServerClient().send(request)).status_code == 200
    assert not parse.called
