"""What policy lets through to a server, and what of its lists: by the names that the server lists, and by methods that
are known (`gateway.protocol.methods`). What is hidden is answered as what is not there."""

import logging
from typing import Any

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.config.policy import PolicySettings
from gateway.errors import unknown_method, unknown_prompt, unknown_resource
from gateway.policy.decisions import Policy
from gateway.policy.tool_calls import ToolCalls
from gateway.protocol.listing import Names, Tools, items_of
from gateway.protocol.methods import METHODS
from gateway.protocol.params import text_of
from gateway.protocol.uris import is_of_any
from gateway.upstreams.review import unmatched
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import Context
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, Object, encode
from transports.upstream_port import UpstreamUnavailable

__all__ = ["Admission"]

logger = logging.getLogger(__name__)


class Admission:
    """Of all servers."""

    def __init__(self, policy: Policy, calls: ToolCalls, settings: PolicySettings) -> None:
        self._policy = policy
        self._calls = calls
        self._refuses_unmatched = settings.unmatched_patterns == "refuse"

    # -- requests

    def admit_now(
        self, upstream: ConfiguredUpstream, conversation: Conversation, exchange: Exchange, params: Object
    ) -> Object | None:
        """As `admit`, where nothing has to be found out; else None."""
        restricted = self._policy.restricts(upstream.name)
        row = METHODS.get(exchange.method)
        if exchange.method == "tools/call":
            tools = upstream.inventory.known("tools/list", conversation)
            if not isinstance(tools, Tools) or ("tools" in restricted and text_of(params, "name") not in tools):
                return None
            self._compare(upstream, tools)
            return self._calls.checked(upstream.name, tools, exchange, params)
        if exchange.method == "tools/list" or (restricted and (row is None or row.kind != "none")):
            return None
        return params

    async def admit(
        self, upstream: ConfiguredUpstream, exchange: Exchange, era: Era, params: Object, correlation: str
    ) -> Object:
        """A request's params as the server is to see them.

        Raises:
            Refused: it names nothing that is there for this session, or its arguments are not good.
            UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot say what it lists.
        """
        restricted, method = self._policy.restricts(upstream.name), exchange.method
        row = METHODS.get(method)
        if method == "tools/call":
            name = text_of(params, "name")
            tools = await self._tools(upstream, exchange, era, name if "tools" in restricted else "", correlation)
            self._compare(upstream, tools)
            return await self._calls.checked_in_turns(upstream.name, tools, exchange, params)
        if row is None and restricted:
            raise unknown_method(method)
        if row is None or not row.named:
            return params
        asking = _Asking(self._policy, upstream, exchange, era, correlation)
        if row.kind == "completions":
            await self._complete(asking, restricted, params)
        elif row.kind not in restricted:
            pass
        elif method == "subscriptions/listen":
            return self._heard(upstream, exchange.context, params)
        elif row.kind == "prompts":
            await asking.prompt(text_of(params, row.named))
        else:
            await asking.resource(text_of(params, row.named))
        return params

    def _compare(self, upstream: ConfiguredUpstream, tools: Tools) -> None:
        """Compare a server that could not be asked at the start with its patterns, at its first call. Raises
        `UpstreamUnavailable`: a pattern matches no tool, so it is unknown what it was to protect."""
        if upstream.is_reviewed or not self._refuses_unmatched:
            return
        if tools.unmatched is None:
            where = f"mcpServers.{upstream.name}.tools"
            tools.unmatched = unmatched(where, upstream.settings.tools, tools.schemas, "tool")
        if tools.unmatched:
            logger.error("server %s is not called: %s", upstream.name, "; ".join(tools.unmatched))
            raise UpstreamUnavailable(
                f"server {upstream.name!r} is not served: its policy names tools it does not list"
            )
        upstream.is_reviewed = True

    async def _tools(
        self, upstream: ConfiguredUpstream, exchange: Exchange, era: Era, name: str, correlation: str
    ) -> Tools:
        await upstream.facts()
        live = exchange.live
        known = upstream.inventory.known("tools/list", None if live is None else upstream.open_with(live))
        if not isinstance(known, Tools) or (name and name not in known):
            conversation = await upstream.conversation_for(exchange, era, correlation)
            known = await upstream.inventory.listed("tools/list", conversation, name)
        assert isinstance(known, Tools)
        return known

    async def _complete(self, asking: "_Asking", restricted: frozenset[str], params: Object) -> None:
        """What is completed is decided on as what it belongs to."""
        ref = msgspec.json.decode(params.get("ref", b"null"))
        ref = ref if isinstance(ref, dict) else {}
        if ref.get("type") == "ref/prompt" and isinstance(ref.get("name"), str):
            if "prompts" in restricted:
                await asking.prompt(ref["name"])
        elif ref.get("type") == "ref/resource" and isinstance(ref.get("uri"), str):
            if "resources" in restricted:
                await asking.resource(ref["uri"])
        elif restricted:
            raise Refused(200, INVALID_PARAMS, "params.ref must name a prompt, or a resource by its URI")

    def _heard(self, upstream: ConfiguredUpstream, context: Context, params: Object) -> Object:
        wanted = msgspec.json.decode(params.get("notifications", b"{}"))
        if not isinstance(wanted, dict) or not isinstance(wanted.get("resourceSubscriptions"), list):
            return params
        uris = frozenset(uri for uri in wanted["resourceSubscriptions"] if isinstance(uri, str))
        wanted["resourceSubscriptions"] = sorted(self.permitted(upstream.name, context, uris))
        return params | {"notifications": msgspec.Raw(encode(wanted))}

    def permitted(self, server: str, context: Context, uris: frozenset[str]) -> frozenset[str]:
        """Those resources of which a session may hear."""
        if "resources" not in self._policy.restricts(server):
            return uris
        return frozenset(uri for uri in uris if self._policy.allows_uri(context, server, uri))

    def passes(self, upstream: ConfiguredUpstream, method: str) -> bool:
        """Whether a client's notification is for that server."""
        return method in METHODS or not self._policy.restricts(upstream.name)

    # -- lists

    def show(self, upstream: ConfiguredUpstream, context: Context, method: str, page: dict[str, Any]) -> None:
        """Leave in a list's page what that context may see."""
        row, server = METHODS[method], upstream.name
        items = items_of(page, row.listed, row.item_key)
        if row.kind == "tools":
            page[row.listed] = self._calls.shown(server, context, items)
        elif row.kind in self._policy.restricts(server):
            allows = self._policy.allows_prompt if row.kind == "prompts" else self._policy.allows_listed_uri
            page[row.listed] = [item for item in items if allows(context, server, item[row.item_key])]

    def shapes(self, upstream: ConfiguredUpstream, method: str) -> bool:
        """Whether that list is other than the server makes it."""
        row = METHODS.get(method)
        if row is None or not row.listed:
            return False
        return row.kind == "tools" or row.kind in self._policy.restricts(upstream.name)


class _Asking:
    """One request, asking whether what it names is there for its session."""

    def __init__(
        self, policy: Policy, upstream: ConfiguredUpstream, exchange: Exchange, era: Era, correlation: str
    ) -> None:
        self._policy = policy
        self._upstream = upstream
        self._exchange = exchange
        self._era = era
        self._correlation = correlation

    async def prompt(self, name: str) -> None:
        """Raises `Refused`."""
        context, server = self._exchange.context, self._upstream.name
        if name not in await self._names("prompts/list", name) or not self._policy.allows_prompt(context, server, name):
            raise unknown_prompt(name)

    async def resource(self, uri: str) -> None:
        """Raises `Refused`."""
        context, server = self._exchange.context, self._upstream.name
        if uri in await self._names("resources/list", uri):
            if self._policy.allows_listed_uri(context, server, uri):
                return
        elif self._policy.allows_uri(context, server, uri):
            # Of a template: then that has to be there as well.
            templates = await self._names("resources/templates/list", uri)
            if is_of_any(uri, (t for t in templates if self._policy.allows_listed_uri(context, server, t))):
                return
        raise unknown_resource(uri)

    async def _names(self, method: str, name: str) -> Names:
        conversation = await self._upstream.conversation_for(self._exchange, self._era, self._correlation)
        found = await self._upstream.inventory.listed(method, conversation, name)
        assert isinstance(found, Names)
        return found
