"""Reads the configuration files of MCP hosts: which table holds the servers, and what else in the file matters.

The file of the gateway itself is one of them: `mcpServers`, as desktop hosts have it, with `gateway` beside it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gateway.config.faults import meant
from gateway.config.hosts.entries import Findings, adapted_entry
from gateway.config.hosts.placeholders import Place

__all__ = [
    "Adapted",
    "adapted",
    "served_name",
]

TABLES: Final = {
    "mcpServers": "Claude, Cursor, Windsurf, Cline, Roo Code, Gemini CLI, Kiro, LM Studio, Copilot CLI",
    "servers": "VS Code",
    "context_servers": "Zed",
    "mcp_servers": "Codex",
    "amp.mcpServers": "Amp",
}
"""Keys of the file that hold servers by name, and whose they are."""
BESIDE: Final = frozenset({"$schema", "gateway", "inputs", "mcp", "allowMCPServers", "excludeMCPServers", *TABLES})
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_SHOWN: Final = 12


@dataclass(slots=True, kw_only=True)
class Adapted:
    """The document in the gateway's own form.

    `places` has, by server, where the file has it if that is not `mcpServers.NAME`.
    """

    document: dict[str, Any]
    findings: Findings
    places: dict[str, str] = field(default_factory=dict)


def adapted(given: Mapping[str, Any], place: Place) -> Adapted:
    """`mcpServers` and `gateway` of a host's file. Values that are no servers are left for validation to name."""
    found = Findings()
    tables = dict(_tables(given))
    _unknown_keys(given, bool(tables), found)
    result = Adapted(document={}, findings=found)
    if "gateway" in given:
        result.document["gateway"] = given["gateway"]
    broken = next((table for table in tables.values() if not isinstance(table, dict)), None)
    if broken is not None:
        result.document["mcpServers"] = broken
        return result
    place = replace(place, inputs=_inputs(given))
    if tables:
        result.document["mcpServers"] = {}
    for key, table in tables.items():
        for name, entry in table.items():
            _add(result, (key, name), entry, place)
    _filter_servers(given, result)
    return result


def _tables(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in TABLES:
        if given.get(key) is not None:
            yield key, given[key]
    within = given.get("mcp")
    if not isinstance(within, dict):
        return
    if isinstance(within.get("servers"), dict):  # VS Code's settings, opencode 2
        yield "mcp.servers", within["servers"]
    elif within and all(isinstance(entry, dict) for entry in within.values()):  # opencode, Crush
        yield "mcp", within


def served_name(name: str) -> str:
    """Return the name under which a server of a host is served. Empty if nothing of its name can stand in a URL."""
    return name if _NAME.fullmatch(name) else re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip(".-")


def _add(result: Adapted, where: tuple[str, str], entry: Any, place: Place) -> None:
    """Put the server into the document, under a name that can stand in URLs and in names of tools."""
    found, (key, name) = result.findings, where
    served = served_name(name)
    at, servers = f"{key}.{name}", result.document["mcpServers"]
    if isinstance(entry, dict):
        entry = adapted_entry(at, entry, place, found)
        if entry is None:
            return
    if not served or served in servers:
        other = result.places.get(served, f"mcpServers.{served}")
        found.fault(
            at, f"would have the same name as {other}: rename it" if served else "needs an ASCII letter or digit"
        )
        return
    if served != name:
        found.note(f"{at}: served as {served}, because a server name is a part of URLs and of tool names")
    if at != f"mcpServers.{served}":
        result.places[served] = at
    servers[served] = entry


def _inputs(given: Mapping[str, Any]) -> dict[str, str]:
    """Defaults of VS Code's input variables."""
    inputs, within = given.get("inputs"), given.get("mcp")
    if inputs is None and isinstance(within, dict):
        inputs = within.get("inputs")
    entries = [each for each in inputs if isinstance(each, dict)] if isinstance(inputs, list) else []
    return {str(each.get("id")): each["default"] for each in entries if isinstance(each.get("default"), str)}


def _filter_servers(given: Mapping[str, Any], result: Adapted) -> None:
    """Gemini CLI's lists of servers that may be used."""
    within = given.get("mcp")
    rules = within if isinstance(within, dict) else {}
    allowing = "mcp.allowed" if "allowed" in rules else "allowMCPServers"  # the second is of earlier versions
    excluding = "mcp.excluded" if "excluded" in rules else "excludeMCPServers"
    allowed = rules.get("allowed", given.get("allowMCPServers"))
    excluded = rules.get("excluded", given.get("excludeMCPServers"))
    for name in [*result.document.get("mcpServers", {})]:
        listed = result.places.get(name, name).rpartition("mcpServers.")[2]
        is_left_out = isinstance(allowed, list) and listed not in allowed
        if is_left_out or (isinstance(excluded, list) and listed in excluded):
            del result.document["mcpServers"][name]
            what = f"{allowing} does not list it" if is_left_out else f"{excluding} lists it"
            result.findings.note(f"mcpServers.{listed}: not served, because {what}")


def _unknown_keys(given: Mapping[str, Any], has_servers: bool, found: Findings) -> None:
    """A key that resembles `gateway` or `mcpServers` is a fault: without its rules the gateway would serve more."""
    ignored = []
    for key in given:
        if key in BESIDE:
            continue
        ours = meant(key, ("gateway", "mcpServers") if has_servers else ("gateway", *TABLES), cutoff=0.85)
        if ours:
            found.fault(key, f"no such key; did you mean {ours}?")
        else:
            ignored.append(key)
    if ignored:
        more = f" and {len(ignored) - _SHOWN} more" if len(ignored) > _SHOWN else ""
        found.note(f"ignored {', '.join(ignored[:_SHOWN])}{more}: not mcpServers or gateway")
