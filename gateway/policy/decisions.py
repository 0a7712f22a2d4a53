"""Decides what a session sees and may call. Pure: decisions depend on the settings, the context and the name only.

A session cannot list or call what the policy hides from it; such names answer as unknown.
"""

import functools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.config.patterns import any_matches, expression, matches
from gateway.config.policy import PolicySettings, WorkspaceSettings
from gateway.config.upstreams import ItemSettings, ToolSettings, UpstreamSettings
from gateway.identity.context_rules import is_catch_all
from gateway.protocol.uris import forms, with_plain_host
from session_store import Context

__all__ = ["Decision", "Policy", "ServerPolicy", "server_policy"]

_CACHED: Final = 4_096
_ALL: Final = ("*",)
_NOTHING: Final = WorkspaceSettings(servers=(), tools=(), prompts=(), resources=())


class ServerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of the configuration for one server."""

    direct_only: bool = False
    permissions: tuple[str, ...] = ()
    tools: Mapping[str, ToolSettings] = msgspec.field(default_factory=dict)
    prompts: Mapping[str, ItemSettings] = msgspec.field(default_factory=dict)
    resources: Mapping[str, ItemSettings] = msgspec.field(default_factory=dict)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one tool for one context.

    `reason` says why the tool is not allowed. `blocked` are expressions that the arguments may not contain. `bind` has
    pairs of an argument and the fact of the session that it is filled with.
    """

    allowed: bool
    reason: str = ""
    operation: str = ""
    blocked: tuple[Any, ...] = ()
    bind: tuple[tuple[str, str], ...] = ()
    slow_s: float = 10.0


class Policy:
    """The policy, compiled from the settings. `is_open`: every session sees every server.

    Decisions are cached by names that servers list, never by names that only a client has sent.
    """

    def __init__(self, settings: PolicySettings, servers: Mapping[str, ServerPolicy]) -> None:
        self._settings = settings
        self._servers = servers
        self.is_open = not settings.workspaces and not any(
            server.direct_only or server.permissions for server in servers.values()
        )
        self._restricted = {name: self._kinds(name) for name in servers}
        # Compiled here, so that no request waits for it.
        self._blocked = {
            (name, pattern): expression(*found.blocked)
            for name, server in servers.items()
            for pattern, found in server.tools.items()
            if found.blocked
        }
        self.sees = functools.lru_cache(maxsize=_CACHED)(self._sees)
        self.decide = functools.lru_cache(maxsize=_CACHED)(self._decide)
        self.allows_prompt = functools.lru_cache(maxsize=_CACHED)(self._allows_prompt)
        self.allows_listed_uri = functools.lru_cache(maxsize=_CACHED)(self.allows_uri)

    def _kinds(self, server: str) -> frozenset[str]:
        rules = self._servers[server]
        named = {
            "tools": bool(rules.tools) or any(w.tools != _ALL for w in self._settings.workspaces.values()),
            "prompts": bool(rules.prompts) or any(w.prompts != _ALL for w in self._settings.workspaces.values()),
            "resources": bool(rules.resources) or any(w.resources != _ALL for w in self._settings.workspaces.values()),
        }
        return frozenset(kind for kind, is_restricted in named.items() if is_restricted)

    def restricts(self, server: str) -> frozenset[str]:
        """The kinds of items (`tools`, `prompts`, `resources`) of that server of which sessions may see only a part."""
        return self._restricted[server]

    def _sees(self, context: Context, server: str) -> bool:
        """Whether that context sees a server."""
        rules = self._servers[server]
        if rules.direct_only and context.trust != "direct":
            return False
        if not set(rules.permissions) <= set(context.permissions):
            return False
        return all(any_matches(entry.servers, server) for entry in self._entries(context))

    def _decide(self, context: Context, server: str, tool: str) -> Decision:
        """Whether that context may call a tool, and the rules for its calls."""
        names = {tool, unicodedata.normalize("NFKC", tool)}
        patterns = {
            pattern: found
            for pattern, found in self._servers[server].tools.items()
            if any(matches(pattern, name) for name in names)
        }
        matching = patterns.values()
        operations = [found.operation for found in matching if found.operation is not None]
        operation = "eval" if "eval" in operations else operations[0] if operations else ""
        needed = {name for found in matching for name in found.permissions}
        reason = ""
        if not self.sees(context, server):
            reason = "the server is not for this session"
        elif any(found.direct_only for found in matching) and context.trust != "direct":
            reason = "it is for direct trust only"
        elif operation == "eval" and not self._settings.eval_tools:
            reason = "tools that evaluate are switched off"
        elif not needed <= set(context.permissions):
            reason = f"it needs {', '.join(sorted(needed - set(context.permissions)))}"
        elif not all(any_matches(entry.tools, f"{server}__{tool}") for entry in self._entries(context)):
            reason = "the workspace does not have it"
        return Decision(
            allowed=not reason,
            reason=reason,
            operation=operation,
            blocked=tuple(self._blocked[server, pattern] for pattern, found in patterns.items() if found.blocked),
            bind=tuple({name: field for found in matching for name, field in found.bind.items()}.items()),
            slow_s=min((found.slow_s for found in matching if found.slow_s is not None), default=self._settings.slow_s),
        )

    def _allows_prompt(self, context: Context, server: str, prompt: str) -> bool:
        """Whether that context sees a prompt."""
        found = _matching(self._servers[server].prompts, (prompt, unicodedata.normalize("NFKC", prompt)))
        in_workspace = all(any_matches(entry.prompts, f"{server}__{prompt}") for entry in self._entries(context))
        return self.sees(context, server) and in_workspace and all(_is_for(context, item) for item in found)

    def allows_uri(self, context: Context, server: str, uri: str) -> bool:
        """Whether that context sees a resource or template, in every form in which a server may read the URI."""
        written = forms(uri)
        if written is None:
            return False
        found = _matching(self._servers[server].resources, (*written, *map(with_plain_host, written)))
        in_workspace = all(
            any_matches(entry.resources, f"{server}__{form}") for entry in self._entries(context) for form in written
        )
        return self.sees(context, server) and in_workspace and all(_is_for(context, item) for item in found)

    def permitted_uris(self, context: Context, server: str, uris: frozenset[str]) -> frozenset[str]:
        """Those of the resources to whose changes that context may subscribe."""
        if "resources" not in self._restricted[server]:
            return uris
        return frozenset(uri for uri in uris if self.allows_uri(context, server, uri))

    def _entries(self, context: Context) -> Sequence[WorkspaceSettings]:
        """The entries that restrict the context's workspace; none if the settings have no entries.

        A workspace is restricted by the first entry that matches it. One that no entry matches sees nothing. A client
        can announce any workspace: it is restricted by all entries that a name could match, so that no name gains
        anything (docs/adr/0013-provenance.md).
        """
        workspaces = self._settings.workspaces
        if not workspaces:
            return ()
        if context.provenance.workspace != "announced" or self._settings.trust_announced_workspace:
            named = (found for pattern, found in workspaces.items() if matches(pattern, context.workspace))
            return (next(named, _NOTHING),)
        entries = []
        for pattern, found in workspaces.items():
            entries.append(found)
            if is_catch_all(pattern):
                return entries
        return (*entries, _NOTHING)


def _matching(rules: Mapping[str, ItemSettings], forms: Iterable[str]) -> list[ItemSettings]:
    names = set(forms)
    return [found for pattern, found in rules.items() if any(matches(pattern, name) for name in names)]


def _is_for(context: Context, item: ItemSettings) -> bool:
    if item.direct_only and context.trust != "direct":
        return False
    return set(item.permissions) <= set(context.permissions)


def server_policy(settings: UpstreamSettings) -> ServerPolicy:
    """The part of a server's settings that policy is about."""
    return ServerPolicy(
        direct_only=settings.direct_only,
        permissions=settings.permissions,
        tools=settings.tools,
        prompts=settings.prompts,
        resources=settings.resource_uris,
    )
