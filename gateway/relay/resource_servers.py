"""Find the server that has a resource, among several behind one URL (docs/adr/0021-owners-of-resources.md).

First search the lists that are known, so that no list is requested to read a listed resource. If no server lists the
resource, ask each server for it. Servers that the session does not see are never asked.
"""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from cachetools import LRUCache, TTLCache

from gateway.bridge.legacy_server import legacy_params
from gateway.calls.client_request import Call
from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession
from gateway.errors import unknown_resource
from gateway.protocol.merged_lists import APP_SCHEME, Names, Tools
from gateway.protocol.methods import METHODS
from gateway.protocol.params import text_of
from gateway.protocol.skill_uris import SKILLS_LIST, WITH_URIS, named_uri, origin_of, skill_fit, with_uris
from gateway.protocol.uris import closeness, template_fit
from gateway.relay.late_servers import UNAVAILABLE, Asker, LateServers
from gateway.relay.policy_admission import TEMPLATES, Admission, VisibleServers
from gateway.relay.requests_to_server import ServerAnswer, ask
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from transports.era import Era
from transports.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Object, encode, error_code
from transports.upstream_port import UpstreamUnavailable

_LIST: Final = "resources/list"
_READ: Final = "resources/read"
_FITS: Final[Mapping[str, Callable[[str, Names], int]]] = {
    _LIST: lambda uri, names: int(uri in names),
    SKILLS_LIST: skill_fit,
    TEMPLATES: template_fit,
}
"""For each list, the function that returns how well a URI matches the list's names. The first list with a match
decides."""

_NOT_FOUND: Final = frozenset({-32002, INVALID_PARAMS, METHOD_NOT_FOUND, 0})
"""The error codes by which servers say that they do not have a resource. In this order: MCP up to 2025-11-25; MCP
2026-07-28; a server without resources; version 1 of the Python SDK."""

_MOST_ASKED: Final = 16
"""Maximum number of servers that are asked for a resource which no server lists."""

_REMEMBERED, _REMEMBERED_S = 4_096, 60.0

Servers = Mapping[str, ConfiguredUpstream]

_MOST_APPS: Final = 64
"""Maximum number of apps that are recorded for one session."""
_MOST_TOOLS: Final = 4_096
"""Maximum number of tools with apps that are compared, over all servers."""


class OpenApps:
    """Record the MCP Apps that sessions have opened, so that requests of the apps reach the right server.

    An app uses its server's own names: it calls the tool `refresh`, not `a__refresh`. A request does not say which app
    sends it, so the gateway decides by the session's earlier requests (docs/adr/0022-apps.md)."""

    def __init__(self) -> None:
        self.contested: dict[tuple[str, str], str] = {}
        """The URIs of apps that several servers use, by server and tool. Such an app counts as opened when its tool is
        called. Reading its URI does not count, because the request does not say which server's app it means."""
        self._tools: dict[str, set[tuple[str, str]]] = {}  # servers and their tools, by the URI of the app
        self._known: set[tuple[str, str, str]] = set()
        self._called: WeakKeyDictionary[LiveSession, LRUCache[str, str]] = WeakKeyDictionary()
        self._opened: WeakKeyDictionary[LiveSession, set[str]] = WeakKeyDictionary()

    def listed(self, server: str, apps: Iterable[tuple[str, str]]) -> None:
        """Record which tools of a server have an app. `apps` has pairs of a tool's name and the URI of its app."""
        for tool, uri in apps:
            if (server, tool, uri) in self._known or len(self._known) >= _MOST_TOOLS:
                continue
            self._known.add((server, tool, uri))
            tools = self._tools.setdefault(uri, set())
            tools.add((server, tool))
            if len({name for name, _ in tools}) > 1:
                self.contested |= dict.fromkeys(tools, uri)

    def called(self, live: LiveSession | None, server: str, tool: str) -> None:
        """Record that the session has called `tool` of `server`. Do nothing unless several servers use the URI of the
        tool's app. The MCP host shows the result in the app, and reads that URI next."""
        uri = self.contested.get((server, tool))
        if uri is not None and live is not None:
            self._called.setdefault(live, LRUCache(_MOST_APPS))[uri] = server
            self.opened(live, server)

    def server_of(self, live: LiveSession | None, uri: str) -> str:
        """Return the name of the server whose tool the session has called last, of the tools that show their results in
        the app `uri`. Return an empty string if no such call is recorded. Calls are recorded only if several servers
        use the URI (`contested`)."""
        called = None if live is None else self._called.get(live)
        return "" if called is None else called.get(uri, "")

    def opened(self, live: LiveSession | None, server: str) -> None:
        """Record that the session has opened an app of this server."""
        if live is not None:
            self._opened.setdefault(live, set()).add(server)

    def open_in(self, live: LiveSession | None) -> frozenset[str]:
        """Return the servers whose apps the session has opened."""
        return frozenset() if live is None else frozenset(self._opened.get(live, ()))


class FoundServer(NamedTuple):
    """The server that has a resource."""

    upstream: ConfiguredUpstream
    answer: ServerAnswer | None = None
    """The server's answer, if the search has already read the resource. Else None."""


class ResourceServers:
    """Find the server of a resource. The search for an unlisted resource takes at most `late.read_s` seconds."""

    def __init__(self, servers: VisibleServers, admission: Admission, late: LateServers, apps: OpenApps) -> None:
        self._servers = servers
        self._admission = admission
        self._late = late
        self._apps = apps
        # Servers of unlisted resources, by session and URI. Digests: URIs are long, and clients choose them.
        self._remembered: TTLCache[bytes, str] = TTLCache(_REMEMBERED, _REMEMBERED_S)

    async def find(self, uri: str, call: Call, *, may_be_template: bool = False) -> FoundServer:
        """Find the server of a resource, for the session of the call. `may_be_template`: the URI may be that of a
        template, which cannot be read to find its server.

        Raises:
            Refused: no server has the resource.
            UpstreamUnavailable: a server that may have the resource does not answer.
        """
        found = await self._find(uri, call, is_readable=not may_be_template)
        if uri.startswith(APP_SCHEME) and call.method == _READ:
            having = self._known(uri, self._candidates(uri, call), call).keys() | {found.upstream.name}
            if len(having) == 1:
                self._apps.opened(call.live, found.upstream.name)
        return found

    async def server_for(self, call: Call) -> tuple[ConfiguredUpstream, Call, ServerAnswer | None]:
        """Find the server of the URI that a request names. Return the server, the call with the server's own URI, and
        the server's answer if the search has already read the resource (else None). Raises the same errors as
        `find`."""
        if (origin := self._origin(call)) is not None:
            return *origin, None
        found = await self.find(text_of(call.params, "uri"), call)
        return found.upstream, call, found.answer

    def _origin(self, call: Call) -> tuple[ConfiguredUpstream, Call] | None:
        """Return the server whose name the URI of a skill contains (`named_uri`), and the call with the server's own
        URI. Return None if the URI contains no server's name, or if that server has no skills, may not get the method,
        or is hidden from the session."""
        name, uri = origin_of(text_of(call.params, "uri"))
        context, may_get = call.exchange.context, self._admission.may_get
        server = self._servers.to(context).get(name)
        if server is None or METHODS[call.method].is_recorded:
            return None
        if not all(may_get(server, context, method) for method in (SKILLS_LIST, call.method)):
            return None

        def with_server(_: object, result: Object) -> Object:
            named = with_uris(msgspec.json.decode(encode(result)), lambda own: named_uri(name, own) or own)
            return result | {key: msgspec.Raw(encode(named[key])) for key in named.keys() & WITH_URIS}

        call.exchange.filter_result(with_server)
        return server, call.with_params(call.params | {"uri": msgspec.Raw(encode(uri))})

    async def skills(self, call: Call) -> dict[str, list[str]]:
        """Return the URIs of the skills that the call's session may see, in one list for each server. Leave out servers
        that do not answer in time."""
        context = call.exchange.context
        servers, may_have = self._servers.to(context), self._admission.may_have
        names, _ = await self._names(servers, call, SKILLS_LIST, "")
        return {name: [uri for uri in found if may_have(servers[name], context, uri)] for name, found in names.items()}

    async def _find(self, uri: str, call: Call, *, is_readable: bool) -> FoundServer:
        servers, late = self._candidates(uri, call), set[str]()
        if (known := self._known_server(uri, servers, call)) is not None:
            return FoundServer(known)
        for method, fit in _FITS.items():
            if method == TEMPLATES and METHODS[call.method].extension:
                continue  # a template tells nothing of skills, and a server may have one for all of them
            names, missing = await self._names(servers, call, method, uri)
            late |= missing
            fits = {name: fit(uri, found) for name, found in names.items()}
            if any(fits.values()):
                return FoundServer(self._best(uri, servers, fits, call))
        found = await self._ask_each(uri, servers, call, late) if is_readable else None
        if found is not None:
            self._remembered[_key(call, uri)] = found.upstream.name
            return found
        if late:
            raise UpstreamUnavailable(
                f"no server that answers has the resource; {', '.join(sorted(late))} did not answer in time"
            )
        raise unknown_resource(uri, call.era, call.method)

    # -- what is known

    def _known_server(self, uri: str, servers: Servers, call: Call) -> ConfiguredUpstream | None:
        """Find the server of a resource from earlier answers of servers, without asking any server. Return None if they
        do not tell which server it is."""
        if fitting := self._known(uri, servers, call):
            return self._best(uri, servers, fitting, call)
        if (name := self._remembered.get(_key(call, uri), "")) in servers:
            return servers[name]
        lists = {name: _complete(server, call) for name, server in servers.items()}
        if METHODS[call.method].extension or any(known is None for known in lists.values()):
            return None
        for method, fit in _FITS.items():
            fitting = {name: fit(uri, known[method]) for name, known in lists.items() if known is not None}
            if any(fitting.values()):
                return self._best(uri, servers, fitting, call)
        return None

    def _known(self, uri: str, servers: Servers, call: Call) -> dict[str, int]:
        """Return the servers whose received lists have the resource, or whose tools use it as their app, as keys. Each
        value is 1: for `_best`, all of them match equally."""
        fitting = {name: 1 for name, server in servers.items() if _is_listed(uri, server, call)}
        if uri.startswith(APP_SCHEME):
            for name, server in servers.items():
                for tools in _tools(server, call):
                    self._apps.listed(name, tools.apps.items())
                    if uri in tools.apps.values():
                        fitting[name] = 1
        return fitting

    def lister(self, uri: str, call: Call) -> ConfiguredUpstream | None:
        """Return a server whose received lists have the resource; None if there is none."""
        servers = self._candidates(uri, call)
        return next((server for server in servers.values() if _is_listed(uri, server, call)), None)

    def _candidates(self, uri: str, call: Call) -> Servers:
        """Return the servers that may be asked for the resource, in the order of the configuration: those at which
        policy lets the session see it, and that offer the method of the call or have not answered the gateway yet."""
        context, may_get = call.exchange.context, self._admission.may_get
        return {
            name: server
            for name, server in self._servers.to(context).items()
            if self._admission.may_have(server, context, uri)
            and (not server.has_answered or may_get(server, context, call.method))
        }

    def _best(self, uri: str, servers: Servers, fitting: Mapping[str, int], call: Call) -> ConfiguredUpstream:
        """Return the server whose lists match the URI best: the one with the highest value in `fitting`, which has
        values by server. If several match equally, return the server whose tool the session has last called for this
        app; else the first in the configuration."""
        best = max(fitting.values())
        names = [name for name in servers if fitting.get(name) == best]
        called = self._apps.server_of(call.live, uri)
        return servers[called if called in names else names[0]]

    # -- requests to servers

    async def _names(self, servers: Servers, call: Call, method: str, uri: str) -> tuple[dict[str, Names], set[str]]:
        """Return the names in each server's list `method`, by server, and the servers that did not answer in time.
        Request the lists that are not known. `uri` is the item to look for: a list that lacks it is requested again if
        it is old."""

        async def names(upstream: ConfiguredUpstream) -> Names:
            if not await self._has(upstream, call, method):
                return Names()
            conversation = await upstream.conversation_for(call)
            try:
                found = await upstream.server_lists.listed(method, conversation, uri)
            except msgspec.MsgspecError:
                return Names()
            assert not isinstance(found, Tools)
            return found

        return await self._gather(servers.values(), call, names)

    async def _ask_each(self, uri: str, servers: Servers, call: Call, late: set[str]) -> FoundServer | None:
        """Ask one server after the other for the resource, until one has it. Return that server, or None. Servers that
        list similar URIs come first, then the order of the configuration counts. The request is `resources/read`, or
        the call itself if its method is an extension's. Add the servers without an answer to `late`."""
        asked = call.method if METHODS[call.method].extension else _READ

        async def ready(upstream: ConfiguredUpstream) -> int:
            if not await self._has(upstream, call, call.method) or self._admission.needs_listing(upstream):
                return -1
            conversation = await upstream.conversation_for(call)
            await conversation.ready()
            lists = upstream.server_lists
            return closeness(uri, (*lists.names(_LIST, conversation), *lists.names(TEMPLATES, conversation)))

        near, missing = await self._gather(servers.values(), call, ready)
        late |= missing
        order = sorted((name for name in near if near[name] >= 0), key=lambda name: -near[name])
        search = InTurn(
            lambda name: ask(servers[name], call, asked, _params(uri, servers[name], call, asked)),
            _is_answer,
            wait_s=self._late.wait_s,
            within_s=self._late.read_s,
        )
        found = await search.first(order[:_MOST_ASKED])
        late |= search.late
        return None if found is None else FoundServer(servers[found[0]], found[1] if call.method == asked else None)

    async def _has(self, upstream: ConfiguredUpstream, call: Call, method: str) -> bool:
        """Return True if a server offers resources, and the gateway may send it both `method` and the call's own
        method."""
        capabilities, may_get = await upstream.capabilities(), self._admission.may_get
        context = call.exchange.context
        return "resources" in capabilities and all(may_get(upstream, context, each) for each in (method, call.method))

    async def _gather(
        self,
        upstreams: Iterable[ConfiguredUpstream],
        call: Call,
        work: Callable[[ConfiguredUpstream], Coroutine[Any, Any, Any]],
    ) -> tuple[dict[str, Any], set[str]]:
        gathered = await self._late.gather(upstreams, Asker.of(call), work)
        return dict(gathered.answers), {entry.server for entry in gathered.missing}


def _is_answer(answer: ServerAnswer) -> bool:
    """Return False if the server has answered that it does not have the resource; else True. Any other error counts as
    an answer."""
    error = answer.message.error
    return not isinstance(error, msgspec.Raw) or error_code(error) not in _NOT_FOUND


def _conversations(upstream: ConfiguredUpstream, call: Call) -> list[Conversation]:
    """Return the conversations with the server whose lists are valid for the call: the conversation of the call's
    session, if it is open, and those that all sessions share."""
    own = None if call.live is None else upstream.any_conversation(call.live)
    return [*([] if own is None else [own]), *upstream.shared]


def _is_listed(uri: str, upstream: ConfiguredUpstream, call: Call) -> bool:
    names = upstream.server_lists.names
    return any(uri in names(method, found) for found in _conversations(upstream, call) for method in _FITS)


def _tools(upstream: ConfiguredUpstream, call: Call) -> Iterator[Tools]:
    """Yield the tool lists that were received from a server. A server may name the URI of an app there, at the app's
    tool, and not in its list of resources (MCP Apps 2026-01-26)."""
    for found in (*_conversations(upstream, call), None):
        tools = upstream.server_lists.known("tools/list", found)
        if isinstance(tools, Tools):
            yield tools


def _complete(upstream: ConfiguredUpstream, call: Call) -> Mapping[str, Names] | None:
    """Return a server's lists of resources, skills and templates, by method, without asking the server. Return None if
    one of these lists is not known for the session."""
    own = None if call.live is None else upstream.any_conversation(call.live)
    capabilities = upstream.known_capabilities
    lists: dict[str, Names] = {}
    for method in _FITS:
        has_none = "resources" not in capabilities or not METHODS[method].is_offered(capabilities)
        known = Names() if upstream.has_answered and has_none else upstream.server_lists.known(method, own)
        if not isinstance(known, Names):
            return None
        lists[method] = known
    return lists


def _params(uri: str, upstream: ConfiguredUpstream, call: Call, method: str) -> Object:
    if call.method != method:
        return {"uri": msgspec.Raw(encode(uri))}
    return legacy_params(call.params) if upstream.era_now(call.era) is Era.LEGACY else call.params


def _key(call: Call, uri: str) -> bytes:
    session = "" if call.live is None else call.live.session.id
    return hashlib.sha256(f"{session}\n{uri}".encode("utf-8", "replace")).digest()


T = TypeVar("T")

_AT_ONCE: Final = 4
"""Number of servers that are asked at the same time, after the first was asked alone."""


@dataclass(slots=True)
class InTurn(Generic[T]):
    """Search several servers for one thing, the likeliest server first.

    The first server is asked alone; the others follow in groups. A group is asked when all servers before it have
    answered without a hit, or after `wait_s` seconds. If several servers have a hit, the first in the order wins: a hit
    waits up to `wait_s` for earlier servers. The whole search takes at most `within_s` seconds."""

    ask: Callable[[str], Coroutine[Any, Any, T]]
    """Asks the server with this name. Raises one of `UNAVAILABLE` if that fails."""
    has: Callable[[T], bool]
    """Returns True if an answer is a hit: that server has the thing."""
    wait_s: float
    within_s: float
    late: set[str] = field(default_factory=set)
    """The servers that have failed or did not answer in time."""
    _asked: dict[str, asyncio.Task[T]] = field(default_factory=dict)

    async def first(self, names: Sequence[str]) -> tuple[str, T] | None:
        """Search the servers `names`, which are in order of preference. Return the name and the answer of the first
        server with a hit; None if no server has one."""
        now = asyncio.get_running_loop().time
        end = now() + self.within_s
        groups = [names[:1], *(names[n : n + _AT_ONCE] for n in range(1, len(names), _AT_ONCE))]
        try:
            for group in groups:
                if now() >= end:
                    self.late.update(group)
                    continue
                self._asked |= {name: asyncio.create_task(self.ask(name)) for name in group}
                if (found := await self._found(min(end, now() + self.wait_s), in_order=True)) is not None:
                    return found
            return await self._found(end, in_order=False)
        finally:
            await self._leave()

    async def _found(self, until: float, *, in_order: bool) -> tuple[str, T] | None:
        """Return the first server with a hit, of those asked so far, and its answer. Return None once all of them have
        answered without a hit, or if none has a hit at the time `until` of the event loop. With `in_order`, a hit waits
        for the servers before it, but not longer than `until`."""
        now = asyncio.get_running_loop().time
        while True:
            pending = [task for task in self._asked.values() if not task.done()]
            is_over = not pending or now() >= until
            for name, task in self._asked.items():
                if not task.done():
                    if in_order and not is_over:
                        break
                elif (answer := self._answer(name, task)) is not None and self.has(answer):
                    return name, answer
            if is_over:
                return None
            await asyncio.wait(pending, timeout=until - now(), return_when=asyncio.FIRST_COMPLETED)

    def _answer(self, name: str, task: asyncio.Task[T]) -> T | None:
        try:
            return task.result()
        except UNAVAILABLE:
            self.late.add(name)
            return None

    async def _leave(self) -> None:
        """End the search: cancel the requests that have no answer yet, and add their servers to `late`."""
        for name, task in self._asked.items():
            if not task.done():
                self.late.add(name)
                task.cancel()
        if self._asked:
            await asyncio.gather(*self._asked.values(), return_exceptions=True)
