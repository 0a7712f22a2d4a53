"""What a session sees and may call: one pure decision over frozen values, made once for each context and tool.

What one may not see is answered as if it did not exist.
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

_HELD: Final = 4_096
_ALL: Final = ("*",)
_NOTHING: Final = WorkspaceSettings(servers=(), tools=(), prompts=(), resources=())


class ServerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says of one server."""

    direct_only: bool = False
    permissions: tuple[str, ...] = ()
    tools: Mapping[str, ToolSettings] = msgspec.field(default_factory=dict)
    prompts: Mapping[str, ItemSettings] = msgspec.field(default_factory=dict)
    resources: Mapping[str, ItemSettings] = msgspec.field(default_factory=dict)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Of one tool, for one context. `blocked` is what its arguments may not contain, `bind` where they come from."""

    allowed: bool
    reason: str = ""
    operation: str = ""
    blocked: tuple[Any, ...] = ()
    bind: tuple[tuple[str, str], ...] = ()
    slow_s: float = 10.0


class Policy:
    """Compiled from the settings. `is_open`: every session sees every server.

    Decisions are kept for names that servers list; nothing that only a client has said is a key here.
    """

    def __init__(self, settings: PolicySettings, servers: Mapping[str, ServerPolicy]) -> None:
        self._settings = settings
        self._servers = servers
        self.is_open = not settings.workspaces and not any(
            server.direct_only or server.permissions for server in servers.values()
        )
        self._restricted = {name: self._kinds(name) for name in servers}
        # Compiled once, for what clients send is never to wait for it.
        self._blocked = {
            (name, pattern): expression(*found.blocked)
            for name, server in servers.items()
            for pattern, found in server.tools.items()
            if found.blocked
        }
        self.sees = functools.lru_cache(maxsize=_HELD)(self._sees)
        self.decide = functools.lru_cache(maxsize=_HELD)(self._decide)
        self.allows_prompt = functools.lru_cache(maxsize=_HELD)(self._allows_prompt)
        self.allows_listed_uri = functools.lru_cache(maxsize=_HELD)(self.allows_uri)

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
        """Whether a server exists for that context."""
        rules = self._servers[server]
        if rules.direct_only and context.trust != "direct":
            return False
        if not set(rules.permissions) <= set(context.permissions):
            return False
        return all(any_matches(entry.servers, server) for entry in self._entries(context))

    def _decide(self, context: Context, server: str, tool: str) -> Decision:
        """Whether a tool exists for that context, and what holds for its calls."""
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
        """Whether a prompt exists for that context."""
        found = _meant(self._servers[server].prompts, (prompt, unicodedata.normalize("NFKC", prompt)))
        in_workspace = all(any_matches(entry.prompts, f"{server}__{prompt}") for entry in self._entries(context))
        return self.sees(context, server) and in_workspace and all(_is_for(context, item) for item in found)

    def allows_uri(self, context: Context, server: str, uri: str) -> bool:
        """Whether a resource or template exists for that context: in every form in which a server may read its URI."""
        written = forms(uri)
        if written is None:
            return False
        found = _meant(self._servers[server].resources, (*written, *map(with_plain_host, written)))
        in_workspace = all(
            any_matches(entry.resources, f"{server}__{form}") for entry in self._entries(context) for form in written
        )
        return self.sees(context, server) and in_workspace and all(_is_for(context, item) for item in found)

    def permitted_uris(self, context: Context, server: str, uris: frozenset[str]) -> frozenset[str]:
        """The resources among these of which a session may hear."""
        if "resources" not in self._restricted[server]:
            return uris
        return frozenset(uri for uri in uris if self.allows_uri(context, server, uri))

    def _entries(self, context: Context) -> Sequence[WorkspaceSettings]:
        """What restricts the context's workspace: the first entry that names it, none where workspaces are not
        restricted. One that no entry names has nothing. One that is only announced has what all that it could be named
        have in common, so that nobody gains by a name (docs/adr/0013-provenance.md)."""
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


def _meant(rules: Mapping[str, ItemSettings], forms: Iterable[str]) -> list[ItemSettings]:
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
