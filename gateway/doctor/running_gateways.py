"""Check running gateways over the network, as clients reach them, and those that this user runs on this machine. Report
the clients about which they warn."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any, Final

import httpx2
import msgspec

from gateway.admin.local_gateways import LocalGateway, local_gateways
from gateway.config.addresses import is_of_this_machine, url_here
from gateway.config.settings import ConfigurationError, GatewaySettings, load
from gateway.doctor.findings import Finding, failure, ok, warning
from gateway.sessions.client_return_tracking import ADVICE, ClientWarning
from session_store import Backend, StoreError

_TIMEOUT_S: Final = 10.0
_SECOND_EVENT_S: Final = 4.0
"""Seconds to wait for the second event. A gateway sends one event at once and another one a second later."""

_CONNECTIONS: Final = 8
_BODY_BYTES: Final = 2 << 20
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "mcp-session-gateway-doctor", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_DISCOVER: Final = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "server/discover"}
_HANDSHAKE: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "mcp-session-gateway-doctor", "version": "0"},
}
_READY_TIMEOUT_S: Final = 2.0
_READY_BYTES: Final = 16_384
_LOOKED_BACK_S: Final = 86_400.0
_EVENTS: Final = 2_000
_WHERE: Final = "give --admin-url the URL at which operators reach the gateway (gateway.admin.listen, if it is set)"
_ALL_RETURN: Final = "no client is known to share a session, or to open sessions without returning to them"
_NONE: Final = "no gateway of yours is found at {url}: --url checks another one"


async def check_outside(url: str, token: str) -> AsyncIterator[Finding]:
    """Check an MCP endpoint over the network, as a client does. Each request carries `token` as `Authorization:
    Bearer`."""
    client = _Client(url, token)
    try:
        reached = await client.reaches()
        yield reached
        if reached.state != "ok":
            return
        for finding in await client.in_a_session():
            yield finding
        yield await client.takes_large_bodies()
    except httpx2.HTTPError as error:
        do = "check that the name resolves, that the load balancer runs, and that its list of gateways is right"
        yield failure("endpoint", f"{url} cannot be reached: {error or type(error).__name__}", do)


class _Client:
    def __init__(self, url: str, token: str) -> None:
        self._url = url if url.rstrip("/").endswith("/mcp") else f"{url.rstrip('/')}/mcp"
        self._headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def _http(self) -> httpx2.AsyncClient:
        """Return an HTTP client. Each has a new connection, which a load balancer may send to any gateway."""
        trust_env = not is_of_this_machine(self._url)
        return httpx2.AsyncClient(headers=self._headers, timeout=_TIMEOUT_S, trust_env=trust_env)

    async def _post(self, message: dict[str, Any], **headers: str) -> httpx2.Response:
        async with self._http() as http:
            return await http.post(self._url, json=message, headers=headers)

    async def reaches(self) -> Finding:
        """Check that an MCP gateway answers at the URL."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": _META}}
        answer = await self._post(message, **_DISCOVER)
        if answer.status_code == 401:
            do = "give the doctor a client's credential with --token (or MCP_GATEWAY_TOKEN)"
            return failure("endpoint", f"{self._url} requires a credential", do)
        if "result" not in _json(answer):
            what = f"{self._url} answers {answer.status_code}: {answer.text[:200]!r}"
            do = "configure the proxy to pass on the path and the Host header unchanged (or set gateway.allowed_hosts)"
            if answer.status_code == 404:
                do = f"give --url the URL of clients (gateway.admin.listen is for --admin-url), or {do}"
            return failure("endpoint", what, do)
        return ok("endpoint", f"{self._url} answers")

    async def in_a_session(self) -> list[Finding]:
        """Open a session, run the checks that need one, and end it."""
        opened = await self._post({"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": _HANDSHAKE})
        session = opened.headers.get("mcp-session-id", "")
        if not session:
            do = "look for this request in the gateway's log"
            return [failure("sessions", f"no session could be opened: {opened.text[:200]!r}", do)]
        carried = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
        try:
            return [await self._is_found_everywhere(carried), await self._streams(carried)]
        finally:
            async with self._http() as http:
                await http.request("DELETE", self._url, headers=carried)

    async def _is_found_everywhere(self, carried: dict[str, str]) -> Finding:
        """Check that the gateway finds the session over each of several new connections, which a load balancer may send
        to other gateways. `carried`: the headers that name the session."""
        ping = {"jsonrpc": "2.0", "id": 4, "method": "ping"}
        answers = await asyncio.gather(*(self._post(ping, **carried) for _ in range(_CONNECTIONS)))
        lost = sum(1 for answer in answers if answer.status_code == 404)
        if lost:
            return failure(
                "sessions",
                f"{lost} of {_CONNECTIONS} connections reached a gateway that does not know the session",
                "give all gateways the same redis store and the same MCP_GATEWAY_KEYS",
            )
        wrong = [answer for answer in answers if answer.status_code != 200]
        if wrong:
            do = "read the gateways' logs, and check that they have the same MCP_GATEWAY_KEYS and reach each other"
            what = f"{len(wrong)} of {_CONNECTIONS} connections got status {wrong[0].status_code}"
            return failure("sessions", what, do)
        return ok("sessions", f"a session was found through each of {_CONNECTIONS} connections")

    async def _streams(self, carried: dict[str, str]) -> Finding:
        """Check that no proxy buffers an open event stream: its second event has to arrive while the stream is open.
        `carried`: the headers that name the session."""
        for _ in range(_CONNECTIONS):
            headers = carried | {"Accept": "text/event-stream"}
            async with self._http() as http:
                try:
                    async with asyncio.timeout(_SECOND_EVENT_S), http.stream("GET", self._url, headers=headers) as got:
                        if got.status_code == 404:
                            continue  # a gateway that does not know the session: reported by `_is_found_everywhere`
                        # The first event proves nothing: many proxies pass on what comes with the headers, and buffer
                        # the rest.
                        if await _says_more(got):
                            return ok("event streams", "events arrive as they are sent")
                except TimeoutError:
                    break
        return failure(
            "event streams",
            f"an open stream's second event did not arrive in {_SECOND_EVENT_S:g} s: a proxy on the path buffers it",
            "switch off buffering (nginx: proxy_buffering off; see deploy/) and compression in the proxy",
        )

    async def takes_large_bodies(self) -> Finding:
        """Check that proxies let a large request pass to a gateway. The request calls no tool, because the gateway
        would count that as a failed call."""
        params = {"_meta": _META, "padding": "x" * _BODY_BYTES}
        message = {"jsonrpc": "2.0", "id": 5, "method": "server/discover", "params": params}
        answer = await self._post(message, **_DISCOVER)
        if "jsonrpc" not in _json(answer):
            size = f"{_BODY_BYTES >> 20} MiB"
            do = "let the proxy pass bodies of limits.body_bytes, as the gateway does (nginx: client_max_body_size 8m)"
            return failure("large calls", f"a proxy answers a call of {size} with status {answer.status_code}", do)
        return ok("large calls", f"a call of {_BODY_BYTES >> 20} MiB reaches the gateway")


async def _says_more(stream: httpx2.Response) -> bool:
    """Return True as soon as a second comment arrives on an event stream; False if the stream ends before. A proxy that
    buffers lets only the first one pass."""
    seen = 0
    async for line in stream.aiter_lines():
        seen += line.startswith(":")
        if seen > 1:
            return True
    return False


def _json(answer: httpx2.Response) -> dict[str, Any]:
    try:
        found = json.loads(answer.text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def check_running(config: Path | None, token: str, key: str, *, is_named: bool) -> AsyncIterator[Finding]:
    """Check the gateway at the address in the configuration, if one runs there. If `is_named` is False (the user has
    named no configuration), also check each gateway that this user has started at a terminal. `token`: a client's
    credential. `key`: an operator's key for the configured gateway; gateways started at a terminal have left keys of
    their own."""
    try:
        options = load(config).settings.gateway
    except ConfigurationError:  # another check reports it
        if is_named:
            return
        options = GatewaySettings()
    url = f"{url_here(options.host, options.port)}/mcp"
    here = [one for one in local_gateways() if not is_named or one.is_at(url)]
    for one in here:
        yield ok("gateway", f"{one.endpoint} is served by process {one.pid}{_of_other_file(one, config)}")
        async for finding in _seen(one.endpoint, token, one.url, one.key):
            yield finding
    if any(one.is_at(url) for one in here):
        return
    if await is_gateway(url):
        yield ok("gateway", f"{url} is served")
        async for finding in _seen(url, token, url, key):
            yield finding
    elif not here:
        yield ok("gateway", _NONE.format(url=url))


def _of_other_file(one: LocalGateway, config: Path | None) -> str:
    """Return words that name a gateway's configuration if it is another file than the checked one. Return an empty
    string if it is the checked file, or is unknown."""
    is_other = one.config and (config is None or one.config != os.path.realpath(config))
    return f", with another configuration, {one.config}" if is_other else ""


async def _seen(endpoint: str, token: str, operators: str, key: str) -> AsyncIterator[Finding]:
    async for finding in check_outside(endpoint, token):
        if finding.state == "error" and "requires a credential" in finding.what:  # nobody has asked for this gateway
            finding = warning(finding.check, f"{finding.what}, so nothing more was checked", finding.do)
        yield finding
    if key:
        async for finding in check_clients_at(operators, key):
            yield replace(finding, what=f"{operators}: {finding.what}")


async def is_gateway(url: str) -> bool:
    """Return True if an MCP Session Gateway answers at the URL; False if another program does, or none."""
    body = b""
    try:
        async with (
            asyncio.timeout(_READY_TIMEOUT_S),
            httpx2.AsyncClient(trust_env=False, headers={"Accept-Encoding": "identity"}) as http,
            http.stream("GET", f"{url.removesuffix('/mcp')}/readyz") as answer,
        ):
            async for part in answer.aiter_raw():
                body += part
                if len(body) > _READY_BYTES:
                    return False
        found = json.loads(body)
    except (httpx2.HTTPError, TimeoutError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"ready", "draining"} <= found.keys()


async def check_clients(backend: Backend) -> AsyncIterator[Finding]:
    """Report the clients about which gateways have warned in the last day (they return to no session, or share one), as
    the audit trail in an open store says. Yield nothing if the store keeps no trail, or if it cannot be read."""
    if not backend.is_durable:
        return
    with suppress(StoreError):
        events = await backend.audit.recent(_EVENTS)
        since = time() - _LOOKED_BACK_S
        reasons = list(dict.fromkeys(event.reason for event in events if event.event == "warned" and event.at > since))
        for reason in reasons:
            what, _, line = reason.rpartition(ADVICE)
            yield warning("clients", what, f"have it send {line} (docs/clients.md)")
        if not reasons:
            yield ok("clients", _ALL_RETURN)


async def check_clients_at(url: str, key: str) -> AsyncIterator[Finding]:
    """Report the clients that return to no session or share one, as the running gateway at `url` answers. `key`: an
    operator's key."""
    base = url.rstrip("/").removesuffix("/mcp")
    try:
        headers, trust_env = {"Authorization": f"Bearer {key}"}, not is_of_this_machine(base)
        async with httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT_S, trust_env=trust_env) as http:
            answer = await http.get(f"{base}/admin/api/warnings")
    except httpx2.HTTPError as error:
        what = f"{base} cannot be asked for its clients: {error or type(error).__name__}"
        yield warning("clients", what, _WHERE)
        return
    if answer.status_code == 401:
        do = "set MCP_GATEWAY_ADMIN_KEY to a key whose digest is in gateway.admin.keys"
        yield warning("clients", f"{base} does not accept the operator's key", do)
        return
    if answer.status_code != 200:
        yield warning("clients", f"{base} answers {answer.status_code} when asked for its clients", _WHERE)
        return
    clients = msgspec.json.decode(answer.content, type=list[ClientWarning])
    for client in clients:
        yield warning("clients", client.what, f"have it send {client.line} (docs/clients.md)")
    if not clients:
        yield ok("clients", _ALL_RETURN)
