"""Merge the lists of several servers behind one URL page by page, and find the server that a request names."""

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

import msgspec

from gateway.calls.client_request import Call
from gateway.errors import unknown_tool
from gateway.protocol.merged_lists import (
    Tools,
    app_of,
    cursor_of,
    has_more,
    items_of,
    merge_lists,
    next_cursor,
    split_public_name,
)
from gateway.protocol.methods import LISTS, METHODS
from gateway.protocol.params import text_of
from gateway.protocol.result_translation import Missing, list_result
from gateway.protocol.skill_uris import SKILLS_LIST, distinct
from gateway.relay.late_servers import Asker, LateServers
from gateway.relay.policy_admission import Admission, VisibleServers
from gateway.relay.requests_to_server import ask, empty_result
from gateway.relay.resource_servers import OpenApps, ResourceServers
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.list_pages import listed_items
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Message, Object, encode


class MergedServers:
    """Answer requests that concern all servers behind one URL, and find the server of every other request."""

    def __init__(self, servers: VisibleServers, admission: Admission, late: LateServers) -> None:
        self._servers = servers
        self._admission = admission
        self._late = late
        self._apps = OpenApps()
        self.resources = ResourceServers(servers, admission, late, self._apps)

    # -- the server that a request names

    def server_by_name(self, call: Call) -> tuple[ConfiguredUpstream, msgspec.Raw | None]:
        """Return the server of the tool or prompt that a call names, and the server's own name of that tool or prompt,
        as JSON. This name is None if the client has used the server's own name already.

        Raises:
            Refused: no server has the name.
        """
        kind, public = METHODS[call.method].kind.removesuffix("s"), text_of(call.params, "name")
        try:
            server, name = split_public_name(public, self._servers.to(call.exchange.context), kind)
        except Refused:
            if call.method != "tools/call":
                raise
            return self._server_of_app(public, call), None
        return self._servers.all[server], msgspec.Raw(encode(name))

    def with_own_name(self, upstream: ConfiguredUpstream, call: Call, name: msgspec.Raw | None) -> Call:
        """Return the call with `name`, the tool's or prompt's own name at the server; unchanged if `name` is None. If
        several servers use the URI of the tool's MCP App, record that the session opens this server's app."""
        if name is None:
            return call
        call = call.with_params(call.params | {"name": name})
        if self._apps.contested:
            self._apps.called(call.live, upstream.name, text_of(call.params, "name"))
        return call

    def opens_app(self, upstream: ConfiguredUpstream, name: msgspec.Raw) -> bool:
        """Return True if several servers use the URI of the MCP App that this tool opens. Calls of the tool must then
        be recorded in `OpenApps`. `name` is the server's own name of the tool, as JSON."""
        return (upstream.name, msgspec.json.decode(name)) in self._apps.contested

    async def server_for(self, call: Call) -> tuple[ConfiguredUpstream, Call]:
        """Return the server of a request that names a tool, a prompt or a completion's `ref`. Also return the request
        with the server's own names in place of the public ones.

        Raises:
            Refused: no server has what the request names, or the request names none of these.
        """
        row = METHODS.get(call.method)
        if row is not None and row.named == "name":
            upstream, own_name = self.server_by_name(call)
            return upstream, self.with_own_name(upstream, call, own_name)
        if row is None or row.named != "ref":
            raise Refused(200, METHOD_NOT_FOUND, f"Method not found: {call.method}")
        ref = msgspec.json.decode(call.params.get("ref", b"null"))
        if not isinstance(ref, dict) or not isinstance(ref.get("name"), str):
            uri = str(ref.get("uri")) if isinstance(ref, dict) else ""
            return (await self.resources.find(uri, call, may_be_template=True)).upstream, call
        server, name = split_public_name(ref["name"], self._servers.to(call.exchange.context), "prompt")
        params = call.params | {"ref": msgspec.Raw(encode(ref | {"name": name}))}
        return self._servers.all[server], call.with_params(params)

    def _server_of_app(self, tool: str, call: Call) -> ConfiguredUpstream:
        """Return the server of a tool that an MCP App calls by the server's own name, without prefix. Of several
        servers that have such a tool for apps, it is the one whose app the session has opened.

        Raises:
            Refused: no server has a tool with this name for apps; or several have one, and the session has not opened
                apps of exactly one of them.
        """
        context, live = call.exchange.context, call.live
        having = []
        for server in self._servers.to(context).values():
            known = server.server_lists.known("tools/list", None if live is None else server.any_conversation(live))
            tools = known if known is not None else server.probed_tools
            if not isinstance(tools, Tools) or not tools.apps or not tools.called("", tool).is_for_apps:
                continue
            if self._admission.may_call(server, context, tools, tool):
                having.append(server)
        if len(having) > 1:
            opened = self._apps.open_in(live)
            having = [server for server in having if server.name in opened] or having
        if not having:
            raise unknown_tool(tool)
        if len(having) > 1:
            names = " or ".join(f"{server.name}__{tool[:128]}" for server in having)
            raise Refused(
                200,
                INVALID_PARAMS,
                f"Several servers have a tool {tool[:128]} for apps: call {names}",
                reason="ambiguous_tool",
            )
        return having[0]

    # -- requests to all servers

    async def merged_list(self, call: Call) -> None:
        """Answer a list request with one page that combines the next pages of all servers that have more items. So an
        endless list of one server does not hide the items of others. The answer names the servers that did not answer
        in time.

        Raises:
            Refused: the cursor is not one of the gateway's.
        """
        servers = self._servers.to(call.exchange.context)
        start = cursor_of(call.params, servers)
        asked = [upstream for name, upstream in servers.items() if start is None or name in start]
        found, missing = await self._pages(asked, call, start)
        if call.method == SKILLS_LIST:
            found = await self._with_origins(found, call)
        cursor = next_cursor({name: page["nextCursor"] for name, page in found.items() if has_more(page)})
        body: dict[str, Any] = {LISTS[call.method]: merge_lists(call.method, found.items())}
        if cursor is not None:
            body["nextCursor"] = cursor
        # A later page may be of other servers. All pages of a list have one scope (MCP 2026-07-28, Caching).
        is_part = start is not None or cursor is not None
        is_filtered = is_part or any(self._admission.filters(servers[name], call.method) for name in found)
        result = list_result(call.era, body, [*found.values()], missing, is_filtered=is_filtered)
        call.exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(result))))

    async def _pages(
        self, upstreams: Iterable[ConfiguredUpstream], call: Call, cursors: Mapping[str, str] | None
    ) -> tuple[Mapping[str, Any], list[Missing]]:
        """Request one page of a list from each server, and remove the items that the session may not see. Return the
        pages by server, and the servers that are missing. `cursors` has, by server, the cursor of the page to request;
        None for the first pages."""
        upstreams = tuple(upstreams)

        def page_of(upstream: ConfiguredUpstream) -> Coroutine[Any, Any, Any]:
            params: Object = {} if cursors is None else {"cursor": msgspec.Raw(encode(cursors[upstream.name]))}
            return self._page(upstream, call.method, call.with_params(params))

        gathered = await self._late.gather(upstreams, Asker.of(call), page_of, method=call.method)
        pages: dict[str, Any] = {}
        for upstream in upstreams:
            page = gathered.answers.get(upstream.name)
            if upstream.name in gathered.known:
                page = {LISTS[call.method]: gathered.known[upstream.name]}
            if page is not None:
                self._admission.show(upstream, call.exchange, call.method, page)
                pages[upstream.name] = page
        return pages, [*gathered.missing]

    async def _with_origins(self, pages: Mapping[str, Any], call: Call) -> Mapping[str, Any]:
        """Return the pages of skills, by server, with URIs that are unique, because MCP hosts refuse a list that has a
        URI twice. If two servers list the same URI, put the name of the later server into its URI."""
        servers, row = self._servers.to(call.exchange.context), METHODS[call.method]
        if sum(row.is_offered(server.known_capabilities) for server in servers.values()) < 2:
            return pages
        listed, taken = await self.resources.skills(call), set[str]()
        named: dict[str, Any] = {}
        for server in servers:
            skills = items_of(pages.get(server), row.listed, row.item_key)
            if server in pages:
                named[server] = pages[server] | {row.listed: distinct(server, skills, taken)}
            taken.update(listed.get(server, ()), (skill["uri"] for skill in skills))
        return named

    async def send_to_all(self, call: Call) -> None:
        """Send a request that changes a setting to every server. Answer the client when all servers have answered,
        except late ones. A late server gets the setting from the session's record when it starts."""
        upstreams = self._servers.to(call.exchange.context).values()
        await self._late.gather(upstreams, Asker.of(call), lambda u: self._send(u, call))
        call.exchange.finish(empty_result())

    async def _send(self, upstream: ConfiguredUpstream, call: Call) -> None:
        if await upstream.era_for(call.era) is call.era:
            await self._page(upstream, call.method, call)

    async def _page(self, upstream: ConfiguredUpstream, method: str, call: Call) -> Any | None:
        """Request a list page, or send a setting, as `method` says, and return the server's result. Return None if the
        answer is an error or no object, or if the server may not get the method.

        Raises:
            UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
        """
        if METHODS[method].extension:
            await upstream.capabilities()
            if not self._admission.may_get(upstream, call.exchange.context, method):
                return None
        answer = await ask(upstream, call, method, call.params)
        result = answer.message.result
        page = msgspec.json.decode(result) if isinstance(result, msgspec.Raw) else None
        if not isinstance(page, dict):
            return None
        if method in LISTS:
            upstream.server_lists.add_page(method, answer.conversation, page)
        if method == "tools/list":
            tools = listed_items(method, page)
            contested = len(self._apps.contested)
            self._apps.listed(upstream.name, [(tool["name"], uri) for tool in tools if (uri := app_of(tool))])
            if len(self._apps.contested) > contested:  # calls of these tools have to be recorded from now on
                for server in self._servers.all.values():
                    server.known.changed()
        return page
