"""Review the configuration against the lists of servers: find name patterns that match no tool, prompt or resource, and
tools whose schemas cannot be used.

A pattern that matches no name protects nothing, and an unusable schema checks nothing.
"""

import asyncio
import logging
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gateway.calls.link_manager import UNREACHED
from gateway.calls.received_lists import Listed
from gateway.config.limits import TaskSettings
from gateway.config.patterns import matches
from gateway.config.policy import WorkspaceSettings
from gateway.config.settings import ConfigurationError, GatewaySettings, Settings
from gateway.config.upstreams import ToolSettings, UpstreamSettings
from gateway.policy.tool_policy import ToolPolicy
from gateway.protocol.merged_lists import Tools
from gateway.protocol.methods import lists_of
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.list_pages import all_items, with_files
from transports.era import Era
from transports.upstream_port import UpstreamUnavailable

logger = logging.getLogger(__name__)

CORRECT: Final = "correct them, or set gateway.policy.unmatched_patterns to allow"
MEND: Final = "correct the schemas in the server: such tools are hidden unless gateway.policy.check_arguments is false"

_WAIT_S: Final = 10.0
_SHOWN_NAMES: Final = 12
_SHOWN_CHARS: Final = 64
"""Maximum number of characters of a listed name that are shown in a message about a pattern that matches no name."""
_MOST_SHOWN: Final = 128

_WILDCARD: Final = re.compile(r"[*?\[]")
_KINDS: Final = ("tools", "prompts", "resources")


class Reviewed:
    """The findings of a review: lists of messages for operators, except for `unasked`."""

    def __init__(self) -> None:
        self.unmatched: list[str] = []
        """Patterns of the configuration that match no name."""
        self.of_workspaces: list[str] = []
        """Those messages in `unmatched` that are about settings of workspaces."""
        self.unusable: list[str] = []
        """Schemas that cannot be used."""
        self.unchecked: list[str] = []
        """Regular expressions in usable schemas that are not checked."""
        self.unbound: list[str] = []
        """Arguments in `bind` that no tool has."""
        self.no_tasks: list[str] = []
        """Patterns in `gateway.tasks` that match no tool."""
        self.unasked: list[str] = []
        """The names of servers that could not be asked."""


def settings_for_asking(settings: Settings) -> Settings:
    """Return the settings with unmatched patterns allowed. For commands that only ask servers for their lists, and
    report the findings themselves."""
    policy = settings.gateway.policy.model_copy(update={"unmatched_patterns": "allow"})
    options = settings.gateway.model_copy(update={"policy": policy})
    return settings.model_copy(update={"gateway": options})


async def compare(upstreams: Sequence[ConfiguredUpstream], settings: GatewaySettings, calls: ToolPolicy) -> None:
    """Review all servers that have answered, before clients are served, and log the findings. A server that answers
    later is logged and reviewed then (`compare_late`).

    Raises:
        ConfigurationError: a pattern matches no name, and `unmatched_patterns` is "refuse".
    """
    reached = [upstream for upstream in upstreams if upstream.has_answered]
    is_complete = all(upstream.has_answered or upstream.is_left_out for upstream in upstreams)
    found = await (review(upstreams, settings, calls) if is_complete else review(reached, None, calls))
    if found.unmatched and settings.policy.unmatched_patterns == "refuse":
        raise ConfigurationError("\n".join([*found.unmatched, CORRECT]))
    for fault in (*found.unmatched, *found.unbound, *found.no_tasks):
        logger.warning("%s", fault)
    for upstream in reached:
        if upstream.name not in found.unasked:
            upstream.mark_reviewed()
    for upstream in upstreams:
        if upstream.is_left_out:
            continue
        if not upstream.answered.is_set():
            upstream.log_first_answer()
        if upstream.unreviewed:
            logger.warning("server %s has not answered; its policy patterns are checked once it does", upstream.name)


async def compare_late(upstreams: Sequence[ConfiguredUpstream], settings: GatewaySettings, calls: ToolPolicy) -> None:
    """Review each server that answers only after the gateway has started to serve clients. After the last one, review
    the patterns of workspaces and tasks. Faults are only logged: `Admission` refuses requests to servers with unmatched
    patterns."""
    late = [upstream for upstream in upstreams if not (upstream.has_answered or upstream.is_left_out)]
    if not late:
        return
    async with asyncio.TaskGroup() as group:
        for upstream in late:
            group.create_task(_compare_when_up(upstream, calls))
    found = await review(upstreams, settings, calls)
    for fault in (*found.of_workspaces, *found.no_tasks):
        logger.warning("%s", fault)


async def _compare_when_up(upstream: ConfiguredUpstream, calls: ToolPolicy) -> None:
    await upstream.answered.wait()
    found = await review([upstream], None, calls)
    for fault in found.unmatched:
        logger.error("%s", fault, extra={"server": upstream.name})
    for fault in found.unbound:
        logger.warning("%s", fault)
    if not found.unmatched and not found.unasked:
        upstream.mark_reviewed()


async def review(
    upstreams: Iterable[ConfiguredUpstream], settings: GatewaySettings | None, calls: ToolPolicy
) -> Reviewed:
    """Ask each server for its lists, compare them with the server's settings, and return the findings.

    With `settings`, also compare those of workspaces and tasks with the lists of all servers. This is skipped if a
    server does not answer, except for servers that are left out because their configuration has faults. `calls`: checks
    the tools' schemas.
    """
    found = Reviewed()
    workspaces = {} if settings is None else settings.policy.workspaces
    names: dict[str, dict[str, list[str]]] = {}
    upstreams = tuple(upstreams)
    lists = await asyncio.gather(*(_lists_to_compare(upstream, workspaces.values()) for upstream in upstreams))
    for upstream, listed in zip(upstreams, lists, strict=True):
        server, entry = upstream.name, upstream.settings
        facts = await upstream.facts()
        if not facts.has_answered or facts.needs_credentials:
            found.unasked.append(server)
            continue
        tools = facts.tools.listed
        calls.approved(server, "tools", tools)  # which tells of the others
        for tool, fault in calls.unusable(server, tools).items():
            found.unusable.append(f"mcpServers.{server}: the input schema of tool {tool!r} is invalid: {fault}")
        for tool, patterns in calls.unchecked(tools).items():
            found.unchecked.extend(f"mcpServers.{server}: {_unchecked(tool, pattern)}" for pattern in patterns)
        found.unbound.extend(_unbound(server, entry.tools, facts.tools))
        if None in listed.values():
            found.unasked.append(server)
            continue
        names[server] = {"tools": [tool["name"] for tool in tools]} | {kind: of or [] for kind, of in listed.items()}
        found.unmatched.extend(unmatched(f"mcpServers.{server}.tools", entry.tools, names[server]["tools"], "tool"))
        for kind in ("prompts", "resources"):
            setting, rules = patterns_of(entry, kind)
            where = f"mcpServers.{server}.{setting}"
            found.unmatched.extend(unmatched(where, rules, listed.get(kind) or [], kind.removesuffix("s")))
    left_out = [upstream.name for upstream in upstreams if upstream.is_left_out]
    if settings is not None and found.unasked == left_out:
        found.of_workspaces.extend(_of_workspaces(workspaces, names, left_out))
        found.unmatched.extend(found.of_workspaces)
        found.no_tasks.extend(_no_tasks(settings.tasks, names, left_out))
    return found


async def _lists_to_compare(
    upstream: ConfiguredUpstream, workspaces: Iterable[WorkspaceSettings]
) -> dict[str, list[str] | None]:
    """Return the names of prompts and the URIs of resources that a server lists, by kind (`prompts`, `resources`). A
    kind for which the server's settings and `workspaces` have no patterns is left out. A list is None if the server
    does not send it. Empty if the server has not answered."""
    facts = await upstream.facts()
    if not facts.has_answered or facts.needs_credentials:
        return {}
    wanted = {"prompts": bool(upstream.settings.prompts), "resources": bool(upstream.settings.resource_uris)}
    for entry in workspaces:
        wanted = {kind: is_wanted or getattr(entry, kind) != ("*",) for kind, is_wanted in wanted.items()}
    kinds = [kind for kind, is_wanted in wanted.items() if is_wanted]
    return dict(zip(kinds, await asyncio.gather(*(listed_names(upstream, kind) for kind in kinds)), strict=True))


def _unbound(server: str, rules: Mapping[str, ToolSettings], tools: Tools) -> Iterable[str]:
    """Yield a message for each argument in `bind` that no tool matching the rule's pattern has."""
    for pattern, rule in rules.items():
        matching = [tool["name"] for tool in tools.listed if matches(pattern, tool["name"])]
        for argument in rule.bind if matching else ():
            if not any(tools.takes(name, argument) for name in matching):
                where = f"mcpServers.{server}.tools.{pattern}.bind"
                yield f"{where}: {argument!r} has no effect: no tool of the pattern has the argument in its schema"


def _unchecked(tool: str, pattern: str) -> str:
    return (
        f"the pattern {pattern[:_MOST_SHOWN]!r} in the input schema of tool {tool!r} is not checked: it has "
        "look-around or backreferences, which no engine runs in linear time, or is too large"
    )


def unmatched(where: str, patterns: Iterable[str], names: Iterable[str], what: str) -> list[str]:
    """Return a message for each of `patterns` that matches none of `names`, which a server lists. Patterns that match
    every name are left out, because they match whatever the server lists later. For the messages: `where` is the path
    of the setting, and `what` the kind of item, such as `tool`."""
    listed = sorted(names)
    known = {form for name in listed for form in (name, unicodedata.normalize("NFKC", name))}
    return [
        f"{where}: {pattern!r} names no {what} that the server lists: {_some(listed)}"
        for pattern in patterns
        if not matches(pattern, "") and not any(matches(pattern, name) for name in known)
    ]


def patterns_of(settings: UpstreamSettings, kind: str) -> tuple[str, Iterable[str]]:
    """Return the name and the value of the setting with a server's patterns for `kind` (tools, prompts or
    resources)."""
    setting = "resource_uris" if kind == "resources" else kind
    patterns: Iterable[str] = getattr(settings, setting)
    return setting, patterns


def require_matches(upstream: ConfiguredUpstream, kind: str, listed: Listed | frozenset[str]) -> None:
    """Check that each pattern in a server's settings for `kind` (tools, prompts or resources) matches one of the names
    `listed`. If so, mark these patterns as reviewed.

    Raises:
        UpstreamUnavailable: a pattern matches no name, so it is unknown what it should protect.
    """
    setting, patterns = patterns_of(upstream.settings, kind)
    where, what = f"mcpServers.{upstream.name}.{setting}", kind.removesuffix("s")
    if isinstance(listed, Tools):
        faults = listed.unmatched(lambda names: unmatched(where, patterns, names, what))
    else:
        faults = unmatched(where, patterns, listed, what)
    if faults:
        logger.error("requests to server %s are refused: %s", upstream.name, "; ".join(faults))
        raise UpstreamUnavailable(f"server {upstream.name!r} is not served: its policy names {kind} it does not list")
    upstream.mark_reviewed(kind)


def _some(names: Sequence[str]) -> str:
    """Return the first of these names as text for an error message, so that the operator can find a misspelling."""
    shown = [repr(name[:_SHOWN_CHARS]) for name in names[:_SHOWN_NAMES]]
    return ", ".join(shown + ["…"] * (len(names) > _SHOWN_NAMES)) or "it has none"


def _of_workspaces(
    workspaces: Mapping[str, WorkspaceSettings], names: Mapping[str, Mapping[str, list[str]]], left_out: Sequence[str]
) -> Iterable[str]:
    for workspace, entry in workspaces.items():
        where = f"gateway.policy.workspaces.{workspace}"
        for pattern in entry.servers:
            if not any(matches(pattern, server) for server in (*names, *left_out)):
                yield f"{where}.servers: {pattern!r} names no server"
        for kind in _KINDS:
            # With an empty name, because `server__*` is meant for names that the server may list later.
            known = [f"{server}__{name}" for server, lists in names.items() for name in ("", *lists.get(kind, ()))]
            for pattern in getattr(entry, kind):
                if not any(matches(pattern, name) for name in known) and not _may_be_of(left_out, "__", pattern):
                    yield f"{where}.{kind}: {pattern!r} names no {kind.removesuffix('s')} that a server lists"


def _may_be_of(left_out: Iterable[str], separator: str, pattern: str) -> bool:
    """Return True if the pattern may match items of one of the servers `left_out`, whose lists are unknown. Such an
    item is written as the server's name, `separator`, and the item's own name."""
    fixed = _WILDCARD.split(pattern, maxsplit=1)[0]
    prefixes = (f"{server}{separator}" for server in left_out)
    return any(fixed.startswith(prefix) or prefix.startswith(fixed) for prefix in prefixes)


def _no_tasks(
    settings: TaskSettings, names: Mapping[str, Mapping[str, list[str]]], left_out: Sequence[str]
) -> Iterable[str]:
    for setting in ("at_once", "offered"):
        for pattern in getattr(settings, setting):
            only = TaskSettings(at_once=(pattern,))
            # With an empty name, because `server/*` is meant for tools that the server may list later.
            listed = ((server, tool) for server, lists in names.items() for tool in ("", *lists["tools"]))
            is_unknown = _may_be_of(left_out, "/", pattern) or _may_be_of(left_out, "__", pattern)
            if not is_unknown and not any(only.is_at_once(*each) for each in listed):
                yield f"gateway.tasks.{setting}: {pattern!r} names no tool that a server lists (server/tool)"


async def listed_names(upstream: ConfiguredUpstream, kind: str) -> list[str] | None:
    """Return the names of tools or prompts, or the URIs of resources (`kind`), that a server lists; None if it does not
    answer."""
    facts = await upstream.facts()
    conversation = upstream.sessionless(Era.LEGACY if facts.discover is None else Era.MODERN)
    names: list[str] = []
    try:
        async with asyncio.timeout(_WAIT_S):
            await conversation.ready()
            for row in lists_of(kind):
                if not row.is_offered(facts.capabilities):
                    continue
                items = await all_items(row.name, conversation)
                names += [item[row.item_key] for item in with_files(row.name, items)]
    except (*UNREACHED, TimeoutError):
        return None
    return names
