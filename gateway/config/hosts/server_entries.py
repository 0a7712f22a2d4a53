"""Translate a server's entry in a host's configuration file into the fields of `mcpServers`.

Hosts agree on `command`, `args`, `env`, `url` and `headers`, and differ in the rest. The tables below are from their
documentation; configuration.md lists the fields that are read.
"""

import io
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.config.configuration_errors import Note, similar_name
from gateway.config.hosts.placeholders import Place, Unresolved, expanded, in_braces, variable
from gateway.config.upstreams import UpstreamSettings

OURS: Final = frozenset({*UpstreamSettings.model_fields, "resources"})  # which validation refuses

RENAMED: Final = {
    "serverUrl": "url",  # Windsurf
    "httpUrl": "url",  # Gemini CLI
    "environment": "env",  # opencode
    "http_headers": "headers",  # Codex
}
ONLY: Final = ("includeTools", "enabled_tools", "enabledTools")
HIDDEN: Final = ("excludeTools", "disabled_tools", "disabledTools")
READ_BY_US: Final = frozenset(
    {"disabled", "enabled", "isActive", "type", "transport", "transportType", "envFile"}
    | {"bearer_token_env_var", "env_http_headers", "env_vars", *RENAMED, *ONLY, *HIDDEN}
)
WITHOUT_MEANING: Final = frozenset(
    "alwaysAllow autoApprove autoAllow category default_tools_approval_mode description dev experimental_environment "
    "gallery icon icons initTimeout isBuiltin logoUrl metadata name networkTimeout note notes oauth_resource priority "
    "provider providerUrl registryUrl remote remoteConfigured required scopes settings source startup_timeout_ms "
    "startup_timeout_sec supports_parallel_tool_calls tags timeout timeoutMs title tool_timeout_sec trust version "
    "watchPaths".split()
)
"""Fields of other hosts that have no meaning for a gateway, such as those for a user interface or a host's timeouts."""
CREDENTIALS: Final = frozenset({"auth", "authProviderType", "headersHelper", "oauth"})
STDIO: Final = frozenset({"local", "stdio"})
HTTP: Final = frozenset({"http", "remote", "streamable", "streamable-http", "streamable_http", "streamableHttp"})
NOT_SERVED: Final = {
    "sse": "HTTP+SSE of MCP 2024-11-05; most such servers have a Streamable HTTP URL as well: give it, with type http",
    "ws": "WebSocket, which MCP does not define",
    "websocket": "WebSocket, which MCP does not define",
    "builtin": "a server inside that host",
    "platform": "a server inside that host",
    "sdk": "a server inside that host",
}
_OF_VS_CODE: Final = frozenset({"enabled", "filesystem", "network"})
"""Fields of VS Code's setting `sandbox`, which ours does not have."""
_MOST_ENV_FILE: Final = 1 << 20


@dataclass(slots=True)
class Findings:
    """Results of reading a file: `faults` are errors, `notes` say what has no effect."""

    faults: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def fault(self, where: str, what: str) -> None:
        self.faults.append(f"{where}: {what}")

    def note(self, text: str) -> None:
        self.notes.append(Note(level="ignored", text=text))

    def warn(self, text: str) -> None:
        self.notes.append(Note(level="warning", text=text))


def adapted_entry(where: str, given: Mapping[str, Any], place: Place, found: Findings) -> dict[str, Any] | None:
    """Return a host's entry for a server in the fields of `mcpServers`; None if the server is not served. Notes and
    faults, and the reason for None, are added to `found`. `where`: the path of the entry in the file, for these.

    Values of a wrong type stay unchanged; validation reports them later.
    """
    if not _is_enabled(where, given, found) or not _is_reachable(where, given, found):
        return None
    entry = {name: value for name, value in given.items() if name in OURS}
    _flatten_command(entry)
    for other, name in RENAMED.items():
        if other in given:
            if name in entry:
                found.note(f"{where}.{name}: ignored, because {other} is given as well")
            entry[name] = given[other]
    _filter_tools(where, entry, given, found)
    _drop_foreign(where, entry, given, found)
    # opencode has its servers in `mcp`, and writes placeholders as `{env:VAR}`.
    _expand(where, entry, place, found, braces=where.startswith("mcp."))
    _add_named_variables(where, entry, given, place, found)
    if isinstance(entry.get("command"), str) and (fault := command_fault(entry["command"], _path(entry, place))):
        found.fault(f"{where}.command", fault)
    return entry


def command_fault(command: str, path: str | None) -> str:
    """Return a sentence about the fault if `command` is not a program but a whole command line; an empty string
    otherwise. `path` is the PATH in which the program is searched."""
    words = command.split()
    if len(words) < 2 or shutil.which(command, path=path) or Path(command).exists():
        return ""
    return (
        f"must be the program alone: write {words[0]!r} here, and what follows it as a list in args "
        f"({len(words) - 1} more {'word' if len(words) == 2 else 'words'})"
    )


def _path(entry: Mapping[str, Any], place: Place) -> str | None:
    env = entry.get("env")
    own = env.get("PATH") if isinstance(env, dict) else None
    return own if isinstance(own, str) else place.environ.get("PATH")


def _is_enabled(where: str, given: Mapping[str, Any], found: Findings) -> bool:
    for name, off in (("disabled", True), ("enabled", False), ("isActive", False)):
        value = given.get(name)
        if value is not None and not isinstance(value, bool):
            found.fault(f"{where}.{name}", "must be true or false")
        elif value is off:
            found.note(f"{where}: not served, because {name} is {str(off).lower()}")
            return False
    return True


def _is_reachable(where: str, given: Mapping[str, Any], found: Findings) -> bool:
    """Return False, and add a warning, if the gateway cannot serve the entry: its transport is not supported, or its
    command is inside an extension of the host. Otherwise return True. An unknown transport is added as a fault."""
    for name in ("type", "transport", "transportType"):
        kind = given.get(name)
        if kind is None or kind in STDIO | HTTP:
            continue
        if kind in NOT_SERVED:
            found.warn(f"{where}: not served, because its {name} {kind} is {NOT_SERVED[kind]}")
            return False
        known = ", ".join(sorted(STDIO | HTTP | {"sse"}))
        found.fault(f"{where}.{name}", f"must be one of {known}")
    if given.get("source") == "extension" and not given.get("command"):
        found.warn(f"{where}: not served, because its command is inside an extension of that host")
        return False
    return True


def _flatten_command(entry: dict[str, Any]) -> None:
    """Replace a `command` that is a list (opencode), or an object with path, args and env (Zed until 2025), by separate
    fields. Remove `args`, `env`, `headers`, `url` and `cwd` where they are null."""
    command = entry.get("command")
    if isinstance(command, list) and command:
        entry["command"], entry["args"] = command[0], [*command[1:], *(entry.get("args") or [])]
    elif isinstance(command, dict):
        entry |= {"command": command.get("path", "")}
        entry |= {name: command[name] for name in ("args", "env") if command.get(name) is not None}
    for name in ("args", "env", "headers", "url", "cwd"):
        if name in entry and entry[name] is None:
            del entry[name]


def _filter_tools(where: str, entry: dict[str, Any], given: Mapping[str, Any], found: Findings) -> None:
    """Translate the host's lists of shown and hidden tools into `only_tools` and `hidden_tools` of `entry`: a tool that
    the host hides is not served."""
    shown = [given[name] for name in ONLY if given.get(name) is not None]
    if isinstance(entry.get("tools"), list):  # GitHub Copilot
        shown.append(entry.pop("tools"))
    hidden = [given[name] for name in HIDDEN if given.get(name) is not None]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in shown + hidden):
        found.fault(where, f"{', '.join((*ONLY, *HIDDEN))} must be lists of tool names")
        return
    # Gemini CLI writes `tool(argument)` for a part of a tool's calls; hiding the whole tool is the safe reading.
    lists = [[name.partition("(")[0] for name in names] for names in shown if "*" not in names]
    if lists and "only_tools" not in entry:
        entry["only_tools"] = [name for name in lists[0] if all(name in names for names in lists)]
    if hidden and "hidden_tools" not in entry:
        entry["hidden_tools"] = [name.partition("(")[0] for names in hidden for name in names]
    tools = entry.get("tools")
    if isinstance(tools, dict):  # Codex: how tools are approved
        rules = {
            name: {key: value for key, value in rule.items() if key != "approval_mode"}
            if isinstance(rule, dict)
            else rule
            for name, rule in tools.items()
        }
        entry["tools"] = {name: rule for name, rule in rules.items() if rule or not tools[name]}


def _drop_foreign(where: str, entry: dict[str, Any], given: Mapping[str, Any], found: Findings) -> None:
    """Add notes to `found` about the fields of `given` that have no effect here. A field whose name is similar to a
    known one is a fault: it is misspelt."""
    sandbox = entry.get("sandbox")
    of_another = isinstance(sandbox, Mapping) and bool(_OF_VS_CODE & sandbox.keys())
    if of_another or given.get("sandboxEnabled"):
        if of_another:
            del entry["sandbox"]
        found.warn(f"{where}: the sandbox of that host is not applied; the server runs as gateway.sandbox says")
    ignored = []
    for name in given:
        if name in OURS | READ_BY_US or name == "sandboxEnabled":
            continue
        if name in CREDENTIALS:
            found.warn(f"{where}.{name}: ignored, so the gateway has no credential from there; use headers or env")
        elif name not in WITHOUT_MEANING and (ours := similar_name(name, OURS | RENAMED.keys())):
            found.fault(f"{where}.{name}", f"no such field; did you mean {RENAMED.get(ours, ours)}?")
        else:
            ignored.append(name)
    if ignored:
        found.note(f"{where}: ignored {', '.join(sorted(ignored))}")


def _expand(where: str, entry: dict[str, Any], place: Place, found: Findings, *, braces: bool) -> None:
    """Replace the placeholders in those fields of `entry` in which hosts replace them. `braces`: also replace
    opencode's `{env:VAR}`."""

    def one(name: str, text: Any, *, is_pair: bool = False) -> Any:
        if not isinstance(text, str):
            return text
        try:
            text = in_braces(text, place) if braces else text
            return expanded(text, place, last_word=is_pair, secrets=is_pair)
        except Unresolved as error:
            found.fault(f"{where}.{name}", str(error))
            return ""

    for name in ("command", "cwd", "url"):
        if name in entry:
            entry[name] = one(name, entry[name])
    if isinstance(entry.get("args"), list):
        entry["args"] = [one(f"args[{index}]", text) for index, text in enumerate(entry["args"])]
    for name in ("env", "headers"):
        if isinstance(entry.get(name), dict):
            pairs = {key: one(f"{name}.{key}", text, is_pair=True) for key, text in entry[name].items()}
            entry[name] = {key: text for key, text in pairs.items() if text is not None}


def _add_named_variables(
    where: str, entry: dict[str, Any], given: Mapping[str, Any], place: Place, found: Findings
) -> None:
    """Add to `entry` the values that its host would read from variables or from a file: those of Codex's `…env_var…`
    fields and of VS Code's `envFile`."""

    def value(name: str, source: Any, read: Callable[[str], Any]) -> Any:
        try:
            return read(source) if isinstance(source, str) else found.fault(f"{where}.{name}", "must be a name")
        except Unresolved as error:
            return found.fault(f"{where}.{name}", str(error))

    def named(source: str) -> str:
        return variable(source, place)

    env, headers = entry.get("env", {}), entry.get("headers", {})
    if not isinstance(env, dict) or not isinstance(headers, dict):
        return
    if given.get("envFile") is not None:
        env = (value("envFile", given["envFile"], lambda path: _env_file(path, place)) or {}) | env
    forwarded = given.get("env_vars")
    for each in forwarded if isinstance(forwarded, list) else ():
        name = each.get("name") if isinstance(each, dict) else each
        if isinstance(name, str) and name in place.environ:  # Codex passes on those that are set
            env = {name: value("env_vars", name, named)} | env
    fields = given.get("env_http_headers")
    for name, source in fields.items() if isinstance(fields, dict) else ():
        headers = headers | {name: value(f"env_http_headers.{name}", source, named)}
    if given.get("bearer_token_env_var") is not None:
        token = value("bearer_token_env_var", given["bearer_token_env_var"], named)
        headers = headers | {"Authorization": f"Bearer {token}"}
    entry |= ({"env": env} if env else {}) | ({"headers": headers} if headers else {})


def _env_file(path: str, place: Place) -> dict[str, str]:
    """Return the variables in a `.env` file. Raises `Unresolved` if the file cannot be read."""
    from dotenv import dotenv_values  # only for files that need it

    file = place.workspace / Path(expanded(path, place)).expanduser()
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_ENV_FILE)
        values = dotenv_values(stream=io.StringIO(data.decode("utf-8-sig")), interpolate=False)
    except (OSError, ValueError) as error:
        raise Unresolved(f"{file}: {getattr(error, 'strerror', None) or 'not a file of variables'}") from None
    return {name: value for name, value in values.items() if value is not None}
