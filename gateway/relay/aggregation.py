"""Several servers behind one URL: merges their lists page by page, and finds the server that a request names.

Knows nothing of how a call is sent to its server (`gateway.relay.dispatch`).
"""

import asyncio
import logging
from typing import Any

import msgspec

from gateway.bridge.legacy_server import legacy_meta
from gateway.bridge.subscription_relay import caller_of
from gateway.calls.call import Call
from gateway.protocol.catalog import cursor_of, merge_lists, next_cursor, owner_of
from gateway.protocol.handshake import HandshakeRefused
from gateway.protocol.methods import LISTS, METHODS, lists_of
from gateway.protocol.params import text_of
from gateway.protocol.results import list_result
from gateway.relay.admission import Admission
from gateway.relay.visible_servers import VisibleServers
from gateway.upstreams.upstream import ConfiguredUpstream
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Message, encode
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["Aggregation", "empty_result"]

logger = logging.getLogger(__name__)


def empty_result() -> Message:
    """An empty result: the request was executed, and there is nothing to report."""
    return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b"{}"))


class Aggregation:
    """Answers requests that concern all servers of an endpoint, and finds the server of the others.

    `call_timeout_s`: how long one server may take for its page of a list.
    """

    def __init__(self, servers: VisibleServers, admission: Admission, *, call_timeout_s: float) -> None:
        self._servers = servers
        self._admission = admission
        self._call_timeout_s = call_timeout_s

    # -- the server that a request names

    def owner_by_name(self, call: Call) -> tuple[ConfiguredUpstream, Call]:
        """The server of a tool or a prompt, and the call with the name that the server has for it.

        Raises:
            Refused: no server has the name.
        """
        kind = METHODS[call.method].kind.removesuffix("s")
        server, name = owner_of(text_of(call.params, "name"), self._servers.to(call.exchange.context), kind)
        return self._servers.all[server], call.with_params(call.params | {"name": msgspec.Raw(encode(name))})

    async def owner(self, call: Call) -> tuple[ConfiguredUpstream, Call]:
        """The server that a request is for, and the call with the names that the server has.

        Raises:
            Refused: no server has what the request names, or it names nothing.
        """
        row = METHODS.get(call.method)
        named = "" if row is None else row.named
        if named == "name":
            return self.owner_by_name(call)
        if named == "ref":
            return await self._owner_of_ref(call)
        if named == "uri":
            return await self._owner_of_uri(text_of(call.params, "uri"), call), call
        raise Refused(200, METHOD_NOT_FOUND, f"Method not found: {call.method}")

    async def _owner_of_ref(self, call: Call) -> tuple[ConfiguredUpstream, Call]:
        """The server of the prompt (by name) or the resource (by URI) that a completion is for."""
        ref = msgspec.json.decode(call.params.get("ref", b"null"))
        if not isinstance(ref, dict) or not isinstance(ref.get("name"), str):
            uri = str(ref.get("uri")) if isinstance(ref, dict) else ""
            return await self._owner_of_uri(uri, call), call
        server, name = owner_of(ref["name"], self._servers.to(call.exchange.context), "prompt")
        params = call.params | {"ref": msgspec.Raw(encode(ref | {"name": name}))}
        return self._servers.all[server], call.with_params(params)

    async def _owner_of_uri(self, uri: str, call: Call) -> ConfiguredUpstream:
        """The server that lists the URI, or else the one whose template has the longest common prefix with the URI."""
        best: tuple[int, ConfiguredUpstream] | None = None
        for upstream in self._servers.to(call.exchange.context).values():
            for row in lists_of("resources"):
                page = await self._page(upstream, row.name, call.asking({}, {}))
                for item in (page or {}).get(row.listed, ()):
                    listed = item.get("uri") or item.get("uriTemplate", "").partition("{")[0]
                    exact = "uri" in item or item.get("uriTemplate") == uri
                    if (uri == listed or item.get("uriTemplate") == uri) if exact else uri.startswith(listed):
                        score = 1 << 20 if exact else len(listed)
                        if best is None or score > best[0]:
                            best = (score, upstream)
        if best is None:
            raise Refused(200, INVALID_PARAMS, f"Resource not found: {uri[:256]}", data={"uri": uri[:256]})
        return best[1]

    # -- requests to all servers

    async def list(self, call: Call) -> None:
        """Answer with the pages of all servers up to the first server that has more pages. The cursor of the answer
        continues there.

        Raises:
            Refused: the cursor is not one of the gateway.
        """
        start = cursor_of(call.params)
        names = [*self._servers.to(call.exchange.context)]
        if start is not None and start[0] not in names:
            raise Refused(200, INVALID_PARAMS, "Invalid cursor")
        names = names if start is None else names[names.index(start[0]) :]
        pages: list[tuple[str, Any]] = []
        cursor = None
        for name in names:
            upstream = self._servers.all[name]
            continues = start is not None and name == start[0] and start[1]
            params = {"cursor": msgspec.Raw(encode(start[1]))} if start is not None and continues else {}
            page = await self._page(upstream, call.method, call.with_params(params))
            if page is None:
                continue
            self._admission.show(upstream, call.exchange.context, call.method, page)
            pages.append((name, page))
            if page.get("nextCursor"):
                cursor = next_cursor(name, page["nextCursor"])
                break
        body: dict[str, Any] = {LISTS[call.method]: merge_lists(call.method, pages)}
        if cursor is not None:
            body["nextCursor"] = cursor
        result = list_result(call.era, body, [page for _, page in pages])
        call.exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(result))))

    async def send_to_all(self, call: Call) -> None:
        """Send a request to every server of the client's era. Answer once all servers have answered."""
        for upstream in self._servers.to(call.exchange.context).values():
            if await upstream.era_for(call.era) is call.era:
                await self._page(upstream, call.method, call)
        call.exchange.finish(empty_result())

    async def _page(self, upstream: ConfiguredUpstream, method: str, call: Call) -> Any | None:
        """The result of one server for that method. None if the server fails or has no such list: the others are served
        without it."""
        exchange, params, meta = call.exchange, call.params, call.meta
        try:
            async with asyncio.timeout(self._call_timeout_s):
                conversation = await upstream.conversation_for(call)
                await conversation.ready()
                if conversation.era is Era.MODERN and call.era is Era.LEGACY and (live := call.live) is not None:
                    meta = meta | caller_of(live).meta("")
                elif conversation.era is Era.MODERN and exchange.caller is not None:
                    meta = meta | exchange.caller.meta("")
                elif conversation.era is Era.LEGACY:
                    meta = legacy_meta(meta)
                if meta:
                    params = params | {"_meta": msgspec.Raw(encode(meta))}
                answer = await conversation.ask(method, encode(params))
        except (UpstreamUnavailable, HandshakeRefused, LinkClosed, TimeoutError) as error:
            logger.warning("items of server %s are missing in an answer to %s: %s", upstream.name, method, error)
            return None
        page = msgspec.json.decode(answer.result) if isinstance(answer.result, msgspec.Raw) else None
        if not isinstance(page, dict):
            return None
        if method in LISTS:
            upstream.inventory.seen(method, conversation, page)
        return page
