"""Merge the settings from the file, the environment and the command line; later ones win.

Record which place gives each setting, for messages. Find variables `MCP_GATEWAY_…` that are not settings: misspelt
names, and names of other programs.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway.config.configuration_errors import ConfigurationError, Note, ServerFault, did_you_mean, similar_name
from gateway.config.hosts.file_formats import FaultyEntry, adapted, read_document
from gateway.config.hosts.placeholders import Place
from gateway.config.limits import SUSPENDED_S
from gateway.config.sandbox import profile_table, sandbox_table
from gateway.config.secrets import UnusableSecret, secret_in

PREFIX: Final = "MCP_GATEWAY_"
_GONE_OF_SANDBOXES: Final = {"cpu_s": "processors limits the processor time of all processes together"}
GONE: Final[Mapping[str, str]] = {
    "gateway.audit.arguments": "give names or values as gateway.audit.calls",
    "gateway.audit.file": "give the absolute path of the file in gateway.audit.to, beside store",
    "gateway.auth.jwt.*.clock_skew_s": "the clocks of issuers may differ by 30 s",
    "gateway.auth.proxies.trust_header": "give the principals of the proxies their trust by policy.rules",
    "gateway.auth.proxies.workspace_header": "give the principals of the proxies their workspace by policy.rules",
    "gateway.cards.*.title": "clients show the name that the server gives",
    "gateway.cards.*.website": "a card has no website",
    "gateway.connection_memory": "heads that a connection repeats are always parsed once",
    "gateway.context.env.*.empty_for_anonymous": 'a default, such as "", is also the value for anonymous clients',
    "gateway.context.fields.*.max_chars": "a value has at most 1,024 characters",
    "gateway.context.workspace_pattern": "a workspace in a variable is a slug, or an absolute path without `..`",
    "gateway.discovery": "give the cards as gateway.cards; nothing else of it is left",
    "gateway.issuer": "it is gateway.public_url, or mcp-session-gateway if that is not set",
    "gateway.limits.all_in_flight_bytes": "it is an eighth of the memory (limits.total_memory_mb), 512 MiB at most",
    "gateway.limits.batch_messages": "a batch has at most 64 messages",
    "gateway.limits.body_timeout_s": "it is 30 s for each 64 KiB",
    "gateway.limits.cached_bytes": "at most 8 MiB of results of each server are kept",
    "gateway.limits.client_timeout_s": "it is 30 s",
    "gateway.limits.former_server_s": "a session goes on with the process of a former server for 600 s at most",
    "gateway.limits.head_timeout_s": "it is 10 s",
    "gateway.limits.head_bytes": "the request line and the headers have at most 64 KiB together",
    "gateway.limits.headers": "a request has at most 128 headers",
    "gateway.limits.in_flight_bytes": "it is eight times gateway.limits.body_bytes",
    "gateway.limits.line_bytes": "it is four times gateway.limits.body_bytes, and 16 MiB at least",
    "gateway.limits.name_chars": "names have at most 256 characters",
    "gateway.limits.noise_timeout_s": "it is a sixth of gateway.limits.start_timeout_s",
    "gateway.limits.parked_s": f"a call waits {SUSPENDED_S:g} s for the answers of its client",
    "gateway.limits.peer_connections": "it is half of gateway.limits.connections",
    "gateway.limits.priming_after_s": "the event stream of a silent call begins after a second",
    "gateway.limits.record_bytes": "the record of a session has at most 64 KiB from its client",
    "gateway.limits.uri_chars": "URIs have at most 8,192 characters",
    "gateway.limits.write_timeout_s": "a client that reads nothing for 30 s is cut off",
    "gateway.log_calls_per_s": "at most 100 requests a second have a log line, and further ones are counted in one",
    "gateway.packages.folder": "it is mcp-session-gateway/packages in $XDG_CACHE_HOME, by default ~/.cache",
    "gateway.packages.fresh_s": "a package whose command names no exact version is fetched again after a day",
    "gateway.packages.timeout_s": "a package is fetched within 600 s",
    "gateway.policy.last_output": "errors quote the last line of a process to the session whose process it is",
    "gateway.policy.opening_rate": "it is 10 per second, burst 200, unless gateway.policy.principal_sessions is 0",
    "gateway.policy.sandbox": "it is gateway.sandbox",
    "gateway.policy.unusable_schemas": "such tools are hidden unless gateway.policy.check_arguments is false",
    "gateway.secrets.*.pass_env": 'give the command its variables, as in ["env", "NAME=value", "program"]',
    "gateway.session.default_session_for": "give the list as gateway.session.default_session",
    "gateway.session.key_variables": "the variable is MCP_SESSION_KEY",
    "gateway.session.scrub_metadata": "credentials in metadata are redacted; write no personal data into it",
    "gateway.session.token_in_results": "the first result of a session has it, if its client needs it there",
    "gateway.session.unreturned_stop_s": "it is 300 s; a server's own idle_stop_s changes it for that server",
    "gateway.stall_log_s": "what blocks the event loop for longer than 0.25 s is logged",
    "gateway.tasks.answer_s": "a task waits 600 s for the answers of its client",
    "gateway.tasks.max_per_principal": "it is 1,000",
    "gateway.tasks.max_per_session": "it is 100",
    "gateway.tasks.poll_ms": "clients are asked to poll 2.5 times in gateway.tasks.after_s",
    "gateway.tasks.principal_bytes": "it is 256 MiB",
    "gateway.tasks.result_bytes": "a task's result has at most 1 MiB",
    "gateway.tracing": "spans are sent if OTEL_EXPORTER_OTLP_ENDPOINT is set",
    "gateway.tasks.tools": "clients use the requests tasks/* of the protocol",
    "mcpServers.*.tools.*.slow_s": "it is gateway.policy.slow_s for all tools",
    **{
        f"{table}{part}.{name}": now
        for table in ("gateway.sandbox", "mcpServers.*.sandbox")
        for part in ("", ".direct", ".sandboxed")
        for name, now in _GONE_OF_SANDBOXES.items()
    },
}
"""Removed settings, each with what applies in its place. `*` stands for any name."""
OTHER_NAMES: Final = frozenset(
    {"ADMIN_KEY", "API_KEY", "CREDENTIAL", "KEYS", "KEYS_FILE", "TOKEN", "URL"}
    | {"WORKER_COUNT", "WORKER_ENVIRONMENT", "WORKER_LIFELINE", "WORKER_LISTENER", "WORKER_NUMBER", "WORKER_READY"}
    | {"WORKER_SIBLINGS"}
)
"""Names of variables, without the prefix, that the gateway reads, but that are not settings of `gateway`."""


def unknown_variables(environ: Iterable[str], model: type[BaseModel]) -> tuple[list[str], tuple[Note, ...]]:
    """Check the names in `environ` that begin with `MCP_GATEWAY_`. Return faults for those that are similar to a
    setting of `model`, and notes for the other unknown ones.

    Other programs also use the prefix: Kubernetes sets `MCP_GATEWAY_SERVICE_HOST` for a service named `mcp-gateway`. A
    similar name is a fault, because its value would silently have no effect.
    """
    known = {name.upper(): name.upper() for name in (*model.model_fields, *OTHER_NAMES)}
    removed = ((setting.removeprefix("gateway."), now) for setting, now in GONE.items() if "*" not in setting)
    gone = {setting.replace(".", "__").upper(): now for setting, now in removed}
    below = {path.upper() for path in _paths(model)} | gone.keys()
    sections = {name.upper() for name, setting in model.model_fields.items() if _is_section(setting)}
    faults, notes = [], []
    for variable in sorted(environ):
        name = variable.upper().removeprefix(PREFIX)
        first = name.partition("__")[0]
        if not variable.upper().startswith(PREFIX) or name in known or first in sections:
            continue
        candidates = below if "__" in name else known.keys() | below
        found = first if first in known else similar_name(name, sorted(candidates))
        found = found or similar_name(first, sorted(known.keys() | gone.keys()))
        if found in gone:
            what = "this setting" if found == name else f"{PREFIX}{found}"
            faults.append(f"the variable {variable}: {what} is gone, remove it: {gone[found]}")
        elif found:
            faults.append(f"the variable {variable}: no such setting; did you mean {PREFIX}{found}?")
        else:
            notes.append(Note(level="warning", text=f"the variable {variable} is ignored: it is not a setting"))
    return faults, tuple(notes)


def _is_section(setting: FieldInfo) -> bool:
    """Return True if the setting is an object, and variables can give each setting in it."""
    return isinstance(setting.annotation, type) and issubclass(setting.annotation, BaseModel)


def _paths(model: type[BaseModel]) -> Iterator[str]:
    """Yield the names of the variables, without the prefix, that give settings inside the objects of `model`."""
    for name, setting in model.model_fields.items():
        kind = setting.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (f"{name}__{below}" for below in (*kind.model_fields, *_paths(kind)))


def variables(model: type[BaseModel]) -> dict[str, Any]:
    """Return the settings of `model` that environment variables give, not validated yet.

    `MCP_GATEWAY_PORT` gives a setting, `MCP_GATEWAY_SESSION__IDLE_TTL_S` a field of an object. Lists and objects are
    JSON. An empty variable counts as not set.
    """
    given: dict[str, Any] = {}
    for variable in sorted(os.environ, key=str.upper):  # an object comes before its fields, which win
        text, name = os.environ[variable], variable.upper()
        first, *below = name.removeprefix(PREFIX).lower().split("__")
        setting = model.model_fields.get(first)
        if setting is None or not text or not name.startswith(PREFIX):
            continue
        if below and not _is_section(setting):
            continue
        if _is_in_text(given, [first, *below]):
            continue  # validation refuses what is no object
        value = _maybe_json(text)
        for key in reversed([first, *below]):
            value = {key: value}
        given = _merge(given, value)
    return given


def _is_in_text(given: Any, path: list[str]) -> bool:
    """Return True if the variable for `path` has to be ignored, because an earlier variable has given a value that is
    not an object to a setting that `path` leads through."""
    for name in path[:-1]:
        given = given.get(name, {})
        if not isinstance(given, dict):
            return name not in _SHORT
    return False


_OPTIONS: Final = {"allowed_hosts": "allowed-host", "policy.eval_tools": "allow-eval"}
"""Options on the command line whose names differ from their settings."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Origins:
    """The three places that give settings of `gateway` (file, environment and command line), and what each gives.
    Messages use it to say where a setting comes from."""

    file: str
    """The path of the file; empty if none was read."""
    in_file: Any
    """The `gateway` object of the file."""
    environment: Mapping[str, Any]
    """The settings that variables give."""
    overrides: Mapping[str, Any]
    """The settings that the command line gives."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """The path of a server's entry in the file, by server, if that is not `mcpServers.NAME`."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """The whole file as it was read, with its placeholders."""

    def in_words(self, loc: tuple[int | str, ...]) -> str:
        """Return the path of a setting as the file has it. Validation calls it `loc`, with all servers in `mcpServers`;
        files of hosts have their servers under other keys."""
        if loc[:1] == ("mcpServers",) and loc[1:2] and loc[1] in self.servers:
            return ".".join((self.servers[str(loc[1])], *map(str, loc[2:])))
        return ".".join(map(str, loc))

    def of(self, setting: str) -> str:
        """Return the places that give a setting, or a part of it, as text: joined by `and`."""
        return " and ".join(self.places_of(setting))

    def places_of(self, setting: str) -> tuple[str, ...]:
        """Return the places that give a setting, or a part of it, in words such as `the variable MCP_GATEWAY_PORT`. The
        last place wins. Empty: the setting has its default."""
        variable = f"the variable MCP_GATEWAY_{setting.upper().replace('.', '__')}"
        option = f"--{_OPTIONS.get(setting, setting)} on the command line"
        named = ((self.file, self.in_file), (variable, self.environment), (option, self.overrides))
        return tuple(name for name, given in named if _has(given, setting))

    def of_fault(self, loc: tuple[int | str, ...]) -> str:
        """Return the place, in words, at which to correct a fault that validation found at `loc`. If no place gives a
        setting there, return the path of the file, which is empty if none was read."""
        names = [str(part) for part in loc[1:]] if loc[:1] == ("gateway",) else []
        for end in range(len(names), 0, -1):
            found = self.places_of(".".join(names[:end]))
            if found:
                return found[-1]
        return self.file


def _has(given: Any, setting: str) -> bool:
    for name in setting.split("."):
        if not isinstance(given, Mapping) or given.get(name) is None:
            return False
        given = given[name]
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The document that is merged from file, environment and command line, not validated yet. `origins`: which of these
    places gave what. `notes`: what has no effect. `faulty`: the servers' entries that are known to be unusable."""

    document: dict[str, Any]
    origins: Origins
    notes: tuple[Note, ...]
    faulty: dict[str, FaultyEntry]


def gathered(path: Path | None, overrides: dict[str, Any], model: type[BaseModel]) -> Gathered:
    """Return one document, merged from the file at `path`, the environment and `overrides` (the settings of the command
    line).

    `model` has the settings of `gateway`, which give the variables their names.

    Raises:
        ConfigurationError: the file cannot be read, or a name in it or in the environment is misspelt.
    """
    misspelt, notes = unknown_variables(os.environ, model)
    place = Place(environ=os.environ, folder=(path or Path()).absolute().parent)
    read = {} if path is None else read_document(path)
    found = adapted(read, place)
    faulty = {
        name: FaultyEntry(entry.given, tuple(f"{path}: {fault}" for fault in entry.faults))
        for name, entry in found.faulty.items()
    }
    faults = [*(f"{path}: {fault}" for fault in found.findings.faults), *misspelt]
    if faults:
        raise ConfigurationError("\n".join([*faults, *(fault for entry in faulty.values() for fault in entry.faults)]))
    notes += tuple(Note(level=note.level, text=f"{path}: {note.text}") for note in found.findings.notes)
    document, environment = found.document, variables(model)
    gateway = document.get("gateway", {})
    origins = Origins(str(path or ""), gateway, environment, overrides, found.places, read)
    if isinstance(gateway, dict):
        document = document | {"gateway": _with_store(_merge(_merge(gateway, environment), overrides), origins)}
    return Gathered(document=document, origins=origins, notes=notes, faulty=faulty)


def _with_store(gateway: dict[str, Any], origins: Origins) -> dict[str, Any]:
    """Return the settings of `gateway` with `store` read from the file that `store_file` names, if it names one. Raises
    `ConfigurationError` if both settings are given, or the file cannot be used."""
    file = gateway.get("store_file")
    if not file or not isinstance(file, str):
        return gateway
    if gateway.get("store"):
        places = f"store (from {origins.of('store')}) and store_file (from {origins.of('store_file')})"
        raise ConfigurationError(f"gateway: {places} are both given: give the URL in one of them")
    try:
        return gateway | {"store": secret_in(Path(file), "gateway.store_file")}
    except UnusableSecret as error:
        raise ConfigurationError(str(error)) from None


def _maybe_json(text: str) -> Any:
    try:
        return json.loads(text) if text[0] in "{[" else text
    except ValueError:
        return text


_SHORT: Final = {"sandbox": sandbox_table, "direct": profile_table, "sandboxed": profile_table}
"""Objects that may be given as a word or a list, each with the function that converts that to the object."""


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if key in _SHORT and isinstance(value, dict):
            below = _SHORT[key](below)  # else a variable for one field would replace the profile
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def explained(error: ValidationError, origins: Origins, model: type[BaseModel]) -> str:
    """Return the message for a failed validation, with one line for each fault: where it is, and what it is. `model` is
    the model of the whole document."""
    return "\n".join(line for _, line in fault_lines(error, origins, model))


def fault_lines(error: ValidationError, origins: Origins, model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield a pair for each fault of a failed validation: the name of its server (empty: the fault is not of one
    server), and the line about it for people. `model` is the model of the whole document."""
    for fault in error.errors(include_url=False, include_input=False):
        where = origins.in_words(fault["loc"])
        what = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            known = _names_at(model, fault["loc"][:-1])
            gone = next((now for name, now in GONE.items() if _is_named(name, fault["loc"])), None)
            what = (
                f"this setting is gone, remove it: {gone}"
                if gone
                else f"no such setting{did_you_mean(str(fault['loc'][-1]), known)}"
            )
        place = origins.of_fault(fault["loc"])
        if fault["type"] in _SHAPES:
            shape, example = _SHAPES[fault["type"]]
            is_variable = place.startswith("the variable ")
            what = (
                f"must be a JSON {shape}, for example {example}"
                if is_variable
                else f"must be {'an' if shape == 'object' else 'a'} {shape}"
            )
        elif fault["type"] in _NUMBER_FAULTS:
            setting = str(fault["loc"][-1])
            what = f"must be a number{next((unit for end, unit in _UNITS.items() if setting.endswith(end)), '')}"
        yield _server_of(fault), ": ".join(part for part in (place, where, what) if part)


def _server_of(fault: ErrorDetails) -> str:
    if fault["loc"][:1] == ("mcpServers",) and fault["loc"][1:2]:
        return str(fault["loc"][1])
    raised = fault.get("ctx", {}).get("error")
    return raised.server if isinstance(raised, ServerFault) else ""


def _is_named(setting: str, loc: tuple[int | str, ...]) -> bool:
    parts = setting.split(".")
    return len(parts) == len(loc) and all(part in ("*", str(at)) for part, at in zip(parts, loc, strict=True))


_SHAPES: Final = {
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), ("list", '["a", "b"]')),
    **dict.fromkeys(("dict_type", "model_type"), ("object", '{"name": "value"}')),
}
"""The expected type of a value and an example in JSON, by the type of pydantic's error."""
_NUMBER_FAULTS: Final = frozenset({"float_type", "float_parsing"})
_UNITS: Final = {"_s": " of seconds", "_ms": " of milliseconds"}


def _names_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the names of the settings that the object at `loc` may have, for suggestions. `loc`: the path to the
    object in a document of `model`."""
    models = [model]
    for part in loc:
        fields = [each.model_fields[str(part)].annotation for each in models if str(part) in each.model_fields]
        # Another part is a key of a mapping or an index of a list, whose values the models already are.
        models = [found for field in fields for found in models_in(field)] or models
    return [name for each in models for name in each.model_fields]


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the classes of settings that a type annotation contains, such as `A` for `dict[str, A]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)
