"""An authorization server that hangs delays neither requests to others, nor its own beyond the time limit."""

import asyncio
from typing import Any

import httpx2
import pytest

from gateway.context import authorization_requests
from gateway.context.authorization_requests import AuthorizationRequests
from tests.requirements import requirement

_MORE_THAN_AT_ONCE = 20


@pytest.mark.anyio
@requirement("cred.consent")
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
    requests = AuthorizationRequests()
    hanging = [asyncio.create_task(requests.send(request("hangs.example"))) for _ in range(_MORE_THAN_AT_ONCE)]
    await asyncio.sleep(0)
    try:
        other = await asyncio.wait_for(requests.send(request("answers.example"), head_only=True), timeout=5)
        assert other.status_code == 204
        monkeypatch.setattr(authorization_requests, "ANSWER_S", 0.0)
        late = asyncio.create_task(requests.send(request("hangs.example")))
        hanging.append(late)
        done, _ = await asyncio.wait({late}, timeout=5)
        assert done and isinstance(late.exception(), TimeoutError)
    finally:
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
