"""Decide which requests policy admits to a server, and which part of its lists a session sees.

The decision uses the names in the server's lists and the table of methods (`gateway.protocol.methods`). A session can
neither list nor call what policy hides from it: the answer says that the name is unknown.
"""

import functools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.calls.client_request import Call
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import live_session_of
from gateway.calls.received_lists import Listed
from gateway.config.policy import PolicySettings
from gateway.context.session_facts import with_context
from gateway.errors import unknown_method, unknown_prompt, unknown_resource, unknown_tool
from gateway.observability.audit import Audit
from gateway.observability.request_outcomes import EndedCall
from gateway.policy.access_policy import Decision, Policy
from gateway.policy.changed_tools import ChangedTools
from gateway.policy.tool_policy import MAX_LOGGED_NAME, Steps, ToolPolicy
from gateway.protocol.merged_lists import Names, Tools, has_more
from gateway.protocol.methods import LISTS, LOCKED_LISTS, METHODS
from gateway.protocol.params import text_of
from gateway.protocol.shown_tool_hashes import NOTHING
from gateway.protocol.skill_uris import SKILLS_LIST, skill_fit, with_uris
from gateway.protocol.uris import matches_any_template
from gateway.sessions.sessions_by_handle import with_handles
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.list_pages import MOST_URI_CHARS, listed_items
from gateway.upstreams.unmatched_patterns import require_matches
from session_store import Context, Session
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, Object, encode
from transports.work_steps import is_large, run_steps, run_steps_with_pauses

_CACHED_CONTEXTS: Final = 1_024


class VisibleServers:
    """Select the servers behind one URL that a session may see."""

    def __init__(self, upstreams: Sequence[ConfiguredUpstream], policy: Policy) -> None:
        self._policy = policy
        self.replace(upstreams)

    def replace(self, upstreams: Sequence[ConfiguredUpstream]) -> None:
        """Serve these servers from now on, and forget all earlier selections."""
        self.all: Mapping[str, ConfiguredUpstream] = {upstream.name: upstream for upstream in upstreams}
        """All servers of the URL, by name."""
        self.only: ConfiguredUpstream | None = upstreams[0] if len(upstreams) == 1 else None
        """The single server of the URL. None if there are several."""
        self._seen = functools.lru_cache(maxsize=_CACHED_CONTEXTS)(self._to)

    @property
    def differ(self) -> bool:
        """Return True if policy may show different servers to different sessions."""
        return not self._policy.is_open

    def to(self, context: Context) -> Mapping[str, ConfiguredUpstream]:
        """Return the servers that a session with this context sees, by name."""
        return self.all if self._policy.is_open else self._seen(self._policy.cache_key_context(context))

    def _to(self, context: Context) -> Mapping[str, ConfiguredUpstream]:
        return {name: upstream for name, upstream in self.all.items() if not self._policy.why_hidden(context, name)}


class AdmittedTool:
    """The policy decision that admits one session's calls of one tool. It is valid until the session's record, its
    context or `tools` (the server's list of tools) changes."""

    __slots__ = """_audit _calls _decision _mirrored _session is_audited is_changed is_listed keeps_arguments name
        slow_s tools""".split()

    def __init__(
        self, calls: ToolPolicy, audit: Audit, decision: Decision, tools: Tools, session: Session, name: str
    ) -> None:
        self._calls = calls
        self._audit = audit
        self._decision = decision
        self._session = session
        self.name = name[:MAX_LOGGED_NAME]
        """The name of the tool, cut to the length that logs show."""
        self.slow_s = decision.slow_s
        self.is_audited = audit.calls
        self.keeps_arguments = audit.has_names
        """True if the audit trail records the arguments of calls. Such calls cannot take the fast path, which does not
        record them."""
        self.is_listed = name in tools
        self.is_changed = False
        """True if the tool has changed since the client saw it, so that the call's result has to say so."""
        self._mirrored = tools.mirrored.get(name)
        self.tools = tools

    def params(self, call: Call) -> Object | Steps:
        """Check the arguments of a call. Return the params to send to the server. For large params, return a generator
        that checks them in short steps, and then returns the params (`ToolPolicy.checked`).

        Raises:
            Refused, InvalidArguments: the arguments are blocked, differ from the headers, or do not fit the schema.
        """
        exchange, decision = call.exchange, self._decision
        if self._mirrored is not None and call.check_mirrored is not None:
            call.check_mirrored(self._mirrored, call.params)
        self.begins(exchange, call.params)
        return self._calls.checked(decision, self.tools, self._session, call.params, exchange.note)

    def begins(self, exchange: Exchange, params: Object | None = None) -> None:
        """Record in the exchange (the state of a call) which tool it calls: for logs, the audit trail and the limit of
        slow calls. `params` has the arguments that the audit trail may record."""
        exchange.calls_tool(self._decision.server, self.name, self.slow_s, is_listed=self.is_listed)
        if self._audit.calls:
            tool = f"{self._decision.server}/{self.name}"
            given = b"" if params is None else bytes(params.get("arguments", b""))
            exchange.audit(self._audit.call_watcher(self._session, tool, exchange.began, given))

    def ended(self, call: EndedCall, client: str) -> None:
        """Record an ended call of the fast path in the audit trail. Must be called only if `is_audited`. `client` is
        the address of the client."""
        tool = f"{self._decision.server}/{self.name}"
        self._audit.called(self._session, tool, call.outcome, call.took_s, correlation=call.correlation, client=client)

    def checker(self, check_mirrored: Callable[[Any, Object], None] | None) -> Callable[[bytes], bytes]:
        """Return a function for later calls on the fast path: it checks a call's arguments (JSON), and returns the
        arguments for the server (`ToolPolicy.checker_of`). With `check_mirrored`, it also compares them with the HTTP
        headers that repeat them."""
        check, mirrored = self._calls.checker_of(self._decision, self.tools, self._session), self._mirrored
        if mirrored is None or check_mirrored is None:
            return check

        def compared(given: bytes) -> bytes:
            check_mirrored(mirrored, {"arguments": msgspec.Raw(given)})
            return check(given)

        return compared


_RESOURCES: Final = "resources/list"
TEMPLATES: Final = "resources/templates/list"

Admitted = AdmittedTool | Object
"""The decision on an admitted request: for `tools/call`, the decision on the tool; for other methods, the params for
the server."""


async def checked(admitted: Admitted, call: Call) -> Call:
    """Check the arguments of an admitted call. Return the call with the params for the server. Raises the same errors
    as `AdmittedTool.params`."""
    params = admitted.params(call) if isinstance(admitted, AdmittedTool) else admitted
    if not isinstance(params, dict):
        params = await run_steps_with_pauses(params) if is_large(call.params) else run_steps(params)
    return call.with_params(params)


class _ListNeeded(Exception):
    """Raised if policy cannot decide before a list is requested from the server. `method` requests the list. `name` is
    the item to find in the list; empty if the decision concerns no single item. `anew` is True if the list must be
    requested although it is known."""

    def __init__(self, method: str, name: str, *, anew: bool = False) -> None:
        super().__init__(method)
        self.method, self.name, self.anew = method, name, anew


_OF_PAGES: Final = frozenset({"nextCursor", "_meta", "resultType", "ttlMs", "cacheScope"})
"""The members of a list page other than its items (MCP 2026-07-28)."""


class _Lists(msgspec.Struct, frozen=True):
    """The lists of one server, as one policy decision reads them. The methods raise `_ListNeeded` if a list is not
    known, or if a list that was not requested for this decision lacks the item `name`. An empty `name` stands for no
    item."""

    upstream: ConfiguredUpstream
    conversation: Conversation | None
    asked: Mapping[str, Listed]
    """The lists that were requested for this decision, by method. All other lists were received earlier."""
    own: Collection[str] = ()
    """The methods of those lists in `asked` that the session's own process or connection has sent."""

    def tools(self, name: str) -> Tools:
        """Return the server's list of tools."""
        found = self._having("tools/list", name)
        assert not isinstance(found, Names)
        return found

    def is_own(self, tools: Tools) -> bool:
        """Return True if the session's own process or connection has sent this list of tools to the gateway. Return
        False if it is from the cache, or from the gateway's probe."""
        lists = None if self.conversation is None else self.conversation.known_lists
        is_known = lists is not None and "tools/list" in lists.asked_at and lists.known.get("tools/list") is tools
        return is_known or "tools/list" in self.own

    def names(self, method: str, name: str) -> Names:
        """Return the names in the list that `method` requests (any list but that of tools)."""
        found = self._having(method, name)
        assert not isinstance(found, Tools)
        return found

    def skills(self, name: str) -> Names:
        """Return the URIs of the server's skills and of their files; empty if the server has declared no skills."""
        is_offered = METHODS[SKILLS_LIST].is_offered(self.upstream.known_capabilities)
        return self.names(SKILLS_LIST, name) if is_offered else Names()

    def _having(self, method: str, name: str) -> Listed:
        if method in self.asked:
            return self.asked[method]
        found = self.upstream.server_lists.known(method, self.conversation)
        if found is None or (name and name not in found):
            raise _ListNeeded(method, name)
        return found


class Admission:
    """Apply policy to the requests and lists of all servers."""

    def __init__(
        self, policy: Policy, calls: ToolPolicy, audit: Audit, settings: PolicySettings, changed: ChangedTools
    ) -> None:
        self._policy = policy
        self._calls = calls
        self._changed = changed
        self.audit = audit
        self.replace(settings)

    def replace(self, settings: PolicySettings) -> None:
        """Apply these settings from now on. They say whether each pattern in the configuration must match a listed
        item."""
        self._refuses_unmatched = settings.unmatched_patterns == "refuse"
        self._changed.replace(settings)

    # -- requests

    async def admit(self, upstream: ConfiguredUpstream, call: Call) -> Admitted:
        """Apply policy to a request. First request the server's lists, if the decision depends on them. For
        `tools/call`, return the decision on the tool. For other methods, return the params to send.

        Raises:
            Refused: the request names something that the session does not see.
            UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked for its lists.
        """
        row = METHODS.get(call.method)
        if call.method == "tools/call":
            await upstream.facts()
        elif row is not None and row.extension:
            if not row.is_offered(await upstream.capabilities()):
                raise unknown_method(call.method, call.era)
            self.check_method(upstream.name, call.method, call.era, call.exchange.session, call.exchange.context)
        known_by = upstream.conversation_at_hand(call.exchange, call.era)
        asked, own = dict[str, Listed](), set[str]()
        while True:
            try:
                return self._decide(_Lists(upstream, known_by, asked, own), call)
            except _ListNeeded as raised:
                needed = raised.with_traceback(None)  # which holds this frame, and with it the call
            conversation = await upstream.conversation_for(call)
            if needed.anew:
                asked[needed.method] = await upstream.server_lists.refresh(needed.method, conversation)
                own.add(needed.method)
            else:
                asked[needed.method] = await upstream.server_lists.listed(needed.method, conversation, needed.name)

    def _decide(self, lists: _Lists, call: Call) -> Admitted:
        """Return the decision on a request, as `admit` does. Raises `_ListNeeded` if a list has to be requested first.

        A list that was requested for this decision (`lists.asked`) counts as complete: a name that it lacks does not
        exist. Of any other list, the last version received counts."""
        method, upstream = call.method, lists.upstream
        row = METHODS.get(method)
        if row is None:
            return self._extension(upstream.name, call)
        restricted = self._policy.restricts(upstream.name)
        if method == "tools/call":
            name = text_of(call.params, "name")
            return self._tool_call(lists, lists.tools(name if "tools" in restricted else ""), name, call)
        if not row.named:
            return call.params
        if row.kind == "completions":
            return self._completion(upstream.name, lists, call)
        elif row.kind not in restricted:
            pass
        elif method == "subscriptions/listen":
            if "resources" in upstream.unreviewed:
                self._compare_resources(lists)
            return self._listen(upstream.name, call)
        elif row.kind == "tools":
            self._tool(upstream.name, lists, call, text_of(call.params, row.named))
        elif row.kind == "prompts":
            self._prompt(upstream.name, lists, call, text_of(call.params, row.named))
        else:
            self._resource(upstream.name, lists, call, text_of(call.params, row.named))
        return call.params

    def _extension(self, server: str, call: Call) -> Object:
        """Apply policy to a request whose method belongs to an extension, and have its end recorded in the audit trail.
        Return the params to send."""
        exchange, method = call.exchange, call.method
        session = exchange.session
        self.check_method(server, method, call.era, session, exchange.context)
        if self.audit.calls and session is not None:
            name = f"{server}/{method[:MAX_LOGGED_NAME]}"
            exchange.audit(self.audit.call_watcher(with_context(session, exchange.context), name, exchange.began))
        return call.params

    def check_method(self, server: str, method: str, era: Era, session: Session | None, context: Context) -> None:
        """Refuse a request or notification that core MCP does not define, if policy hides its method from this client.

        Raises:
            Refused: -32601, policy hides the method; the audit trail gets the reason.
        """
        reason = self._policy.why_method_hidden(context, server, method)
        if reason:
            name = f"{server}/{method[:MAX_LOGGED_NAME]}"
            whose = {"era": era} if session is None else with_context(session, context)
            raise self.audit.refused(unknown_method(method, era), whose, why=reason, tool=name)

    def _tool_call(self, lists: _Lists, tools: Tools, name: str, call: Call) -> AdmittedTool:
        exchange, live, upstream = call.exchange, call.live, lists.upstream
        assert live is not None
        if "tools" in upstream.unreviewed:
            self._compare(upstream, "tools", tools)
        context = exchange.context
        session = with_context(live.session, context)
        decision = self._calls.decide(upstream.name, tools, context, session, name)
        admitted = AdmittedTool(self._calls, self.audit, decision, tools, session, name)
        if live.shown is NOTHING and not self._changed.refuses:
            return admitted
        found = self._changed.called(live, upstream.name, tools, name, is_own=lists.is_own(tools))
        if found == "unknown":
            raise _ListNeeded("tools/list", name, anew=True)
        if found != "same":
            exchange.filter_result(found)
            admitted.is_changed = True
        return admitted

    def _tool(self, server: str, lists: _Lists, call: Call, name: str) -> None:
        """Check that policy shows the session the tool `name`, which a request names without calling it. Raises
        `Refused` if the tool is unknown or hidden."""
        tools = lists.tools(name)
        decision = self._policy.decide_listed(call.exchange.context, server, tools, name)
        if name not in tools or not decision.allowed:
            raise unknown_tool(name)

    def _compare(self, upstream: ConfiguredUpstream, kind: str, listed: Listed | frozenset[str]) -> None:
        """Check that each configured pattern for items of this kind (such as tools) matches an item in the server's
        list `listed`. This check comes with the first request if the server was down when the gateway started. It is
        skipped if the settings allow patterns that match nothing. Raises `UpstreamUnavailable` if a pattern matches
        nothing."""
        if self._refuses_unmatched:
            require_matches(upstream, kind, listed)

    def _compare_resources(self, lists: _Lists) -> None:
        """Check, as `_compare` does, that each pattern for resources matches one of the server's resources, templates
        or skills."""
        if self._refuses_unmatched:
            resources, templates, skills = lists.names(_RESOURCES, ""), lists.names(TEMPLATES, ""), lists.skills("")
            self._compare(lists.upstream, "resources", frozenset((*resources, *templates, *skills)))

    def _completion(self, server: str, lists: _Lists, call: Call) -> Object:
        """Apply policy to a completion request, by the prompt or resource in its `ref`. Return the params for the
        server. Raises `Refused` if the session does not see that prompt or resource."""
        restricted = self._policy.restricts(server)
        if not restricted:
            return call.params
        ref = msgspec.json.decode(call.params.get("ref", b"null"))
        match ref:
            case {"type": "ref/prompt", "name": str(name)}:
                if "prompts" in restricted:
                    self._prompt(server, lists, call, name)
            case {"type": "ref/resource", "uri": str(uri)}:
                if "resources" in restricted:
                    self._resource(server, lists, call, uri)
            case _:
                raise Refused(200, INVALID_PARAMS, "params.ref must name a prompt, or a resource by its URI")
        # The server gets what was decided: a key that stands twice has two readings.
        return call.params | {"ref": msgspec.Raw(encode(ref))}

    def _prompt(self, server: str, lists: _Lists, call: Call, name: str) -> None:
        prompts = lists.names("prompts/list", name)
        if "prompts" in lists.upstream.unreviewed:
            self._compare(lists.upstream, "prompts", prompts)
        policy, context = self._policy, call.exchange.context
        if (
            name not in prompts
            or policy.why_prompt_hidden(context, server, name)
            or policy.why_unapproved(server, "prompts", name, prompts.digests.get(name, ""))
        ):
            raise unknown_prompt(name)

    def _resource(self, server: str, lists: _Lists, call: Call, uri: str) -> None:
        context, hidden = call.exchange.context, self._policy.why_listed_uri_hidden
        if "resources" in lists.upstream.unreviewed:
            self._compare_resources(lists)
        if uri in lists.names(_RESOURCES, uri):
            if not hidden(context, server, uri):
                return
        elif self._policy.allows_uri(context, server, uri):
            # An unlisted resource has to match a listed template, or be of a listed skill, that the session sees.
            templates = lists.names(TEMPLATES, uri)
            why, digests = self._policy.why_unapproved, templates.digests
            approved = (each for each in templates if not why(server, "templates", each, digests.get(each, "")))
            if matches_any_template(uri, (each for each in approved if not hidden(context, server, each))):
                return
            if any(skill_fit(uri, (each,)) and not hidden(context, server, each) for each in lists.skills(uri)):
                return
        raise unknown_resource(uri, call.era, call.method)

    def _listen(self, server: str, call: Call) -> Object:
        """Return the params of a `subscriptions/listen`, without the resources that policy hides from the session."""
        wanted = msgspec.json.decode(call.params.get("notifications", b"{}"))
        if not isinstance(wanted, dict) or not isinstance(wanted.get("resourceSubscriptions"), list):
            return call.params
        uris = frozenset(uri for uri in wanted["resourceSubscriptions"] if isinstance(uri, str))
        wanted["resourceSubscriptions"] = sorted(self._policy.permitted_uris(call.exchange.context, server, uris))
        return call.params | {"notifications": msgspec.Raw(encode(wanted))}

    def may_have(self, upstream: ConfiguredUpstream, context: Context, uri: str) -> bool:
        """Return True if policy lets a session with this context see the resource with this URI at the server, even if
        no such resource exists."""
        is_restricted = "resources" in self._policy.restricts(upstream.name)
        return not is_restricted or self._policy.allows_uri(context, upstream.name, uri)

    def may_get(self, upstream: ConfiguredUpstream, context: Context, method: str) -> bool:
        """Return True if the gateway may send the server requests with this method (of `METHODS`) for a session with
        this context. This is always so for methods of core MCP. For a method of an extension, the server must have
        declared the extension, and policy must not hide the method."""
        row = METHODS[method]
        return not row.extension or (
            row.is_offered(upstream.known_capabilities)
            and not self._policy.why_method_hidden(context, upstream.name, method)
        )

    def may_call(self, upstream: ConfiguredUpstream, context: Context, tools: Tools, name: str) -> bool:
        """Return True if the server's list `tools` has the tool `name`, and policy lets a session with this context
        call it."""
        return name in tools and self._policy.decide_listed(context, upstream.name, tools, name).allowed

    def needs_listing(self, upstream: ConfiguredUpstream) -> bool:
        """Return True if policy restricts the server's resources. Sessions then see only resources that the server
        lists or that match a listed template."""
        return "resources" in self._policy.restricts(upstream.name)

    # -- lists

    def show(self, upstream: ConfiguredUpstream, exchange: Exchange, method: str, page: dict[str, Any]) -> None:
        """Remove from `page`, a page of a server's list, the items that the client of this request may not see. The
        page is changed in place. With the setting `handles`, add the tools for child sessions to the last page of
        tools."""
        context, live = exchange.context, live_session_of(exchange)
        row, server = METHODS[method], upstream.name
        items = listed_items(method, page)
        if row.kind == "tools":
            absent = None if live is None else functools.partial(self._changed.listed, live, server)
            page[row.listed] = self._calls.shown(server, context, items, absent)
            if upstream.settings.handles and not has_more(page):
                page[row.listed] = with_handles(page[row.listed])
        elif row.kind in self._policy.restricts(server):
            policy = self._policy
            if (kind := LOCKED_LISTS.get(method)) is not None:
                items = self._calls.approved(server, kind, items)
            if row.extension:

                def seen(uri: str) -> str:
                    is_hidden = len(uri) > MOST_URI_CHARS or policy.why_listed_uri_hidden(context, server, uri)
                    return "" if is_hidden else uri

                page |= with_uris(page, seen)
                return
            hidden = policy.why_prompt_hidden if row.kind == "prompts" else policy.why_listed_uri_hidden
            page[row.listed] = [item for item in items if not hidden(context, server, item[row.item_key])]

    def result_filter(
        self, upstream: ConfiguredUpstream, conversation: Conversation | None, method: str
    ) -> Callable[[Exchange, Object], Object] | None:
        """Return a function that removes, from the result of a list request, the items that the session may not see.
        Return None if `method` requests no list, or a list of other things than tools in which policy hides nothing.
        `conversation` is where the result comes from; None for a result from the cache."""
        row = METHODS.get(method)
        if row is None or not row.listed:
            return None
        if row.kind != "tools" and row.kind not in self._policy.restricts(upstream.name):
            return None
        key = row.listed

        def filtered(exchange: Exchange, result: Object) -> Object:
            page = msgspec.json.decode(encode(result))
            if method in LISTS:
                upstream.server_lists.add_page(method, conversation, page)
            listed = page.get(key)
            self.show(upstream, exchange, method, page)
            # Else it stays as the server has written it. Of a locked server, clients get what was compared: a key that
            # an object has twice has two readings.
            is_compared = method in LOCKED_LISTS and self._policy.locks(upstream.name)
            if is_compared or row.kind in self._policy.restricts(upstream.name):
                # Some clients read `Tools` as `tools`.
                result = {name: value for name, value in result.items() if name == key or name in _OF_PAGES}
            if is_compared or key not in result or page.get(key) != listed:
                result = result | {key: msgspec.Raw(encode(page.get(key, [])))}
            if "cacheScope" in result and self.filters(upstream, method):
                result["cacheScope"] = msgspec.Raw(b'"private"')
            return result

        return filtered

    def filters(self, upstream: ConfiguredUpstream, method: str) -> bool:
        """Return True if two sessions may see different items in the list of the server that `method` requests."""
        return not self._policy.is_open or METHODS[method].kind in self._policy.restricts(upstream.name)


class CallTarget:
    """Where a call was sent, and by which policy decision, for later calls of the same tool."""

    __slots__ = ("_conversation", "admitted", "named", "upstream")

    def __init__(
        self, upstream: ConfiguredUpstream, conversation: Conversation, admitted: Admitted, named: msgspec.Raw | None
    ) -> None:
        self.upstream = upstream
        self.admitted = admitted
        """The policy decision."""
        self.named = named
        """The server's own name of the called tool, as JSON. None if the client used the same name."""
        # Weak, because a connection that remembers the call must not keep a conversation that its session gave up.
        self._conversation = weakref.ref(conversation)

    @property
    def held_conversation(self) -> Conversation | None:
        """Return the conversation with the server in which the call was sent. Return None if the session has dropped
        that conversation meanwhile: this object has only a weak reference to it."""
        return self._conversation()

    def leads_to(self, conversation: Conversation, era: Era) -> bool:
        """Return True if another call of this tool by a client of this era would be sent in this conversation, and by
        the same decision. For that, the server must still speak the conversation's era to such clients, and its list of
        tools must be unchanged."""
        upstream, tool = self.upstream, self.admitted
        return (
            isinstance(tool, AdmittedTool)
            and upstream.era_now(era) is conversation.era
            and upstream.server_lists.known("tools/list", conversation) is tool.tools
        )
