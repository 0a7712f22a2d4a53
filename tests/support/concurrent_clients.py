"""Modern clients that run concurrently, each in its own session."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from tests.support.mcp_clients import messages, modern_body, modern_headers


class AsyncModern:
    """A modern client that returns its session token and announces a workspace."""

    def __init__(self, http: httpx.AsyncClient, workspace: str = "") -> None:
        self._http = http
        self._workspace = workspace
        self.token = ""

    async def send(self, url: str, tool: str, arguments: Mapping[str, Any]) -> httpx.Response:
        meta: dict[str, Any] = {"orbit": {"workspace": self._workspace}} if self._workspace else {}
        body = modern_body("tools/call", {"name": tool, "arguments": dict(arguments)}, meta=meta)
        headers = modern_headers(body)
        if self.token:
            headers["MCP-Gateway-Session"] = self.token
        return await self._http.post(url, json=body, headers=headers)

    async def tool(self, url: str, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
        """The text of a tool's result. Fails if the answer is an error."""
        return str((await self.result(url, tool, arguments))["content"][0]["text"])

    async def result(self, url: str, tool: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """The result of a tool call, whose session token is kept. Fails if the answer is an error."""
        response = await self.send(url, tool, arguments or {})
        answer = messages(response)[-1]
        assert "result" in answer, answer
        self.token = response.headers.get("mcp-gateway-session", self.token)
        return answer["result"]


def run_concurrently(work: Callable[[httpx.AsyncClient, int], Awaitable[Any]], count: int) -> list[Any]:
    """Run `work(http, n)` for `n` in `range(count)` concurrently; returns the results in order."""

    async def running() -> list[Any]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=60.0, limits=limits) as http:
            http.cookies.jar.set_policy(_no_cookies())
            return list(await asyncio.gather(*(work(http, n) for n in range(count))))

    return asyncio.run(running())


def _no_cookies() -> Any:
    from http.cookiejar import DefaultCookiePolicy

    return DefaultCookiePolicy(allowed_domains=[])
