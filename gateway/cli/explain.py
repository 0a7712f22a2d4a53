"""Explain what a credential and a workspace see, and which setting decides it (`explain`, `manifest`)."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec.structs import replace

from gateway.cli.check import until_fetched, why_silent
from gateway.cli.error_exit import error_exit
from gateway.cli.find_configuration import configuration, with_command
from gateway.cli.options import Caller, ConfigOption, options
from gateway.cli.terminal_output import Terminal
from gateway.config.configuration_errors import located
from gateway.config.endpoint_paths import path_of
from gateway.config.patterns import sample_of
from gateway.config.sessions import CORRELATION_ID, TEMP_DIR
from gateway.config.settings import ConfigurationError, Settings, load
from gateway.context.announced_context import Announcements
from gateway.identity.authenticate import Authenticated, Authenticator
from gateway.identity.context_rules import Derived
from gateway.identity.credential_claims import CredentialClaims, normal_trust
from gateway.observability.escaped_text import as_json, visible_line
from gateway.policy.access_policy import ANNOTATIONS
from gateway.protocol.item_digests import digest_of
from gateway.protocol.merged_lists import operation_of, with_public_name
from gateway.serving.gateway import Gateway
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.lock_comparison import Unlockable, lists_of
from gateway.upstreams.unmatched_patterns import listed_names
from session_store import ANONYMOUS, ClientFacts, Context, Principal, Session
from transports.inbound_port import Refused

_LATER: Final = ("session_id", "agent", "endpoint", CORRELATION_ID, TEMP_DIR)
"""Fields of the context that have no value before a session opens."""

_ANYBODY: Final = Context(trust="direct")

_err = Terminal(stderr=True)


async def context_of(gateway: Gateway, settings: Settings, caller: Caller) -> tuple[Authenticated, Derived]:
    """Return the caller, and the context that sessions of this caller would get, with the reason for each fact.

    Raises:
        ConfigurationError: the credential is refused, or the principal or the workspace cannot be used.
    """
    try:
        who = await _authenticated(gateway.identity, settings, caller)
        if caller.trust:
            claims = replace(who.granted or CredentialClaims(), trust=normal_trust(caller.trust))
            who = Authenticated(who.principal, claims)
        path = settings.gateway.session.workspace_path
        workspace = Announcements(path, settings.gateway.context, lambda _: None).workspace({path: caller.workspace})
        return who, gateway.parts.sessions.rules.derive(who.principal, who.granted, workspace)
    except Refused as refused:
        raise ConfigurationError(f"such a request is refused: {refused}") from None


async def _authenticated(identity: Authenticator, settings: Settings, caller: Caller) -> Authenticated:
    """Return the caller as a request would authenticate it. A credential and a proxy's headers are checked as in
    requests. A principal that is named without a credential needs no proof. Raises `Refused` if the credential or the
    headers are refused, and `ConfigurationError` if the configuration has no such principal."""
    options = settings.gateway
    headers = {name.strip().lower(): value.strip() for name, _, value in map(_parted, caller.header or ())}
    proxies = options.auth.proxies
    peer = "" if proxies is None or not proxies.networks else proxies.networks[0].partition("/")[0]
    if caller.credential:
        return await identity.authenticate({**headers, "authorization": f"Bearer {caller.credential}"}, peer)
    if not caller.principal and headers:
        return await identity.authenticate(headers, peer)
    if caller.principal in ("", "anonymous"):
        if not options.allows_anonymous:
            whose = " ISSUER:SUBJECT, whose claims these are" if caller.claims else ""
            raise ConfigurationError(f"anonymous clients are refused: give --credential or --principal{whose}")
        return identity.with_fields(Authenticated(ANONYMOUS), headers, peer)
    principal = _principal(caller.principal, options.issuers)
    if proxies is not None and principal.issuer == proxies.issuer:
        return await identity.authenticate({**headers, proxies.subject_header.lower(): principal.subject}, peer)
    who = Authenticated(principal)
    if principal.issuer in (entry.issuer for entry in options.auth.jwt):
        who = identity.token_holder(principal, _claims(caller.claims))
    elif principal.subject not in options.api_keys:
        raise ConfigurationError(f"gateway.api_keys has no key {principal.subject!r}")
    return identity.with_fields(who, headers, peer)


def _parted(header: str) -> tuple[str, str, str]:
    if ":" not in header:
        raise ConfigurationError(f"--header {header!r}: give it as NAME:VALUE")
    return header.partition(":")


def _principal(text: str, issuers: tuple[str, ...]) -> Principal:
    for issuer in issuers:
        if text.startswith(f"{issuer}:") and len(text) > len(issuer) + 1:
            return Principal(issuer=issuer, subject=text[len(issuer) + 1 :])
    known = ", ".join(f"{issuer}:…" for issuer in issuers) or "none, so all clients are anonymous"
    raise ConfigurationError(f"--principal {text!r} begins with no configured issuer: {known}")


def _claims(file: Path | None) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        claims = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--claims {file}: {error}") from None
    if not isinstance(claims, dict):
        raise ConfigurationError(f"--claims {file}: must be an object")
    return claims


async def explanation(settings: Settings, caller: Caller, *, tool: str = "", offline: bool = False) -> dict[str, Any]:
    """Return what the caller sees, as a JSON object: context, fields, lifetimes and servers. For each server it says
    whether the server is visible, and if not, why; and has its tools, prompts, resources, patterns of methods, and
    variables. With `tool` (`server__name`), servers without this tool are left out, and no other tool is explained.
    `offline`: no server is started or contacted, so lists are missing.

    Raises:
        ConfigurationError: `context_of` fails; there is no such tool; or the settings cannot be served.
    """
    gateway = Gateway.to_ask(settings)
    who, derived = await context_of(gateway, settings, caller)
    found = _of_context(gateway, settings, who, derived)
    explained = _Servers(gateway, settings, who, derived, tool)
    if offline:
        servers = {upstream.name: explained.server(upstream) for upstream in gateway.upstreams}
    else:
        async with gateway.running():
            await until_fetched(gateway, settings.gateway.limits.start_timeout_s)
            each = await asyncio.gather(*(explained.with_lists(upstream) for upstream in gateway.upstreams))
            servers = {upstream.name: one for upstream, one in zip(gateway.upstreams, each, strict=True)}
    if tool and not any(one.get("tools") for one in servers.values()):
        silent = [
            f"; server {name} did not answer: {one['failed']}" for name, one in servers.items() if "failed" in one
        ]
        shape = "" if silent else "; with several servers, give it as SERVER__TOOL"
        raise ConfigurationError(f"--tool {tool}: no server lists it{shape}{''.join(silent)}")
    return found | {"servers": {name: one for name, one in servers.items() if not tool or one.get("tools")}}


def _of_context(gateway: Gateway, settings: Settings, who: Authenticated, derived: Derived) -> dict[str, Any]:
    context, rules = derived.context, gateway.parts.sessions.rules
    why: dict[str, list[str]] = {}
    for reason in derived.reasons:
        why.setdefault(reason.fact, []).append(reason.text)
    provenance = context.provenance
    facts: dict[str, Any] = {
        "workspace": {"value": context.workspace, "provenance": provenance.workspace},
        "trust": {"value": context.trust, "provenance": provenance.trust},
        "permissions": {"value": [*context.permissions], "provenance": provenance.permissions},
        "read_only": {"value": context.read_only, "provenance": "configured"},
    }
    fields = {}
    for name, field in settings.gateway.context.fields.items():
        given = context.field(name)
        value, source = (
            ("", "announced" if field.is_announced else "") if given is None else (given.value, given.source)
        )
        fields[name] = {
            "value": value,
            "provenance": source,
            "why": why.get(f"fields.{name}") or [_missing(field.model_dump())],
            "to": sorted(field.to),
        }
    session, lifetimes = settings.gateway.session, rules.lifetimes(who.principal, context)
    defaults = {"idle_ttl_s": session.idle_ttl_s, "max_age_s": session.max_age_s}
    return {
        "principal": str(who.principal),
        "context": {name: fact | {"why": why.get(name, [])} for name, fact in facts.items()},
        "fields": fields,
        "lifetimes": {
            name: dict(zip(("value", "why"), lifetimes.get(name, (value, f"gateway.session.{name}")), strict=True))
            for name, value in defaults.items()
        },
        "notes": why.get("rules", []),
    }


def _missing(field: Mapping[str, Any]) -> str:
    """Return why a field of the context has no value, as far as this is known before the session opens. `field`: the
    field's settings (`FieldSettings`), by name."""
    source = next(
        name for name in ("claim", "header", "announced", "metadata", "session_key", "variable") if field[name]
    )
    if source in ("claim", "header") and not field["client_header"]:
        return f"the credential or proxy does not send the {source} {field[source]}"
    if source == "variable":
        return f"stdio takes it from the variable {field['variable']} of its environment"
    return "the metadata of the session says it" if source == "metadata" else f"the client says it ({source})"


class _Servers:
    def __init__(self, gateway: Gateway, settings: Settings, who: Authenticated, derived: Derived, tool: str) -> None:
        self._gateway = gateway
        self._settings = settings
        self._principal = who.principal
        self._context = derived.context
        self._tool = tool

    def server(self, upstream: ConfiguredUpstream) -> dict[str, Any]:
        """Return whether the server is visible, and if not, why; also its variables and its patterns of methods. If one
        tool is to be explained and belongs to this server, explain it as well. Sends no request to the server."""
        hidden = self._gateway.policy.why_hidden(self._context, upstream.name)
        found: dict[str, Any] = {"visible": not hidden} | ({"why": hidden} if hidden else {})
        found |= {"left_out": [*upstream.settings.faults]} if upstream.is_left_out else {}
        if not self._tool and (methods := self._methods(upstream)):
            found["methods"] = methods
        if upstream.settings.has_own_process:
            found["environment"] = self._environment(upstream)
        if self._tool and (name := self._named(upstream)):
            tool = self._explained(upstream, {"name": name}, "")
            if tool["operation_from"] == ANNOTATIONS:
                tool["operation_from"] = "not known offline, so it counts as write"
            found["tools"] = [tool]
        return found

    async def with_lists(self, upstream: ConfiguredUpstream) -> dict[str, Any]:
        """Request the server's lists. Return what `server` returns, and an explanation of each tool, prompt and
        resource in these lists. If the server does not answer, the reason is in `failed`."""
        found, facts = self.server(upstream), await upstream.facts()
        found.pop("tools", None)
        if upstream.is_left_out:
            return found
        if why := facts.failure or upstream.state.why_silent:
            return found | {"failed": why}
        faults = self._gateway.calls.unusable(upstream.name, facts.tools.listed)
        wanted = self._named(upstream) if self._tool else ""
        found["tools"] = [
            self._explained(upstream, tool, faults.get(tool["name"], ""))
            for tool in facts.tools.listed
            if not self._tool or tool["name"] == wanted
        ]
        for kind, why_hidden in (
            ("prompts", self._gateway.policy.why_prompt_hidden),
            ("resources", self._gateway.policy.why_listed_uri_hidden),
        ):
            if not self._tool and (names := await listed_names(upstream, kind)):
                reasons = {name: why_hidden(self._context, upstream.name, name) for name in names}
                reasons |= {
                    name: why for name, why in (await self._unapproved(upstream, kind)).items() if name in names
                }
                found[kind] = [{"name": name, "visible": not why, "why": why} for name, why in reasons.items()]
        return found

    async def _unapproved(self, upstream: ConfiguredUpstream, kind: str) -> dict[str, str]:
        """Return the prompts or resource templates of a server that the lock file hides: name → reason. `kind` is
        `prompts`, or `resources` for the templates."""
        policy, locked = self._gateway.policy, "templates" if kind == "resources" else kind
        if not policy.locks(upstream.name):
            return {}
        try:
            items = (await lists_of(upstream)).get(locked, {})
        except Unlockable as error:
            return {name: str(error) for name in await listed_names(upstream, kind) or []}
        reasons = {
            name: policy.why_unapproved(upstream.name, locked, name, digest_of(it)) for name, it in items.items()
        }
        return {name: why for name, why in reasons.items() if why}

    def _methods(self, upstream: ConfiguredUpstream) -> list[dict[str, Any]]:
        """Return for each pattern in the server's setting `methods` whether its methods are visible, and if not, why.
        Servers do not list methods, so the patterns stand for them."""
        why_hidden = self._gateway.policy.why_method_hidden
        reasons = {
            pattern: why_hidden(self._context, upstream.name, sample_of(pattern))
            for pattern in upstream.settings.methods
        }
        return [{"name": pattern, "visible": not why, "why": why} for pattern, why in reasons.items()]

    def _named(self, upstream: ConfiguredUpstream) -> str:
        """Return the name of the tool to explain (`--tool`) without its prefix, as this server lists it; empty if it
        does not begin with this server's prefix. Without `__` in it, it needs no prefix if there is only one server."""
        if len(self._gateway.upstreams) == 1 and "__" not in self._tool:
            return self._tool
        return self._tool.removeprefix(f"{upstream.name}__") if self._tool.startswith(f"{upstream.name}__") else ""

    def _explained(self, upstream: ConfiguredUpstream, tool: Mapping[str, Any], fault: str) -> dict[str, Any]:
        decision = self._gateway.policy.decide(
            self._context, upstream.name, tool["name"], operation_of(tool), digest_of(tool)
        )
        reason = decision.reason
        if not reason and fault and self._settings.gateway.policy.check_arguments:
            reason = f"its input schema is invalid: {fault} (gateway.policy.check_arguments)"
        found = {"name": tool["name"], "visible": not reason, "why": reason}
        found |= {"operation": decision.operation, "operation_from": decision.operation_from}
        if decision.bind:
            found["bind"] = dict(decision.bind)
        if decision.blocked:
            found["blocked"] = [expression.pattern.decode() for expression in decision.blocked]
        return found

    def _environment(self, upstream: ConfiguredUpstream) -> dict[str, dict[str, str]]:
        """Return the environment variables of the server whose values come from the context or from settings. Each has
        the field of the context that gives its value (and the value, if it is known already), or the setting that sets
        it."""
        session, facts = self._session(upstream), self._gateway.parts.foundation.facts
        found: dict[str, dict[str, str]] = {}
        for variable, value in self._settings.environment_of(upstream.settings).items():
            source = {"field": value.field}
            if value.field not in _LATER:
                source["value"] = facts.environment(session, {variable: value}, {})[variable]
            found[variable] = source
        rules, who = self._gateway.parts.sessions.rules, (self._principal, self._context)
        configured = rules.variables(*who, upstream.name, upstream.settings.env)
        return found | {variable: {"from": where} for variable, (_, where) in configured.items()}

    def _session(self, upstream: ConfiguredUpstream) -> Session:
        """Return the session that the caller would open at the server, for computing variables. It is not stored."""
        return Session(
            id="",
            principal=self._principal,
            endpoint=path_of(upstream.name),
            era="",
            created_at=0.0,
            used_at=0.0,
            idle_ttl_s=1.0,
            max_age_s=1.0,
            client=ClientFacts(),
            context=self._context,
        )


@options
def explain(
    caller: Caller,
    config: ConfigOption = None,
    tool: Annotated[str, typer.Option(help="Only this tool, as SERVER__TOOL.")] = "",
    as_json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not start or contact the servers.")] = False,
) -> None:
    """Print what a credential and a workspace see, and why, setting by setting."""
    from gateway.observability.logs import configure_logging

    configure_logging("critical")
    try:
        config = configuration(config)
        settings = load(config).settings
        found = asyncio.run(explanation(settings, caller, tool=tool, offline=offline))
    except ConfigurationError as error:
        raise error_exit(located(str(error), config)) from None
    if as_json_:
        typer.echo(as_json(found, indent=2))
        return
    for line in lines_of(found):
        typer.echo(visible_line(line))


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that `explain` prints for people. `found` is the result of `explanation`."""
    yield f"principal: {found['principal']}"
    for name, fact in found["context"].items():
        yield from _fact(name.replace("_", "-"), fact)
    for name, field in found["fields"].items():
        yield from _fact(f"field {name}", field)
    for name, lifetime in found["lifetimes"].items():
        yield f"{name}: {lifetime['value']:g} · {lifetime['why']}"
    for note in found["notes"]:
        yield f"note: {note}"
    for name, server in found["servers"].items():
        yield ""
        missing = [f" · left out: {fault}" for fault in server.get("left_out", ())]
        missing += [f" · failed: {server['failed']}"] if "failed" in server else []
        yield f"server {name}: {_seen(server)}{''.join(missing)}"
        if server["visible"]:
            yield from _inside(server)


def _inside(server: dict[str, Any]) -> Iterator[str]:
    for tool in server.get("tools", ()):
        bound = "".join(f" · {argument} = {field}" for argument, field in tool.get("bind", {}).items())
        blocked = "".join(f" · blocked: {expression}" for expression in tool.get("blocked", ()))
        operation = f"{tool['operation']} ({tool['operation_from']})"
        yield f"  tool {tool['name']}: {_seen(tool)} · {operation}{bound}{blocked}"
    for kind in ("prompts", "resources", "methods"):
        for item in server.get(kind, ()):
            yield f"  {kind.removesuffix('s')} {item['name']}: {_seen(item)}"
    for variable, source in server.get("environment", {}).items():
        value = f" = {source['value']!r}" if "value" in source else ""
        yield f"  variable {variable}{value} · {source.get('from') or 'field ' + source['field']}"


def _fact(name: str, fact: dict[str, Any]) -> Iterator[str]:
    value = fact["value"]
    text = " ".join(value) if isinstance(value, list) else {True: "yes", False: "no"}.get(value, str(value))
    sources = [fact["provenance"], *fact["why"]] if text else fact["why"]
    yield f"{name}: {' · '.join(part for part in (text or 'none', *sources) if part)}"


def _seen(item: dict[str, Any]) -> str:
    return "visible" if item["visible"] else f"hidden: {item['why']}"


@options
def show_manifest(
    caller: Caller,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND ARG...]", help="A stdio server, instead of --config.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Print all tools of all servers with their schemas, as JSON. With a credential or principal, only those that it
    sees. Exit status 1 if the tools of a server are missing."""
    from gateway.observability.logs import configure_logging

    try:
        config = config if command else configuration(config)
        settings = with_command(load(config).settings, command)
        configure_logging("critical")
        found = asyncio.run(manifest(settings, caller))
    except ConfigurationError as error:
        raise error_exit(located(str(error), config)) from None
    typer.echo(as_json(found, indent=2))
    for name, why in found.get("failed", {}).items():
        _err.print_labelled("error", visible_line(f"the tools of server {name} are missing: {why}"))
    if "failed" in found:
        raise typer.Exit(1)


async def manifest(settings: Settings, caller: Caller) -> dict[str, Any]:
    """Start each server, request its tools, and stop it. Return the tools under `tools`, each with its server and
    operation. Servers that do not answer are under `failed`, with the reason. If a caller is given, only the tools that
    this caller sees are returned.

    Raises:
        ConfigurationError: the settings cannot be served, or `context_of` fails.
    """
    gateway = Gateway.to_ask(settings)
    tools, failed = [], {}
    context = None if caller == Caller() else (await context_of(gateway, settings, caller))[1].context
    async with gateway.running():
        unfetched = await until_fetched(gateway, settings.gateway.limits.start_timeout_s)
        for upstream in gateway.upstreams:
            if why := why_silent(upstream, unfetched.get(upstream.name, "")):
                failed[upstream.name] = why
            for tool in (await upstream.facts()).tools.listed:
                decision = gateway.policy.decide(
                    context or _ANYBODY, upstream.name, tool["name"], operation_of(tool), digest_of(tool)
                )
                if context is None or decision.allowed:
                    shown = with_public_name(upstream.name, tool) if len(gateway.upstreams) > 1 else tool
                    tools.append({**shown, "server": upstream.name, "operation": decision.operation})
    return {"tools": tools} | ({"failed": failed} if failed else {})
