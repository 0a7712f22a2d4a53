"""Checks from outside: a client's way through the load balancer to the gateways, and what may be wrong on it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2

from gateway.doctor.findings import Finding, bad, good

__all__ = ["check_outside"]

_TIMEOUT_S: Final = 10.0
_SECOND_EVENT_S: Final = 4.0
"""Gateways send something at once, and something a second later."""

_CONNECTIONS: Final = 8
_BODY_BYTES: Final = 2 << 20
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "mcp-session-gateway-doctor", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_HANDSHAKE: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "mcp-session-gateway-doctor", "version": "0"},
}


class _Refused(Exception):
    """The way ends here; the finding says where."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


async def check_outside(url: str, token: str) -> AsyncIterator[Finding]:
    """Look at an MCP endpoint as a client reaches it. `token` goes with each request as `Authorization: Bearer`."""
    client = _Client(url, token)
    try:
        yield await client.reaches()
        for finding in await client.in_a_session():
            yield finding
        yield await client.takes_large_bodies()
    except _Refused as refused:
        yield refused.finding
    except httpx2.HTTPError as error:
        do = "see that the name resolves, the load balancer runs, and that it knows its gateways"
        yield bad("endpoint", f"{url} cannot be reached: {error or type(error).__name__}", do)


class _Client:
    def __init__(self, url: str, token: str) -> None:
        self._url = url if url.rstrip("/").endswith("/mcp") else f"{url.rstrip('/')}/mcp"
        self._headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def _http(self) -> httpx2.AsyncClient:
        """A connection of its own: a load balancer may send it anywhere."""
        return httpx2.AsyncClient(headers=self._headers, timeout=_TIMEOUT_S)

    async def _post(self, message: dict[str, Any], **headers: str) -> httpx2.Response:
        async with self._http() as http:
            return await http.post(self._url, json=message, headers=headers)

    async def reaches(self) -> Finding:
        """Whether an MCP gateway answers at all."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": _META}}
        answer = await self._post(message, **_modern("server/discover"))
        if answer.status_code == 401:
            do = "give the doctor a credential with --token (or MCP_GATEWAY_TOKEN): it goes the way a client goes"
            raise _Refused(bad("endpoint", f"{self._url} wants a credential", do))
        if "result" not in _json(answer):
            what = f"{self._url} answers {answer.status_code}: {answer.text[:200]!r}"
            do = (
                "see that the path is passed on as it is, and Host as the client sent it (or set gateway.allowed_hosts)"
            )
            raise _Refused(bad("endpoint", what, do))
        return good("endpoint", f"{self._url} answers")

    async def in_a_session(self) -> list[Finding]:
        """What can be seen with a session only, which is ended afterwards."""
        opened = await self._post({"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": _HANDSHAKE})
        session = opened.headers.get("mcp-session-id", "")
        if not session:
            do = "see the gateway's log: the line has the correlation id of this request"
            return [bad("sessions", f"none was opened: {opened.text[:200]!r}", do)]
        carried = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
        try:
            return [await self._is_found_everywhere(carried), await self._streams(carried)]
        finally:
            async with self._http() as http:
                await http.request("DELETE", self._url, headers=carried)

    async def _is_found_everywhere(self, carried: dict[str, str]) -> Finding:
        """Whether a session is found again on each of many connections."""
        ping = {"jsonrpc": "2.0", "id": 4, "method": "ping"}
        answers = await asyncio.gather(*(self._post(ping, **carried) for _ in range(_CONNECTIONS)))
        lost = sum(1 for answer in answers if answer.status_code == 404)
        if lost:
            return bad(
                "sessions",
                f"{lost} of {_CONNECTIONS} connections met a gateway that does not know the session",
                "give all gateways the same redis store and the same MCP_GATEWAY_KEYS",
            )
        wrong = [answer for answer in answers if answer.status_code != 200]
        if wrong:
            do = "see the gateways' logs, and that they reach each other's gateway.advertise"
            return bad("sessions", f"{len(wrong)} of {_CONNECTIONS} got {wrong[0].status_code}", do)
        return good("sessions", f"one is found again on {_CONNECTIONS} connections")

    async def _streams(self, carried: dict[str, str]) -> Finding:
        """Whether more than the beginning of an event stream comes through while it is open."""
        for _ in range(_CONNECTIONS):
            headers = carried | {"Accept": "text/event-stream"}
            async with self._http() as http:
                try:
                    async with asyncio.timeout(_SECOND_EVENT_S), http.stream("GET", self._url, headers=headers) as got:
                        if got.status_code == 404:
                            continue  # a gateway that does not know the session, which has been said
                        # What comes with the head tells nothing: many pass that on, and hold back what follows.
                        if await _says_more(got):
                            return good("event streams", "come through as they are sent")
                except TimeoutError:
                    break
        return bad(
            "event streams",
            f"nothing more of an open stream came through in {_SECOND_EVENT_S:g} s: something on the way holds it back",
            "switch buffering off for it (nginx: proxy_buffering off; see deploy/), and compression too",
        )

    async def takes_large_bodies(self) -> Finding:
        """Whether a call of some size gets to a gateway."""
        params = {"_meta": _META, "name": "no-such-tool", "arguments": {"text": "x" * _BODY_BYTES}}
        message = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
        answer = await self._post(message, **_modern("tools/call"), **{"Mcp-Name": "no-such-tool"})
        if "jsonrpc" not in _json(answer):
            size = f"{_BODY_BYTES >> 20} MiB"
            do = "let it pass what the gateway takes, limits.body_bytes (nginx: client_max_body_size 8m)"
            return bad("large calls", f"a call of {size} is answered {answer.status_code} on the way", do)
        return good("large calls", f"one of {_BODY_BYTES >> 20} MiB comes through")


async def _says_more(stream: httpx2.Response) -> bool:
    """Whether a second comment comes; forever, if none does."""
    seen = 0
    async for line in stream.aiter_lines():
        seen += line.startswith(":")
        if seen > 1:
            return True
    return False


def _modern(method: str) -> dict[str, str]:
    return {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}


def _json(answer: httpx2.Response) -> dict[str, Any]:
    try:
        found = json.loads(answer.text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
