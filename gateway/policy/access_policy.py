"""Decide which servers, tools, prompts and resources a session sees and may call, with the reason for each refusal.

Pure: decisions depend on the settings, the session's context, the name, and the operation in a tool's annotations. A
session cannot list or call an item that the policy hides from it: the answer says that the name is unknown. A reason
names the setting that hides the item. An empty reason means that the item is not hidden."""

import functools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from gateway.config.patterns import any_matches, expression, matches
from gateway.config.policy import PolicySettings, WorkspaceSettings
from gateway.config.upstreams import OBJECT, ItemSettings, UpstreamSettings
from gateway.identity.context_rules import is_catch_all
from gateway.protocol.extensions import method_forms
from gateway.protocol.merged_lists import WRITE, Tools
from gateway.protocol.methods import METHODS, folded_method
from gateway.protocol.uris import forms, with_plain_host
from session_store import Context

ANNOTATIONS: Final = "the tool's annotations"
_CACHED: Final = 4_096
_ALL: Final = ("*",)
Rule = TypeVar("Rule")
_KINDS: Final = frozenset({"tools", "prompts", "resources"})
_REMOVED: Final = UpstreamSettings(in_process="removed:removed")
_NOTHING: Final = WorkspaceSettings(servers=(), tools=(), prompts=(), resources=(), methods=())


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The policy's decision whether sessions with one context may call one tool, and by which rules."""

    allowed: bool
    server: str = ""
    tool: str = ""
    """The tool's name; empty if the server does not list the tool."""
    reason: str = ""
    """Why the tool is not allowed; empty if it is."""
    operation: str = ""
    """`read`, `write` or `eval`."""
    operation_from: str = ""
    """Where `operation` is set: the name of a setting, or the tool's annotations."""
    blocked: tuple[Any, ...] = ()
    """Expressions that must not match the arguments of a call."""
    bind: tuple[tuple[str, str], ...] = ()
    """Pairs: an argument, and the field of the session that fills it in."""
    slow_s: float = 10.0
    """The seconds after which a call counts as slow."""


class Policy:
    """Decide by the operator's settings whether a session sees and may call an item. `is_open` is True if no setting
    hides a server from any session.

    Decisions are cached only for names that servers list, so that clients cannot fill the cache with names.
    """

    def __init__(self, settings: PolicySettings, servers: Mapping[str, UpstreamSettings]) -> None:
        self.replace(settings, servers)

    def replace(self, settings: PolicySettings, servers: Mapping[str, UpstreamSettings]) -> None:
        """Decide by these settings from now on, and forget all cached decisions. The caller must invalidate the
        decisions that live sessions have cached (`LiveSession.changed`)."""
        self._settings = settings
        self._servers = servers
        self._hidden = {name for name, server in servers.items() if server.is_hidden}
        self.is_open = not (settings.workspaces or self._hidden) and not any(
            server.direct_only or server.permissions for server in servers.values()
        )
        lock = settings.lock
        self._locked = (
            frozenset[str]()
            if lock is None
            else frozenset(name for name, server in servers.items() if server is not OBJECT and lock.locks(name))
        )
        self._restricted = {name: self._kinds(name) for name in servers}
        # Compiled here, so that no request waits for it.
        self._blocked = {
            (name, pattern): expression(*found.blocked)
            for name, server in servers.items()
            for pattern, found in server.tools.items()
            if found.blocked
        }
        self._decided = functools.lru_cache(maxsize=_CACHED)(self._decide)
        self._cached_why_uri = functools.lru_cache(maxsize=_CACHED)(self._why_uri_hidden)

    def _kinds(self, server: str) -> frozenset[str]:
        rules, settings = self._servers[server], self._settings
        workspaces = settings.workspaces.values()
        names_tools = bool(rules.tools or rules.hidden_tools or rules.only_tools is not None)
        is_read_only = bool(settings.read_only) or any(rule.read_only for rule in settings.rules)
        named = {
            "tools": self.locks(server) or names_tools or is_read_only or any(w.tools != _ALL for w in workspaces),
            "prompts": self.locks(server) or bool(rules.prompts) or any(w.prompts != _ALL for w in workspaces),
            # A resource that a server does not list is one of an approved template.
            "resources": self.locks(server)
            or bool(rules.resource_uris)
            or any(w.resources != _ALL for w in workspaces),
        }
        return frozenset(kind for kind, is_restricted in named.items() if is_restricted)

    def restricts(self, server: str) -> frozenset[str]:
        """Return those kinds of a server's items (`tools`, `prompts`, `resources`) of which the settings may hide some
        items from some session. Of an unknown server, these are all kinds."""
        return self._restricted.get(server, _KINDS)

    def _entry(self, server: str) -> UpstreamSettings:
        """Return the configuration entry of a server. For a server that was removed while a request was in progress,
        return an entry that hides it."""
        return self._servers.get(server, _REMOVED)

    def cache_key_context(self, context: Context) -> Context:
        """Return a copy of a context that has only what decisions depend on, as a key for caches. The operator's fields
        and an announced workspace that grants nothing are left out. So sessions share cached decisions, and clients
        cannot fill the caches with values of their choice."""
        is_ignored = context.provenance.workspace == "announced" and not self._settings.trust_announced_workspace
        if not context.fields and not (is_ignored and context.workspace):
            return context
        return msgspec.structs.replace(context, fields=(), workspace="" if is_ignored else context.workspace)

    # -- the lock

    def locks(self, server: str) -> bool:
        """Return True if clients see only those tools, prompts and templates of a server that the lock file approves.
        Always False for a Python object that acts as a server, because its program is the operator's own."""
        return server in self._locked

    @property
    def lock_file(self) -> str:
        """Return the path of the lock file with the approved items; empty if there is none."""
        return "" if self._settings.lock is None else self._settings.lock.file

    def why_unapproved(self, server: str, kind: str, name: str, digest: str) -> str:
        """Return the reason why the lock file hides an item of a server from all sessions; empty if it does not hide
        the item. `kind` is one of `gateway.config.tools_lock.KINDS`. `digest` is the digest of the item as the server
        lists it; empty if unknown."""
        lock = self._settings.lock
        return "" if lock is None or not self.locks(server) else lock.why_absent(server, kind, name, digest)

    def approved(self, server: str, kind: str, name: str) -> Mapping[str, Any] | None:
        """Return the item with this name as the lock file approves it; None if it approves none."""
        lock = self._settings.lock
        return None if lock is None else lock.item(server, kind, name)

    # -- servers

    def why_hidden(self, context: Context, server: str) -> str:
        """Return the reason why the server is hidden from sessions with this context; empty if it is visible."""
        where = f"mcpServers.{server}"
        if server not in self._servers:
            return f"it is not in the configuration any more ({where})"
        if server in self._hidden:
            return f"it is left out, and its entry does not say who may know of it ({where})"
        reason = _not_for(context, "mcpServers", {server: self._servers[server]})
        return reason or self._outside(context, "servers", (server,))

    def is_remote(self, server: str) -> bool:
        """Return True if a server is reached over the network."""
        return self._entry(server).is_remote

    # -- tools

    def decide(self, context: Context, server: str, tool: str, annotated: str = WRITE, digest: str = "") -> Decision:
        """Decide if sessions with this context may call a tool, and by which rules. `annotated` is the operation in the
        tool's annotations (`gateway.protocol.merged_lists.operation_of`). `digest` is the tool's digest, which is
        needed only if there is a lock file."""
        return self._decided(self.cache_key_context(context), server, tool, annotated, digest)

    def decide_listed(self, context: Context, server: str, tools: Tools, name: str) -> Decision:
        """Return the decision (`decide`) on the tool `name` of a server. `tools`: the server's list, from which the
        annotated operation and the digest are taken. All tools that are not in the list are decided under the name
        `""`, so that clients cannot fill the cache."""
        digest = tools.digest(name) if server in self._locked else ""
        return self.decide(context, server, name if name in tools else "", tools.operation(name), digest)

    def decide_approved(self, context: Context, server: str, tool: str, operation: str) -> Decision:
        """Return the decision (`decide`) on a tool as if the server listed it in the form that the lock file approves.
        For tools that the lock file does not hide, or did not hide when they were called. `operation`: that in the
        tool's annotations."""
        lock = self._settings.lock
        digest = "" if lock is None else lock.digest_of_tool(server, tool)
        return self.decide(context, server, tool, operation, digest)

    def _decide(self, context: Context, server: str, tool: str, annotated: str, digest: str) -> Decision:
        names = {tool, unicodedata.normalize("NFKC", tool)}
        patterns = _matching(self._entry(server).tools, names)
        matching, where = patterns.values(), f"mcpServers.{server}.tools"
        configured = [(f.operation, f"{where}.{p}.operation") for p, f in patterns.items() if f.operation is not None]
        configured.sort(key=lambda found: found[0] != "eval")
        operation, source = configured[0] if configured else (annotated, ANNOTATIONS)
        reason = ""
        if hidden := self.why_hidden(context, server):
            reason = f"the server is not for this session: {hidden}"
        elif left_out := _left_out(self._entry(server), names, f"mcpServers.{server}"):
            reason = left_out
        elif unapproved := self.why_unapproved(server, "tools", tool, digest):
            reason = unapproved
        elif (only := [p for p, found in patterns.items() if found.direct_only]) and context.trust != "direct":
            reason = f"it is for direct trust only ({where}.{only[0]}.direct_only)"
        elif operation == "eval" and not self._settings.eval_tools:
            reason = f"tools that evaluate are switched off (gateway.policy.eval_tools; {source})"
        elif context.read_only and operation != "read":
            reason = f"the session is read-only, and the tool's operation is {operation} ({source})"
        elif missing := {name for found in matching for name in found.permissions} - set(context.permissions):
            needing = next(p for p, found in patterns.items() if missing & set(found.permissions))
            reason = f"it needs {', '.join(sorted(missing))} ({where}.{needing}.permissions)"
        else:
            reason = self._outside(context, "tools", (f"{server}__{tool}",))
        return Decision(
            allowed=not reason,
            server=server,
            tool=tool,
            reason=reason,
            operation=operation,
            operation_from=source,
            blocked=tuple(self._blocked[server, pattern] for pattern, found in patterns.items() if found.blocked),
            bind=tuple({name: field for found in matching for name, field in found.bind.items()}.items()),
            slow_s=self._settings.slow_s,
        )

    # -- prompts and resources

    def why_prompt_hidden(self, context: Context, server: str, prompt: str) -> str:
        """Return the reason why a listed prompt is hidden from sessions with this context; empty if it is visible."""
        found = _matching(self._entry(server).prompts, (prompt, unicodedata.normalize("NFKC", prompt)))
        return (
            self.why_hidden(context, server)
            or _not_for(context, f"mcpServers.{server}.prompts", found)
            or self._outside(context, "prompts", (f"{server}__{prompt}",))
        )

    def why_listed_uri_hidden(self, context: Context, server: str, uri: str) -> str:
        """Return the reason why a listed resource or template is hidden from sessions with this context; empty if it is
        visible. Cached."""
        return self._cached_why_uri(self.cache_key_context(context), server, uri)

    def allows_uri(self, context: Context, server: str, uri: str) -> bool:
        """Return True if sessions with this context see the resource or template `uri`. All forms in which a server may
        read this URI must be visible. Not cached, because clients can send any URI."""
        return not self._why_uri_hidden(context, server, uri)

    def _why_uri_hidden(self, context: Context, server: str, uri: str) -> str:
        written = forms(uri)
        if written is None:
            return "its URI cannot be read in one way only"
        found = _matching(self._entry(server).resource_uris, (*written, *map(with_plain_host, written)))
        return (
            self.why_hidden(context, server)
            or _not_for(context, f"mcpServers.{server}.resource_uris", found)
            or self._outside(context, "resources", [f"{server}__{form}" for form in written])
        )

    def permitted_uris(self, context: Context, server: str, uris: frozenset[str]) -> frozenset[str]:
        """Return those `uris` of resources to which sessions with this context may subscribe."""
        if "resources" not in self.restricts(server):
            return uris
        return frozenset(uri for uri in uris if self.allows_uri(context, server, uri))

    # -- methods that MCP does not define

    def why_method_hidden(self, context: Context, server: str, method: str) -> str:
        """Return the reason why sessions with this context may not send an extension's method or notification to a
        server; empty if they may. Not cached, because clients can send any name. A method in `METHODS` needs no
        pattern, because other rules decide on the item that the method names."""
        where = f"mcpServers.{server}.methods"
        written = method_forms(method)
        is_free = method in METHODS
        rules = self._entry(server).methods
        granted = _matching(rules, written)
        # A pattern restricts all spellings of a method. It allows only the spelling that it has itself.
        respelt = _matching(
            {pattern.lower(): item for pattern, item in rules.items()}, method_forms(folded_method(method))
        )
        found = {p: item for p, item in rules.items() if p in granted or p.lower() in respelt}
        if hidden := self.why_hidden(context, server):
            return f"the server is not for this session: {hidden}"
        if self.restricts(server) and not granted and not is_free:
            return f"policy hides part of the server, and no pattern in {where} allows the method"
        for pattern, item in found.items():
            if not item.allowed:
                return f"it is allowed to nobody ({where}.{pattern}.allowed)"
            if context.read_only and item.operation != "read":
                return f"the session is read-only, and the operation is write ({where}.{pattern}.operation)"
        if context.read_only and not granted and not is_free:
            return f"the session is read-only, and no pattern in {where} says that the method reads"
        if (reason := _not_for(context, where, found)) or is_free:
            return reason
        return self._outside(context, "methods", (f"{server}__{written[-1]}",))

    def restricted_by(self, context: Context) -> list[str]:
        """Return the keys of the entries in `gateway.policy.workspaces` that restrict sessions with this context. The
        list is also empty if no entry matches the workspace, which then sees nothing."""
        return [pattern for pattern, _ in self._entries(context) if pattern is not None]

    def _outside(self, context: Context, kind: str, names: Iterable[str]) -> str:
        """Return the reason why the context's workspace does not include all items `names`; empty if it does. `kind`:
        the part of the workspace's entry that lists such items, such as `tools` or `servers`."""
        for pattern, entry in self._entries(context):
            if not all(any_matches(getattr(entry, kind), name) for name in names):
                if pattern is None:
                    return "no entry of gateway.policy.workspaces is for the workspace"
                return f"the workspace does not have it (gateway.policy.workspaces.{pattern}.{kind})"
        return ""

    def _entries(self, context: Context) -> Sequence[tuple[str | None, WorkspaceSettings]]:
        """Return the entries of `gateway.policy.workspaces` that restrict the context's workspace, each after its
        pattern.

        The first entry that matches a workspace restricts it. If no entry matches, the workspace sees nothing, and the
        pattern is None. A client can announce a workspace of any name. So an announced workspace is restricted by all
        entries that any name could match, and no name gains anything (docs/adr/0013-provenance.md)."""
        workspaces = self._settings.workspaces
        if not workspaces:
            return ()
        if context.provenance.workspace != "announced" or self._settings.trust_announced_workspace:
            named = (entry for entry in workspaces.items() if matches(entry[0], context.workspace))
            return (next(named, (None, _NOTHING)),)
        entries: list[tuple[str | None, WorkspaceSettings]] = []
        for pattern, found in workspaces.items():
            entries.append((pattern, found))
            if is_catch_all(pattern):
                return entries
        return (*entries, (None, _NOTHING))


def _left_out(rules: UpstreamSettings, names: Iterable[str], where: str) -> str:
    """Return the reason why a server's settings (`rules`) exclude a tool for all sessions; empty if they do not.
    `names` has all spellings of the tool's name. `where`: the path of these settings, for the reason."""
    for name in names:
        if any_matches(rules.hidden_tools, name):
            return f"it is hidden from everyone ({where}.hidden_tools)"
        if rules.only_tools is not None and not any_matches(rules.only_tools, name):
            return f"it is not among the tools that are served ({where}.only_tools)"
    return ""


def _matching(rules: Mapping[str, Rule], forms: Iterable[str]) -> dict[str, Rule]:
    names = set(forms)
    return {pattern: found for pattern, found in rules.items() if any(matches(pattern, name) for name in names)}


def _not_for(context: Context, where: str, found: Mapping[str, ItemSettings | UpstreamSettings]) -> str:
    """Return the reason why an item or a server is hidden from sessions with this context; empty if it is visible.
    `found`: of an item, the settings whose patterns match it, by pattern; of a server, its settings, by its name.
    `where`: the path at which these settings are, for the reason."""
    for pattern, item in found.items():
        if item.direct_only and context.trust != "direct":
            return f"it is for direct trust only ({where}.{pattern}.direct_only)"
        if missing := set(item.permissions) - set(context.permissions):
            return f"it needs {', '.join(sorted(missing))} ({where}.{pattern}.permissions)"
    return ""
