"""The upstreams behind one URL. One upstream is relayed raw; several are put together by the catalog."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.bridge.legacy_server import LegacyServerBridge, legacy_meta, legacy_params
from gateway.bridge.modern_server import ModernServerBridge
from gateway.bridge.subscription_relay import caller_of
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.shared_server import considerate
from gateway.errors import OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE
from gateway.policy.decisions import Policy
from gateway.protocol.catalog import cursor_of, merge_lists, next_cursor, owner_of
from gateway.protocol.handshake import HandshakeRefused, handshake_of, merge_discoveries, merge_handshakes
from gateway.protocol.methods import LISTS, METHODS, RECORDED, REPEATABLE, lists_of
from gateway.protocol.params import text_of
from gateway.protocol.results import list_result
from gateway.relay.admission import Admission
from gateway.relay.subscriptions import listen, relay_changes
from gateway.sessions.child_sessions import ChildSessions, with_handles
from gateway.upstreams.upstream import ConfiguredUpstream
from gateway.version import __version__
from session_store import Context
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Message, Object, encode
from transports.turns import is_large, others_first
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["Endpoint"]

logger = logging.getLogger(__name__)


_HELD: Final = 1_024


class Endpoint:
    """What one URL serves."""

    def __init__(
        self,
        upstreams: Sequence[ConfiguredUpstream],
        *,
        call_timeout_s: float,
        handles: ChildSessions,
        policy: Policy,
        admission: Admission,
    ) -> None:
        self._upstreams: Mapping[str, ConfiguredUpstream] = {u.name: u for u in upstreams}
        self._call_timeout_s = call_timeout_s
        self._handles = handles
        self._policy = policy
        self._admission = admission
        self._only: ConfiguredUpstream | None = upstreams[0] if len(upstreams) == 1 else None
        self._seen_by = functools.lru_cache(maxsize=_HELD)(self._find_seen)

    def _find_seen(self, context: Context) -> Mapping[str, ConfiguredUpstream]:
        """The servers that are there for that context."""
        if self._policy.is_open:
            return self._upstreams
        return {name: u for name, u in self._upstreams.items() if self._policy.sees(context, name)}

    def warm_servers(self, context: Context) -> list[ConfiguredUpstream]:
        """Those of which processes are started ahead."""
        return [u for u in self._seen_by(context).values() if u.settings.warm]

    # -- what a client is told it can do

    async def initialize(self, live: LiveSession, correlation: str) -> bytes:
        """Open every upstream of a legacy session; the merged `initialize` result.

        Raises:
            HandshakeRefused: the only upstream said no.
            UpstreamUnavailable: none could be had.
        """
        outcomes = await asyncio.gather(
            *(self._greet(u, live, correlation) for u in self._seen_by(live.session.context).values()),
            return_exceptions=True,
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for failure in failures:
            if not isinstance(failure, UpstreamUnavailable | HandshakeRefused):
                raise failure
            logger.warning("a server is left out of a session: %s", failure)
        results = [outcome for outcome in outcomes if isinstance(outcome, bytes)]
        if not results:
            raise failures[0] if failures else UpstreamUnavailable("there is no server here for this session")
        return merge_handshakes(results, __version__)

    async def _greet(self, upstream: ConfiguredUpstream, live: LiveSession, correlation: str) -> bytes:
        """The `initialize` result of one upstream, or what it says to `server/discover` when it knows no handshake."""
        if await upstream.era_for(Era.LEGACY) is Era.MODERN:
            discovery = (await upstream.facts()).discover
            assert discovery is not None
            return handshake_of(discovery, live.session.client.protocol_version)
        conversation = upstream.conversation(live, Era.LEGACY, correlation)
        await conversation.ready()
        assert conversation.initialize_result is not None
        return conversation.initialize_result

    async def discover(self, context: Context) -> bytes | None:
        """The merged `server/discover` result; of a server that only shakes hands, what it says then. None when it is
        not known of any server yet.

        Raises:
            Refused: 503 while it cannot be known.
        """
        facts = await asyncio.gather(*(u.facts() for u in self._seen_by(context).values()))
        results = [f.discovery for f in facts if f.discovery is not None]
        if results:
            return merge_discoveries(results, __version__)
        failure = next((f.failure for f in facts if f.failure), "")
        if failure:
            raise Refused(503, UPSTREAM_UNAVAILABLE, failure, headers={"Retry-After": "5"})
        return None

    # -- relaying

    async def relay(self, exchange: Exchange, era: Era, params: Object, meta: Object, correlation: str) -> None:
        """Send a call on its way; its outcome comes through the exchange, whatever it is."""
        try:
            if exchange.is_subscription and not await self._is_modern():
                await listen(self._seen_by(exchange.context).values(), exchange, params, correlation)
            elif self._only is not None and self._only.name in self._seen_by(exchange.context):
                await self._send(self._only, exchange, era, params, meta, correlation)
            else:
                await self._relay_to_one_of_many(exchange, era, params, meta, correlation)
        except UpstreamUnavailable as error:
            exchange.fail(UPSTREAM_UNAVAILABLE, str(error))
        except HandshakeRefused as error:
            exchange.finish(Message(jsonrpc="2.0", id=0, error=error.error))
        except LinkClosed as error:
            exchange.fail(OUTCOME_UNKNOWN, str(error))

    async def _is_modern(self) -> bool:
        """Whether there is one server only, and it speaks the modern era."""
        return self._only is not None and await self._only.era_for(Era.MODERN) is Era.MODERN

    def relay_now(self, exchange: Exchange, era: Era, params: Object, meta: Object, correlation: str) -> bool:
        """As `relay`, where nothing has to be found out or waited for; else False, and nothing was done."""
        upstream, live = self._only, exchange.live
        if upstream is None and exchange.method == "tools/call":
            name, inner = owner_of(text_of(params, "name"), self._seen_by(exchange.context), "tool")
            upstream, params = self._upstreams[name], params | {"name": msgspec.Raw(encode(inner))}
        if upstream is None or upstream.settings.shared or live is None or live.ended or upstream.settings.handles:
            return False
        if upstream.era_now(era) is not era or upstream.name not in self._seen_by(exchange.context):
            return False
        conversation = upstream.conversation(live, era, correlation)
        if not conversation.is_open_to(live):
            return False
        admitted = self._admission.admit_now(upstream, conversation, exchange, params)
        return admitted is not None and conversation.start_now(exchange, admitted, meta)

    def may_hear(self, context: Context, uri: str) -> bool:
        """Whether a session may subscribe to a resource, at whatever server has it."""
        return any(upstream.permits(context, frozenset({uri})) for upstream in self._seen_by(context).values())

    async def is_repeatable(self, exchange: Exchange, era: Era, params: Object, correlation: str) -> bool:
        """Whether a call that may have taken effect already can be made once more.

        Raises:
            UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
        """
        if exchange.method != "tools/call":
            return exchange.method in REPEATABLE
        name = text_of(params, "name")
        upstream = self._only
        if upstream is None:
            owner, name = owner_of(name, self._seen_by(exchange.context), "tool")
            upstream = self._upstreams[owner]
        return await upstream.is_repeatable(name, await upstream.conversation_for(exchange, era, correlation))

    async def notify(self, live: LiveSession, method: str, params: bytes | None, correlation: str) -> None:
        """Pass a legacy client's notification to every upstream it has a conversation with."""
        for upstream in self._seen_by(live.session.context).values():
            if live.ended:
                return
            if not self._admission.passes(upstream, method):
                continue
            if await upstream.era_for(Era.LEGACY) is Era.LEGACY:
                upstream.conversation(live, Era.LEGACY, correlation).notify(method, params)
            elif method == "notifications/initialized":
                with contextlib.suppress(UpstreamUnavailable, LinkClosed):
                    await relay_changes(upstream, live, correlation)

    async def _relay_to_one_of_many(
        self, exchange: Exchange, era: Era, params: Object, meta: Object, correlation: str
    ) -> None:
        if exchange.method in LISTS:
            await self._list(exchange, era, params, meta, correlation)
            return
        if exchange.method in METHODS and METHODS[exchange.method].for_all:
            await self._ask_all(exchange, era, params, meta, correlation)
            return
        upstream, params = await self._owner(exchange, era, params, meta, correlation)
        await self._send(upstream, exchange, era, params, meta, correlation)

    async def _send(
        self,
        upstream: ConfiguredUpstream,
        exchange: Exchange,
        era: Era,
        params: Object,
        meta: Object,
        correlation: str,
    ) -> None:
        if upstream.settings.handles:
            seen = await self._handles.handle(exchange, era, params, (await upstream.facts()).tools)
            if seen is None:
                return
            params = seen
        params = await self._admission.admit(upstream, exchange, era, params, correlation)
        await others_first(is_large(params))
        if self._admission.shapes(upstream, exchange.method):
            exchange.shape = self._listing(upstream, exchange)
        theirs = await upstream.era_for(era)
        conversation = await upstream.conversation_for(exchange, era, correlation)
        if exchange.live is not None and theirs is not era:
            if theirs is Era.MODERN:
                await self._send_to_modern(upstream, conversation, exchange, params, meta, correlation)
                return
        if theirs is Era.LEGACY and era is Era.MODERN:
            exchange.bridge = LegacyServerBridge(conversation)
            params, meta = legacy_params(params), legacy_meta(meta)
        if upstream.settings.shared:
            others = [live.session for live in conversation.users if live is not None and live is not exchange.live]
            seen = considerate(exchange.method, params, others)
            if seen is None:
                exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b"{}")))
                return
            params = seen
        await conversation.start(exchange, params, meta)

    def _listing(self, upstream: ConfiguredUpstream, exchange: Exchange) -> Callable[[Exchange, Object], Object]:
        """A list, as the session may see it."""
        shape, method = exchange.shape, exchange.method
        key = LISTS[method]

        def shaped(exchange: Exchange, result: Object) -> Object:
            page = msgspec.json.decode(encode(result))
            upstream.inventory.seen(method, exchange.conversation, page)
            self._show(upstream, exchange.context, method, page)
            result = result | {key: msgspec.Raw(encode(page.get(key, [])))}
            if "cacheScope" in result:
                result["cacheScope"] = msgspec.Raw(b'"private"')
            return result if shape is None else shape(exchange, result)

        return shaped

    def _show(self, upstream: ConfiguredUpstream, context: Context, method: str, page: dict[str, Any]) -> None:
        """A page of a list, as that context sees it; the last one of tools with what handles need."""
        self._admission.show(upstream, context, method, page)
        if method == "tools/list" and upstream.settings.handles and not page.get("nextCursor"):
            page["tools"] = with_handles(page["tools"])

    async def _send_to_modern(
        self,
        upstream: ConfiguredUpstream,
        conversation: Conversation,
        exchange: Exchange,
        params: Object,
        meta: Object,
        correlation: str,
    ) -> None:
        live = exchange.live
        assert live is not None
        is_recorded = exchange.method in RECORDED
        changes_subscriptions = is_recorded and METHODS[exchange.method].kind == "resources"
        if changes_subscriptions or live.session.initialized:
            await relay_changes(upstream, live, correlation, anew=changes_subscriptions)
        if is_recorded:
            # The session remembers it; a modern server hears of it with the listening, or with the next request.
            exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b"{}")))
            return
        meta = meta | caller_of(live).meta(live.session.log_level)
        exchange.bridge = ModernServerBridge(conversation, params, meta)
        await conversation.start(exchange, params, meta)

    async def _owner(
        self, exchange: Exchange, era: Era, params: Object, meta: Object, correlation: str
    ) -> tuple[ConfiguredUpstream, Object]:
        method, seen = exchange.method, self._seen_by(exchange.context)
        row = METHODS.get(method)
        named = "" if row is None else row.named
        if row is not None and named == "name":
            name, inner = owner_of(text_of(params, "name"), seen, row.kind.removesuffix("s"))
            return self._upstreams[name], params | {"name": msgspec.Raw(encode(inner))}
        if named == "ref":
            ref = msgspec.json.decode(params.get("ref", b"null"))
            if isinstance(ref, dict) and isinstance(ref.get("name"), str):
                name, inner = owner_of(ref["name"], seen, "prompt")
                return self._upstreams[name], params | {"ref": msgspec.Raw(encode(ref | {"name": inner}))}
            return await self._owner_of_uri(
                str(ref.get("uri")) if isinstance(ref, dict) else "", exchange, era, correlation
            ), params
        if named == "uri":
            return await self._owner_of_uri(text_of(params, "uri"), exchange, era, correlation), params
        raise Refused(200, METHOD_NOT_FOUND, f"Method not found: {method}")

    async def _owner_of_uri(self, uri: str, exchange: Exchange, era: Era, correlation: str) -> ConfiguredUpstream:
        """Who listed that URI; else who lists a template that begins like it; else nobody."""
        best: tuple[int, ConfiguredUpstream] | None = None
        for upstream in self._seen_by(exchange.context).values():
            for row in lists_of("resources"):
                page = await self._page(upstream, row.name, {}, exchange, era, correlation)
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

    async def _list(self, exchange: Exchange, era: Era, params: Object, meta: Object, correlation: str) -> None:
        """Pages of all upstreams up to the first one that has more: its cursor is where the client reads on."""
        start = cursor_of(params)
        names = list(self._seen_by(exchange.context))
        if start is not None and start[0] not in names:
            raise Refused(200, INVALID_PARAMS, "Invalid cursor")
        names = names if start is None else names[names.index(start[0]) :]
        pages: list[tuple[str, Any]] = []
        cursor = None
        for name in names:
            ask: Object = {}
            if start is not None and name == start[0] and start[1]:
                ask["cursor"] = msgspec.Raw(encode(start[1]))
            page = await self._page(self._upstreams[name], exchange.method, ask, exchange, era, correlation, meta)
            if page is None:
                continue
            self._show(self._upstreams[name], exchange.context, exchange.method, page)
            pages.append((name, page))
            if page.get("nextCursor"):
                cursor = next_cursor(name, page["nextCursor"])
                break
        body: dict[str, Any] = {LISTS[exchange.method]: merge_lists(exchange.method, pages)}
        if cursor is not None:
            body["nextCursor"] = cursor
        result = list_result(era, body, [page for _, page in pages])
        exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(result))))

    async def _page(
        self,
        upstream: ConfiguredUpstream,
        method: str,
        params: Object,
        exchange: Exchange,
        era: Era,
        correlation: str,
        meta: Object | None = None,
    ) -> Any | None:
        """One upstream's page, or None: a server that fails or has no such list takes nothing from the others."""
        try:
            async with asyncio.timeout(self._call_timeout_s):
                conversation = await upstream.conversation_for(exchange, era, correlation)
                await conversation.ready()
                meta = meta or {}
                if conversation.era is Era.MODERN and era is Era.LEGACY and exchange.live is not None:
                    meta = meta | caller_of(exchange.live).meta("")
                elif conversation.era is Era.MODERN and exchange.caller is not None:
                    meta = meta | exchange.caller.meta("")
                elif conversation.era is Era.LEGACY:
                    meta = legacy_meta(meta)
                if meta:
                    params = params | {"_meta": msgspec.Raw(encode(meta))}
                answer = await conversation.ask(method, encode(params))
        except (UpstreamUnavailable, HandshakeRefused, LinkClosed, TimeoutError) as error:
            logger.warning("server %s is left out of %s: %s", upstream.name, method, error)
            return None
        page = msgspec.json.decode(answer.result) if isinstance(answer.result, msgspec.Raw) else None
        if not isinstance(page, dict):
            return None
        if method in LISTS:
            upstream.inventory.seen(method, conversation, page)
        return page

    async def _ask_all(self, exchange: Exchange, era: Era, params: Object, meta: Object, correlation: str) -> None:
        for upstream in self._seen_by(exchange.context).values():
            if await upstream.era_for(era) is era:
                await self._page(upstream, exchange.method, params, exchange, era, correlation, meta)
        exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b"{}")))
